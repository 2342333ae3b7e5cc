//! `CloudEvents`: the examples of the specification, and what is no event.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use millstream_core::event::{Cause, Event, Ignore};
use millstream_core::policy::Never;
use millstream_core::{Backend, ErrorKind, Headers, Retention, Timestamp, Topic};
use millstream_memory::MemoryBackend;
use millstream_runtime::extract::{Payload, handler};
use millstream_runtime::{Consumer, ConsumerBuilder, Delivery, Producer, ProducerBuilder, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{AttributeValue, CloudEvent, CloudEvents, InvalidEvent};

const EVENTS: Topic<Bytes> = Topic::raw("events").partitions(1).retention(Retention::Keep);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Order {
    cents: u64,
}

fn headers(pairs: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in pairs {
        headers.append(*name, (*value).to_owned());
    }
    headers
}

fn pairs(headers: &Headers) -> Vec<(String, String)> {
    let mut pairs: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.to_owned(), String::from_utf8(value.to_vec()).expect("text")))
        .collect();
    pairs.sort();
    pairs
}

fn structured(document: &str) -> Result<CloudEvent, InvalidEvent> {
    let headers = headers(&[("content-type", "application/cloudevents+json; charset=UTF-8")]);
    CloudEvent::read(&headers, &document.to_owned().into())
}

/// The example of the binding for Kafka, section 3.2.5.
#[test]
fn the_binary_example_of_the_binding_is_read_and_written() {
    let sent = headers(&[
        ("ce_specversion", "1.0"),
        ("ce_type", "com.example.someevent"),
        ("ce_source", "/mycontext/subcontext"),
        ("ce_id", "1234-1234-1234"),
        ("ce_time", "2018-04-05T03:56:24Z"),
        ("content-type", "application/avro"),
        ("traceparent", "no attribute"),
    ]);
    let avro = Bytes::from_static(&[0xff, 0, 1]);
    let event = CloudEvent::read(&sent, &avro).expect("an event");
    assert_eq!(
        (event.id(), event.source(), event.kind()),
        ("1234-1234-1234", "/mycontext/subcontext", "com.example.someevent")
    );
    assert_eq!(event.get("time"), Some(&"2018-04-05T03:56:24Z".into()));
    assert_eq!((event.content_type(), event.payload()), (Some("application/avro"), Some(&avro)));
    let made = CloudEvent::new("1234-1234-1234", "/mycontext/subcontext", "com.example.someevent");
    let made = made.and_then(|made| made.time("2018-04-05T03:56:24Z")).expect("an event");
    assert_eq!(made.data("application/avro", avro), event);
    let mut expected = pairs(&sent);
    expected.retain(|(name, _)| name != "traceparent");
    assert_eq!(pairs(&event.headers()), expected);
}

/// The examples of the JSON format, section 3.2: each document with the headers and the payload that it has in binary mode.
#[test]
fn the_structured_examples_of_the_format_become_their_binary_forms() {
    let common = json!({
        "specversion": "1.0", "type": "com.example.someevent", "source": "/mycontext", "time": "2018-04-05T17:31:00Z",
        "comexampleextension1": "value", "comexampleothervalue": 5,
    });
    let examples = [
        (
            json!({"id": "A234-1234-1234", "datacontenttype": "application/vnd.apache.thrift.binary", "data_base64": "AAH/"}),
            "application/vnd.apache.thrift.binary",
            Bytes::from_static(&[0, 1, 255]),
        ),
        (
            json!({"id": "B234-1234-1234", "unsetextension": null, "datacontenttype": "application/xml", "data": "<much wow=\"xml\"/>"}),
            "application/xml",
            "<much wow=\"xml\"/>".into(),
        ),
        (
            json!({"id": "C234-1234-1234", "subject": null, "datacontenttype": "application/json",
                "data": {"appinfoA": "abc", "appinfoB": 123, "appinfoC": true}}),
            "application/json",
            r#"{"appinfoA":"abc","appinfoB":123,"appinfoC":true}"#.into(),
        ),
        (
            json!({"id": "D234-1234-1234", "subject": null, "data": "I'm just a string"}),
            "application/json",
            "\"I'm just a string\"".into(),
        ),
    ];
    for (own, content_type, payload) in examples {
        let mut document = common.clone();
        let members = document.as_object_mut().expect("an object");
        members.extend(own.as_object().expect("an object").clone());
        let event = structured(&document.to_string()).expect("an event");
        let id = own["id"].as_str().expect("an id");
        let binary = headers(&[
            ("ce_specversion", "1.0"),
            ("ce_type", "com.example.someevent"),
            ("ce_source", "/mycontext"),
            ("ce_id", id),
            ("ce_time", "2018-04-05T17:31:00Z"),
            ("ce_comexampleextension1", "value"),
            ("ce_comexampleothervalue", "5"),
            ("content-type", content_type),
        ]);
        assert_eq!(pairs(&event.headers()), pairs(&binary), "{id}");
        assert_eq!(event.payload(), Some(&payload), "{id}");
        assert_eq!(event.get("comexampleothervalue"), Some(&AttributeValue::Integer(5)));
        // And back: data that is no JSON is in base64, which means the same.
        let again = event.to_structured().expect("a document");
        assert_eq!(structured(std::str::from_utf8(&again).expect("text")), Ok(event), "{id}");
    }
}

#[test]
fn numbers_of_json_data_keep_their_digits() {
    let document = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"n":123456789012345678901234567890,"f":1.10}}"#;
    let event = structured(document).expect("an event");
    assert_eq!(event.payload().expect("data"), r#"{"n":123456789012345678901234567890,"f":1.10}"#);
    let again = event.to_structured().expect("a document");
    assert!(std::str::from_utf8(&again).expect("text").contains("123456789012345678901234567890,\"f\":1.10"));
    // Null is data, absence is none.
    let null = structured(r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":null}"#)
        .expect("an event");
    assert_eq!(null.payload().expect("data"), "null");
    let none = structured(r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#).expect("an event");
    assert_eq!((none.payload(), none.content_type()), (None, None));
    let none: Value = serde_json::from_slice(&none.to_structured().expect("a document")).expect("JSON");
    assert_eq!(none, json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}));
}

#[test]
fn what_is_no_event_has_a_typed_error_that_shows_nothing_of_it() {
    let event = |extra: &str| format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t"{extra}}}"#);
    let cases = [
        ("secret".to_owned(), InvalidEvent::Json),
        ("[]".to_owned(), InvalidEvent::Json),
        (String::new(), InvalidEvent::Json),
        (r#"{"id":"1","source":"/s","type":"t"}"#.to_owned(), InvalidEvent::Missing("specversion")),
        (r#"{"specversion":"0.3","id":"1","source":"/s","type":"t"}"#.to_owned(), InvalidEvent::Version),
        (r#"{"specversion":"1.0","id":"","source":"/s","type":"t"}"#.to_owned(), InvalidEvent::Missing("id")),
        (
            r#"{"specversion":"1.0","id":null,"source":"/s","type":"t"}"#.to_owned(),
            InvalidEvent::Missing("id"),
        ),
        (r#"{"specversion":"1.0","id":"1","type":"t"}"#.to_owned(), InvalidEvent::Missing("source")),
        (r#"{"specversion":"1.0","id":"1","source":"/s"}"#.to_owned(), InvalidEvent::Missing("type")),
        (
            r#"{"specversion":"1.0","id":7,"source":"/s","type":"t"}"#.to_owned(),
            InvalidEvent::Value("id".into()),
        ),
        (event(r#","time":"yesterday""#), InvalidEvent::Value("time".into())),
        (event(r#","time":5"#), InvalidEvent::Value("time".into())),
        (event(r#","subject":"""#), InvalidEvent::Value("subject".into())),
        (event(r#","number":2147483648"#), InvalidEvent::Value("number".into())),
        (event(r#","number":1.5"#), InvalidEvent::Value("number".into())),
        (event(r#","list":[1]"#), InvalidEvent::Value("list".into())),
        (event(r#","Upper":"x""#), InvalidEvent::Name("Upper".into())),
        (event(r#","":"x""#), InvalidEvent::Name(String::new())),
        (event(r#","data":1,"data_base64":"AA==""#), InvalidEvent::Data),
        (event(r#","data_base64":"secret!""#), InvalidEvent::Data),
        (event(r#","datacontenttype":"text/plain","data":5"#), InvalidEvent::Data),
    ];
    for (document, error) in cases {
        let found = structured(&document).expect_err(&document);
        assert_eq!(found, error, "{document}");
        assert!(!found.to_string().contains("secret"));
    }
    let read =
        |pairs: &[(&str, &str)]| CloudEvent::read(&headers(pairs), &Bytes::new()).expect_err("no event");
    for format in
        ["application/cloudevents+avro", "Application/CloudEvents-batch+json", "application/cloudevents"]
    {
        assert_eq!(read(&[("content-type", format)]), InvalidEvent::Format, "{format}");
    }
    assert_eq!(read(&[]), InvalidEvent::Missing("specversion"));
    let binary = [("ce_specversion", "1.0"), ("ce_id", "1"), ("ce_source", "/s"), ("ce_type", "t")];
    let with = |more| [&binary[..], &[more]].concat();
    assert_eq!(read(&with(("ce_time", "yesterday"))), InvalidEvent::Value("time".into()));
    assert_eq!(read(&with(("ce_a-b", "x"))), InvalidEvent::Name("a-b".into()));
    assert_eq!(read(&with(("ce_datacontenttype", "x"))), InvalidEvent::Name("datacontenttype".into()));
    assert_eq!(read(&binary[..2]), InvalidEvent::Missing("source"));
    let mut bytes = headers(&binary[..3]);
    bytes.append("ce_type", Bytes::from_static(b"\xff"));
    assert_eq!(CloudEvent::read(&bytes, &Bytes::new()), Err(InvalidEvent::Value("type".into())));

    assert_eq!(CloudEvent::new("1", "", "t"), Err(InvalidEvent::Missing("source")));
    let event = CloudEvent::new("1", "/s", "t").expect("an event");
    assert!(event.clone().time(Timestamp::from_millis(1_700_000_000_000).to_string()).is_ok());
    assert!(event.clone().extension("data", "x").is_err() && event.clone().extension("Name", 1).is_err());
    assert_eq!(event.clone().data("application/json", "{").to_structured(), Err(InvalidEvent::Data));
    let shown =
        format!("{:?}", event.extension("token", "secret").expect("valid").data("text/plain", "secret"));
    assert!(!shown.contains("secret"), "{shown}");
}

fn producing(backend: &Backend) -> ProducerBuilder<Bytes> {
    ProducerBuilder::new(backend.clone(), EVENTS, Arc::new(Ignore))
}

async fn both(backend: &Backend) -> [Producer<Bytes>; 2] {
    let producer = async |layer| producing(backend).layer(layer).await.expect("a producer");
    [producer(CloudEvents::new()).await, producer(CloudEvents::new().structured()).await]
}

fn placed(id: &str) -> CloudEvent {
    let event =
        CloudEvent::new(id, "/shop", "com.example.placed").and_then(|it| it.json(&Order { cents: 1_200 }));
    event.expect("an event")
}

async fn finished(consumer: Consumer) -> (u64, u64) {
    consumer.wait_idle().await.expect("idle");
    let report = consumer.shutdown().await;
    (report.acked, report.dead)
}

#[tokio::test(start_paused = true)]
async fn a_consumer_handles_both_modes_alike() {
    let backend = Backend::from(MemoryBackend::new());
    for (number, producer) in both(&backend).await.into_iter().enumerate() {
        let event = placed(&number.to_string()).extension("partitionkey", "k").expect("an event");
        event.send(&producer).key("k").header("tenant", "acme").await.expect("stored");
    }
    let consumer = ConsumerBuilder::new(backend.clone(), EVENTS, "raw", Arc::new(Ignore));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let consumer = consumer.start({
        let seen = seen.clone();
        move |message: Delivery<Bytes>| {
            let mode = message.headers().get_str("content-type").map(str::to_owned);
            seen.lock().expect("lock").push((mode.expect("a type"), message.headers().len()));
            async move { CloudEvent::read(message.headers(), &message.payload).map(|_| ()) }
        }
    });
    assert_eq!(finished(consumer.await.expect("started")).await, (2, 0));
    let stored = seen.lock().expect("lock").clone();
    let structured = "application/cloudevents+json; charset=UTF-8";
    assert_eq!(
        stored,
        [("application/json".to_owned(), 7), (structured.to_owned(), 2)],
        "binary is the default"
    );

    let seen = Arc::new(Mutex::new(Vec::new()));
    let routed = {
        let seen = seen.clone();
        move |event: CloudEvent, headers: Headers, Payload(order): Payload<Order>| {
            let tenant = headers.get_str("tenant").map(str::to_owned);
            seen.lock().expect("lock").push((event.id().to_owned(), tenant, order.cents, pairs(&headers)));
            async {}
        }
    };
    let router = Router::by_header("ce_type").on("com.example.placed", handler(routed));
    let consumer =
        ConsumerBuilder::new(backend, EVENTS, "routed", Arc::new(Ignore)).layer(CloudEvents::new());
    assert_eq!(finished(consumer.start_router(router).await.expect("started")).await, (2, 0));
    let seen = seen.lock().expect("lock").clone();
    let [(first, _, _, mut binary), (second, tenant, cents, mut converted)] =
        <[_; 2]>::try_from(seen).expect("two");
    assert_eq!((&*first, &*second, tenant.as_deref(), cents), ("0", "1", Some("acme"), 1_200));
    for headers in [&mut binary, &mut converted] {
        headers.retain(|(name, _)| name != "ce_id");
    }
    assert_eq!(binary, converted);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_event_is_refused_by_a_producer_and_undecodable_in_a_consumer() {
    let backend = Backend::from(MemoryBackend::new());
    for producer in both(&backend).await {
        let error = producer.send(&Bytes::new()).header("ce_id", "1").await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Encode, "{error}");
    }
    let plain = producing(&backend).await.expect("a producer");
    plain.send(&"passes".into()).await.expect("stored");
    plain.send(&"{".into()).header("content-type", "application/cloudevents+json").await.expect("stored");
    plain.send(&"x".into()).header("content-type", "application/cloudevents+avro").await.expect("stored");
    plain.send(&"x".into()).header("ce_specversion", "1.0").await.expect("stored");
    let causes = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let causes = causes.clone();
        move |event: &Event<'_>| {
            if let Event::Handled { cause: Some(cause), .. } = event {
                causes.lock().expect("lock").push(*cause);
            }
        }
    };
    let consumer = ConsumerBuilder::new(backend, EVENTS, "g", Arc::new(observer)).retry(Never);
    let consumer = consumer.layer(CloudEvents::new()).start(|_: Delivery<Bytes>| async {}).await;
    assert_eq!(finished(consumer.expect("started")).await, (1, 3));
    assert_eq!(*causes.lock().expect("lock"), [Cause::Undecodable; 3]);
}

/// A producer with a codec: the value is the data.
#[tokio::test(start_paused = true)]
async fn attributes_are_attached_to_values_of_a_codec() {
    const ORDERS: Topic<Order> = Topic::new("orders").partitions(1);
    let backend = Backend::from(MemoryBackend::new());
    let producer = ProducerBuilder::new(backend.clone(), ORDERS, Arc::new(Ignore))
        .layer(CloudEvents::new().structured());
    let producer = producer.await.expect("a producer");
    let event =
        CloudEvent::new("1", "/shop", "placed").expect("an event").with_content_type("application/json");
    event.attach(producer.send(&Order { cents: 7 })).key("k").await.expect("stored");
    let consumer = ConsumerBuilder::new(backend, ORDERS, "g", Arc::new(Ignore)).layer(CloudEvents::new());
    let handled = async |order: Delivery<Order>| match (order.payload.cents, order.headers().get_str("ce_id"))
    {
        (7, Some("1")) => Ok(()),
        _ => Err("another order"),
    };
    assert_eq!(finished(consumer.start(handled).await.expect("started")).await, (1, 0));
}
