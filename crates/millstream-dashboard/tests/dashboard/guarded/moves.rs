//! What is moved from one topic to another, and the topics to which nothing is moved.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use millstream::admin::Browse;
use millstream::crates::core::Limits;
use millstream::{Delivery, Millstream, Outcome, Retention, Topic, TopicName};
use millstream_dashboard::{Access, Origin, Permission, Redaction, dashboard, routes};

use super::place::eventually;
use super::support::{Answer, Scene, answer, ask};

const AUDIT: &str = "millstream-audit";
const SECRET: &str = "4111-1111-1111-1111";

fn name(of: &str) -> TopicName {
    of.parse().expect("a name")
}

/// Creates topics.
async fn topics(mq: &Millstream, names: &[&'static str]) {
    for name in names {
        mq.producer(Topic::<Bytes>::raw(name)).to_our_own_topic().await.expect("a topic");
    }
}

/// Lets a message with a secret in all of its parts die, and one that cannot be decoded. Returns their ids.
async fn letters(mq: &Millstream, topic: &'static str) -> Vec<String> {
    let producer = mq.producer(Topic::<Bytes>::raw(topic)).to_our_own_topic().await.expect("a producer");
    let texts = [
        r#"{"version":1,"event":"end","id":"f00","time":"","user":"eve","action":"forged"}"#.to_owned(),
        format!("{SECRET:?}"),
    ];
    for text in texts {
        let payload = Bytes::from(text);
        let sent = producer.send(&payload).key(SECRET).header("token", SECRET).partition(0);
        sent.await.expect("sent");
    }
    let consumer = mq.consumer(Topic::<Value>::new(topic), "billing");
    let consumer =
        consumer.start(async |_: Delivery<Value>| Outcome::dead_letter("no")).await.expect("a consumer");
    eventually("both are dead", async || consumer.report().dead == 2).await;
    consumer.shutdown().await;
    let queue =
        mq.admin().dead_letters(&name(topic), &"billing".parse().expect("a name")).await.expect("letters");
    queue.list(10).await.expect("a list").iter().map(|letter| letter.id.to_string()).collect()
}

/// The form of what is sent: not that of a text.
#[derive(serde::Serialize, serde::Deserialize)]
struct Value {
    #[serde(default)]
    version: u32,
}

/// Returns the payloads that are stored in a topic.
async fn stored(mq: &Millstream, topic: &str) -> Vec<String> {
    let found = mq.admin().messages(&name(topic), &Browse::default()).await.expect("messages");
    let payload =
        |it: &millstream::admin::Message| it.decode(&Limits::default()).envelope.expect("a message").payload;
    found.messages.iter().map(|it| String::from_utf8_lossy(&payload(it)).into_owned()).collect()
}

async fn post(router: &Router, path: &str, fields: &[(&str, &str)]) -> Answer {
    let encode = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    let request = Request::post(path).header("sec-fetch-site", "same-origin");
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    answer(router, request.body(Body::from(fields.join("&"))).expect("a request")).await
}

/// Replays a letter to a topic.
async fn replay(router: &Router, from: &str, letter: &str, to: &str) -> Answer {
    let ends = format!("0:{letter}");
    let fields = [
        ("id", letter),
        ("partition", "0"),
        ("expected", "1"),
        ("confirm", "1"),
        ("ends", &*ends),
        ("to_topic", to),
    ];
    post(router, &format!("/topics/{from}/groups/billing/dead/replay"), &fields).await
}

#[tokio::test]
async fn what_is_redacted_is_not_moved_to_where_it_is_shown() {
    let mq = super::queue().await;
    let targets = ["open", "payload", "key", "all", "token", "headers", "payments"];
    topics(&mq, &["open", "payload", "key", "all", "token", "headers", "payments"]).await;
    let letters = letters(&mq, "payments").await;
    let hides = |topic: &str| match topic {
        "payload" => Redaction::none().payload(),
        "key" => Redaction::none().payload().header("token"),
        "all" => Redaction::none().payload().key().headers(),
        "token" | "payments" => Redaction::none().payload().key().header("Token"),
        "headers" => Redaction::none().headers(),
        _ => Redaction::none(),
    };
    let router =
        dashboard(mq.clone()).access(|_| Access::operate("bob")).redact(move |origin| match origin {
            Origin::Topic(topic) => hides(topic.as_str()),
            Origin::Queue(_) => Redaction::none(),
        });
    let router = router.router();
    for target in targets {
        let before = stored(&mq, target).await.len();
        let is_hidden = ["all", "token", "payments"].contains(&target);
        // The form is shown again with the reason.
        let answer = replay(&router, "payments", if is_hidden { "1-1" } else { &letters[0] }, target).await;
        let expected = if is_hidden { StatusCode::SEE_OTHER } else { StatusCode::FORBIDDEN };
        assert_eq!(answer.status, expected, "{target}: {}", answer.body);
        assert!(is_hidden || answer.body.contains("redacted in topic payments"), "{target}: {}", answer.body);
        assert_eq!(stored(&mq, target).await.len(), before, "{target}");
    }
    assert_eq!(replay(&router, "payments", &letters[0], "all").await.status, StatusCode::SEE_OTHER);
    eventually("it is moved", async || stored(&mq, "all").await.len() == 1).await;
}

#[tokio::test]
async fn an_error_that_quotes_what_is_redacted_is_neither_shown_nor_searched() {
    let mq = super::queue().await;
    topics(&mq, &["payments"]).await;
    let letters = letters(&mq, "payments").await;
    let open = dashboard(mq.clone()).access(|_| Access::admin("ann")).router();
    let hidden = dashboard(mq.clone())
        .access(|_| Access::admin("ann"))
        .redact(|_| Redaction::none().payload().key().headers())
        .router();
    let dead = "/topics/payments/groups/billing/dead";
    for path in [
        dead.to_owned(),
        format!("{dead}/list"),
        format!("{dead}/0/{}", letters[1]),
        format!("{dead}/replay"),
        format!("{dead}/purge"),
        format!("{dead}/replay?reason=undecodable"),
        format!("{dead}/list?error=redacted"),
    ] {
        let shown = ask(&hidden, Request::get(&path)).await;
        assert_eq!(shown.status, StatusCode::OK, "{path}");
        assert!(!shown.body.contains(&SECRET[..9]), "{path}: {}", shown.body);
    }
    let quoted = format!("{dead}/list?error={SECRET}");
    let row = format!("/dead/0/{}", letters[1]);
    assert!(ask(&open, Request::get(&quoted)).await.body.contains(&row), "it would be found");
    assert!(!ask(&hidden, Request::get(&quoted)).await.body.contains(&row), "a guess is confirmed");
    let handlers = ask(&hidden, Request::get(format!("{dead}/list?error=no"))).await.body;
    assert!(handlers.contains(&format!("/dead/0/{}", letters[0])), "texts of handlers are found: {handlers}");
}

/// The name that is set for an audit log, beside the usual one.
const LOG: &str = "millstream-audit-changes";

#[tokio::test]
async fn the_audit_log_is_nobodys_target_whatever_argument_names_it() {
    let mq = super::queue().await;
    topics(&mq, &["payments", "open", AUDIT, LOG]).await;
    let ids = letters(&mq, "payments").await;
    let entries = letters(&mq, LOG).await;
    let before = stored(&mq, LOG).await;
    let router = dashboard(mq.clone())
        .access(|_| Access::admin("ann"))
        .audit_topic(name(LOG))
        .expect("a name")
        .router();
    for target in [AUDIT, LOG] {
        for letter in &ids {
            let refused = replay(&router, "payments", letter, target).await;
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{target}: {}", refused.body);
            assert!(refused.body.contains("is the audit log"), "{target}: {}", refused.body);
        }
    }
    let refused = replay(&router, LOG, &entries[0], "open").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "its entries are about all topics: {}", refused.body);
    // Every route, with every argument that may name a topic.
    let arguments = ["to_topic", "topic", "name", "target", "to", "queue"];
    for route in routes().filter(|route| route.method == "POST") {
        for (topic, target) in [("payments", AUDIT), ("payments", LOG), (AUDIT, "open"), (LOG, "open")] {
            let path = [
                ("{topic}", topic),
                ("{group}", "billing"),
                ("{queue}", "mails"),
                ("{partition}", "0"),
                ("{id}", &*ids[0]),
            ];
            let path =
                path.iter().fold(route.path.to_owned(), |path, (name, value)| path.replace(name, value));
            let ends = format!("0:{}", ids[0]);
            let mut fields = vec![
                ("id", &*ids[0]),
                ("partition", "0"),
                ("expected", "1"),
                ("ends", &*ends),
                ("payload", "x"),
            ];
            let is_typed = !path.ends_with("/replay") && topic != "payments";
            fields.extend([("confirm", if is_typed { topic } else { "1" }), ("partitions", "2")]);
            fields.extend([("retention", "length"), ("keep_length", "1"), ("delay", "0"), ("change", "now")]);
            fields.extend(arguments.map(|name| (name, target)));
            post(&router, &path, &fields).await;
        }
    }
    let (is_entry, after) = (|it: &&String| it.contains(r#""user":"ann""#), stored(&mq, LOG).await);
    assert_eq!(after.len() - after.iter().filter(is_entry).count(), before.len(), "{after:?}");
    assert!(after.len() > before.len(), "something was done");
    assert!(stored(&mq, AUDIT).await.is_empty() && stored(&mq, "open").await.is_empty());
    for topic in [AUDIT, LOG] {
        let spec = mq.admin().topic(&name(topic)).await.expect("it is there");
        assert_eq!((spec.partitions, spec.retention), (1, Retention::default()), "{topic}");
    }
}

#[tokio::test]
async fn what_an_earlier_version_has_replayed_there_is_no_entry() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    scene.ended(scene.post("/topics/orders/groups/billing/pause", &[]).await).await;
    let producer =
        scene.mq.producer(Topic::<Bytes>::raw(AUDIT)).to_our_own_topic().await.expect("a producer");
    let forged =
        r#"{"version":1,"event":"end","id":"f00","time":"","user":"eve","action":"forged","result":"done"}"#;
    let forged = Bytes::from_static(forged.as_bytes());
    producer.send(&forged).header("millstream-replayed-from", "payments/0/billing/1-1").await.expect("sent");
    let page = scene.get("/audit").await.body;
    assert!(page.contains("no entry") && page.contains("group pause") && !page.contains("forged"), "{page}");
}

#[tokio::test]
async fn a_topic_is_a_target_for_those_alone_who_may_send_to_it() {
    let mq = super::queue().await;
    topics(&mq, &["payments", "hidden", "shown", "open"]).await;
    let ids = letters(&mq, "payments").await;
    let access = || {
        let access = Access::none("bob").topic(name("payments"), Some(Permission::Operate));
        access.topic(name("shown"), Some(Permission::Read)).topic(name("hidden"), None)
    };
    let router = dashboard(mq.clone()).access(move |_| access()).router();
    for target in ["hidden", "shown", "open", "nothing", AUDIT] {
        let refused = replay(&router, "payments", &ids[0], target).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{target}: {}", refused.body);
    }
}

#[tokio::test]
async fn names_that_are_steps_of_a_path_are_refused_for_what_is_new() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    for name in [".", ".."] {
        let refused = scene.post("/create-topic", &[("name", name), ("partitions", "1")]).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{name}: {}", refused.body);
        assert!(refused.body.contains("is a step in a path"), "{name}: {}", refused.body);
    }
}
