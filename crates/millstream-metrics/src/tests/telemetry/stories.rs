//! Stories: what is sent, handled and settled, and the spans of it.

use std::time::Duration;

use millstream_core::{ErrorKind, Headers, Outcome};
use millstream_delay::{Task, TaskRecord};
use millstream_runtime::{Batch, Delivery, Record};
use opentelemetry::trace::{SpanKind, Status};

use super::harness::{BILLS, ORDERS, Traced, expected};

const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test(start_paused = true)]
async fn a_message_is_sent_fails_is_retried_and_succeeds() {
    let traced = Traced::new();
    let (orders, bills) =
        (traced.producer(ORDERS).await.expect("one"), traced.producer(BILLS).await.expect("one"));
    let sent = orders.send(&7).key("key-of-ours").header("secret", "42").await.expect("sent");
    let consumer = traced.consumer().start(move |order: Delivery<u64>| {
        let bills = bills.clone();
        async move {
            if order.attempt() == 1 {
                return Outcome::retry("the text may quote a secret");
            }
            bills.send(&order.payload).await.map_or_else(Outcome::retry, |_| Outcome::Ack)
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.acked, 1);

    let (send, bill) = (traced.span("send orders"), traced.span("send bills"));
    let all = traced.spans();
    let named = |name: &str| all.iter().filter(|span| span.name() == name).collect::<Vec<_>>();
    let (process, settle) = (named("process orders"), named("settle orders"));
    let ([first, second], [_, _]) = (&process[..], &settle[..]) else { panic!("{all:#?}") };
    assert_eq!(all.len(), 6);

    let id = sent.id.to_string();
    assert_eq!((&send.0.span_kind, &send.0.status), (&SpanKind::Producer, &Status::Unset));
    assert!(send.is_root() && send.links().is_empty());
    let place = [("messaging.operation.type", "send"), ("messaging.destination.partition.id", "0")];
    let of_send = expected("send", "orders", &[place[0], place[1], ("messaging.message.id", &id)]);
    assert_eq!(send.attributes(), of_send);

    let place = [
        ("messaging.operation.type", "process"),
        ("messaging.destination.partition.id", "0"),
        ("messaging.consumer.group.name", "billing"),
        ("messaging.message.id", &*id),
    ];
    let attempt = |nth| ("messaging.millstream.message.delivery_attempt", nth);
    let of_first =
        expected("process", "orders", &[&place[..], &[attempt("1"), ("error.type", "error")]].concat());
    assert_eq!(first.attributes(), of_first);
    assert_eq!(second.attributes(), expected("process", "orders", &[&place[..], &[attempt("2")]].concat()));
    // Without a text: it may quote the message.
    assert_eq!((&first.0.status, &second.0.status), (&Status::error(""), &Status::Unset));
    for process in [first, second] {
        assert_eq!(process.0.span_kind, SpanKind::Consumer);
        assert!(process.is_root() && process.links_to(&send) && process.links().len() == 1);
        assert_ne!(process.context().trace_id(), send.context().trace_id(), "a link, and no child");
    }
    assert!(bill.is_child_of(second), "what a handler sends belongs to it");
    for settle in settle {
        assert_eq!((&settle.0.span_kind, &settle.0.status), (&SpanKind::Client, &Status::Unset));
        assert!(settle.is_root() && settle.links().is_empty());
        let of_settle = [
            ("messaging.operation.type", "settle"),
            ("messaging.destination.partition.id", "0"),
            ("messaging.consumer.group.name", "billing"),
            ("messaging.batch.message_count", "1"),
        ];
        assert_eq!(settle.attributes(), expected("settle", "orders", &of_settle));
    }
    let text = format!("{all:?}");
    assert!(!text.contains("secret") && !text.contains("key-of-ours"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_links_to_the_context_of_each_message() {
    let traced = Traced::new();
    let orders = traced.producer(ORDERS).await.expect("a producer");
    let records = [
        Record::new(&1),
        Record::new(&2).header("traceparent", CONTEXT),
        Record::new(&3).partition(9),
        Record::new(&4),
    ];
    let sent = orders.send_all(records).await;
    assert_eq!(sent[2].as_ref().map_err(millstream_core::Error::kind), Err(ErrorKind::InvalidConfig));
    let id = |nth: usize| sent[nth].as_ref().expect("sent").id.to_string();
    let consumer =
        traced.consumer().start_batch((10, Duration::from_millis(50)), |batch: Batch<u64>| async move {
            batch
                .iter()
                .map(|it| if it.payload == 4 { Outcome::dead_letter("four") } else { Outcome::Ack })
                .collect::<Vec<_>>()
        });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;

    let send = traced.span("send orders");
    assert_eq!(send.0.span_kind, SpanKind::Producer);
    let of_send = [
        ("messaging.operation.type", "send"),
        ("messaging.destination.partition.id", "0"),
        ("messaging.batch.message_count", "4"),
        ("error.type", "invalid_config"),
    ];
    assert_eq!(send.attributes(), expected("send", "orders", &of_send));
    let [(custom, _)] = &send.links()[..] else { panic!("{send:?}") };
    assert_eq!(custom.trace_id().to_string(), CONTEXT[3..35]);

    let process = traced.span("process orders");
    let of_process = [
        ("messaging.operation.type", "process"),
        ("messaging.destination.partition.id", "0"),
        ("messaging.consumer.group.name", "billing"),
        ("messaging.batch.message_count", "3"),
        ("error.type", "rejected"),
    ];
    assert_eq!(process.attributes(), expected("process", "orders", &of_process));
    let links = process.links();
    let links: Vec<_> =
        links.iter().map(|(to, of)| (to.span_id(), of.get("messaging.message.id").cloned())).collect();
    let ours = send.context().span_id();
    assert_eq!(links, [(ours, Some(id(0))), (custom.span_id(), Some(id(1))), (ours, Some(id(3)))]);
    let settle = traced.span("settle orders");
    assert_eq!(settle.attributes().get("messaging.batch.message_count").map(String::as_str), Some("3"));
}

#[tokio::test(start_paused = true)]
async fn a_pulled_message_has_a_receive_span_and_no_process_span() {
    let traced = Traced::new().set(|it| it.body_size(true).server("redis.example", 6379));
    let orders = traced.producer(ORDERS).await.expect("a producer");
    let puller = traced.consumer().pull().await.expect("started");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (sent, pulled) = tokio::join!(orders.send(&1234).into_future(), puller.next());
    let (id, pulled) = (sent.expect("sent").id.to_string(), pulled.expect("one"));
    pulled.ack();
    puller.shutdown().await;

    let server =
        [("server.address", "redis.example"), ("server.port", "6379"), ("messaging.message.body.size", "4")];
    let send = traced.span("send orders");
    let of_send = [
        ("messaging.operation.type", "send"),
        ("messaging.destination.partition.id", "0"),
        ("messaging.message.id", &id),
    ];
    assert_eq!(send.attributes(), expected("send", "orders", &[&of_send[..], &server].concat()));
    let receive = traced.span("receive orders");
    let of_receive = [
        ("messaging.operation.type", "receive"),
        ("messaging.destination.partition.id", "0"),
        ("messaging.consumer.group.name", "billing"),
        ("messaging.message.id", &id),
        ("messaging.millstream.message.delivery_attempt", "1"),
    ];
    assert_eq!(receive.0.span_kind, SpanKind::Client);
    assert_eq!(receive.attributes(), expected("receive", "orders", &[&of_receive[..], &server].concat()));
    assert!(receive.is_root() && receive.links_to(&send));
    let mut names: Vec<_> = traced.spans().iter().map(|span| span.name().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["receive orders", "send orders", "settle orders"]);
}

#[tokio::test(start_paused = true)]
async fn a_context_that_a_program_has_set_stays_and_the_send_links_to_it() {
    let traced = Traced::new();
    let orders = traced.producer(ORDERS).await.expect("a producer");
    orders.send(&1).header("traceparent", CONTEXT).await.expect("sent");
    let (seen, mut headers) = tokio::sync::mpsc::unbounded_channel::<Headers>();
    let consumer = traced.consumer().start(move |order: Delivery<u64>| {
        let _ = seen.send(order.headers().clone());
        async {}
    });
    let consumer = consumer.await.expect("started");
    let headers = headers.recv().await.expect("handled");
    consumer.shutdown().await;
    assert_eq!(headers.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["traceparent"]);
    assert_eq!(headers.get_str("traceparent"), Some(CONTEXT));
    let (send, process) = (traced.span("send orders"), traced.span("process orders"));
    assert_eq!(send.0.span_kind, SpanKind::Client, "its context is not that of the message");
    for span in [&send, &process] {
        let [(link, _)] = &span.links()[..] else { panic!("{span:?}") };
        assert_eq!(link.trace_id().to_string(), CONTEXT[3..35]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_continues_the_trace_of_the_send_if_that_is_wanted() {
    let traced = Traced::new().set(|it| it.child_of_send(true));
    let orders = traced.producer(ORDERS).await.expect("a producer");
    orders.send(&1).await.expect("sent");
    let consumer = traced.consumer().start(|_: Delivery<u64>| async {}).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;
    let (send, process) = (traced.span("send orders"), traced.span("process orders"));
    assert!(process.is_child_of(&send) && process.0.parent_span_is_remote && process.links_to(&send));
}

#[tokio::test(start_paused = true)]
async fn a_task_of_a_delay_queue_whose_handler_panics_comes_back() {
    let traced = Traced::new();
    let mails = traced.mails().await;
    mails.schedule(&7).delay(Duration::from_secs(60)).id("welcome-7").await.expect("scheduled");
    let worker = mails.worker().start(|mail: Task<u64>| async move {
        assert!(mail.attempt() > 1, "the first attempt fails");
    });
    let worker = worker.await.expect("started");
    while worker.report().done == 0 {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    worker.shutdown().await;

    let schedule = traced.span("schedule mails");
    assert_eq!(schedule.0.span_kind, SpanKind::Producer);
    let task = [("messaging.destination.partition.id", "0"), ("messaging.message.id", "welcome-7")];
    let of_schedule =
        expected("schedule", "mails", &[&task[..], &[("messaging.operation.type", "send")]].concat());
    assert_eq!(schedule.attributes(), of_schedule);
    let all = traced.spans();
    let named = |name: &str| all.iter().filter(|span| span.name() == name).collect::<Vec<_>>();
    let ([first, second], [one, two]) = (&named("process mails")[..], &named("settle mails")[..]) else {
        panic!("{all:#?}")
    };
    let process = ("messaging.operation.type", "process");
    let attempt = |nth| ("messaging.millstream.message.delivery_attempt", nth);
    let of_first = [&task[..], &[process, attempt("1"), ("error.type", "panic")]].concat();
    assert_eq!(first.attributes(), expected("process", "mails", &of_first));
    let of_second = [&task[..], &[process, attempt("2")]].concat();
    assert_eq!(second.attributes(), expected("process", "mails", &of_second));
    for process in [first, second] {
        assert_eq!(process.0.span_kind, SpanKind::Consumer);
        assert!(process.is_root() && process.links_to(&schedule));
    }
    for settle in [one, two] {
        let of_settle = [
            ("messaging.operation.type", "settle"),
            ("messaging.destination.partition.id", "0"),
            ("messaging.batch.message_count", "1"),
        ];
        assert_eq!(settle.attributes(), expected("settle", "mails", &of_settle));
    }
}

#[tokio::test(start_paused = true)]
async fn a_recurring_rule_has_a_span_for_each_firing() {
    let traced = Traced::new();
    let mails = traced.mails().await;
    mails.recurring("beat").every(Duration::from_secs(60)).payload(&7).await.expect("put");
    mails
        .recurring("traced")
        .every(Duration::from_secs(90))
        .payload(&8)
        .header("traceparent", CONTEXT)
        .await
        .expect("put");
    let worker = mails.worker().start(|_: Task<u64>| async {}).await.expect("started");
    while worker.report().done < 3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    worker.shutdown().await;

    let all = traced.spans();
    let named = |name: &str| all.iter().filter(|span| span.name() == name).collect::<Vec<_>>();
    let ([beat, linked, again], process) = (&named("schedule mails")[..], named("process mails")) else {
        panic!("{all:#?}")
    };
    let of_firing = [
        ("messaging.operation.type", "send"),
        ("messaging.destination.partition.id", "0"),
        ("messaging.batch.message_count", "1"),
    ];
    for firing in [beat, linked, again] {
        assert_eq!(firing.attributes(), expected("schedule", "mails", &of_firing));
        assert_eq!(firing.0.span_kind, SpanKind::Client, "its context is in no message");
        assert!(firing.is_root());
    }
    assert!(beat.links().is_empty() && again.links().is_empty());
    for span in [linked, process[1]] {
        let [(link, _)] = &span.links()[..] else { panic!("{span:?}") };
        assert_eq!(link.trace_id().to_string(), CONTEXT[3..35]);
    }
    assert!(process[0].links().is_empty() && process.len() == 3);
}

#[tokio::test(start_paused = true)]
async fn tasks_and_delayed_messages_that_are_sent_together_share_a_span() {
    let traced = Traced::new();
    let mails = traced.mails().await;
    let orders = traced.producer(ORDERS).await.expect("a producer");
    mails.schedule_all([TaskRecord::new(&1), TaskRecord::new(&2).id("")]).await;
    let delayed =
        [Record::new(&1).delay(Duration::from_secs(1)), Record::new(&2).delay(Duration::from_secs(2))];
    assert!(orders.send_all_delayed(delayed).await.iter().all(Result::is_ok));
    let waiting = orders.send(&3).delay(Duration::from_secs(1)).id("third").await.expect("scheduled");
    assert_eq!(waiting.id.as_str(), "third");
    let of = |name, others: &[(&str, &str)]| {
        let send = ("messaging.operation.type", "send");
        let place = ("messaging.destination.partition.id", "0");
        expected("schedule", name, &[&[send, place], others].concat())
    };
    let (count, error) = (("messaging.batch.message_count", "2"), ("error.type", "invalid_name"));
    let spans: Vec<_> = traced.spans().iter().map(super::harness::Ended::attributes).collect();
    let third = ("messaging.message.id", "third");
    assert_eq!(spans, [of("mails", &[count, error]), of("orders", &[count]), of("orders", &[third])]);
}
