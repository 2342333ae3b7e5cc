//! What users change.

use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use millstream::admin::{LimitBound, PermitHolder, PermitKey};
use millstream::crates::core::Continuity;
use millstream::crates::core::permits::{Exchange, Step, Take, Want};
use millstream::{Delivery, GroupName, Outcome, Start, Topic, TopicName};
use millstream_dashboard::{Access, Origin, Redaction, dashboard};

use super::place::{TURNED, eventually};
use super::support::{Answer, Scene, answer, ask};

const BILLING: &str = "/topics/orders/groups/billing";
const WAITING: &str = "/topics/orders/groups/waiting";

fn names() -> (TopicName, GroupName) {
    ("orders".parse().expect("a name"), "billing".parse().expect("a name"))
}

/// Value of a hidden field of a page.
fn hidden(answer: &Answer, name: &str) -> String {
    let start = format!("name=\"{name}\" value=\"");
    let rest = answer.body.split(&start).nth(1).unwrap_or_else(|| panic!("no field {name}: {}", answer.body));
    rest.split('"').next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_group_is_paused_and_resumed() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    let (topic, group) = names();
    let page = scene.ended(scene.post(&format!("{BILLING}/pause"), &[]).await).await;
    assert!(page.contains("group pause") && page.contains("ann"), "{page}");
    let state = scene.mq.admin().group_state(&topic, &group).await.expect("its state");
    assert!(state.paused.is_some());
    assert!(scene.get(BILLING).await.body.contains(">Resume</button>"));
    scene.ended(scene.post(&format!("{BILLING}/resume"), &[]).await).await;
    let state = scene.mq.admin().group_state(&topic, &group).await.expect("its state");
    assert_eq!(state.paused, None);
    let audit = scene.get("/audit").await.body;
    assert!(audit.contains("group pause") && audit.contains("group resume"), "{audit}");
}

#[tokio::test]
async fn letters_of_one_error_are_counted_confirmed_and_replayed() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let (topic, group) = names();
    // Letters of another error, which stay.
    let orders = Topic::<bytes::Bytes>::raw("orders").partitions(2);
    let producer = scene.mq.producer(orders.clone()).await.expect("a producer");
    for _ in 0..3 {
        producer.send(&bytes::Bytes::from_static(b"x")).await.expect("sent");
    }
    let consumer = scene.mq.consumer(orders, "billing");
    let consumer =
        consumer.start(async |_: Delivery<bytes::Bytes>| Outcome::dead_letter("no such customer 42"));
    let consumer = consumer.await.expect("started");
    eventually("they are dead", async || consumer.report().dead == 3).await;
    consumer.shutdown().await;
    let letters = scene.mq.admin().dead_letters(&topic, &group).await.expect("letters");
    assert_eq!(letters.count().await.expect("a count"), 9);

    let errors = scene.get(&format!("{BILLING}/dead")).await;
    assert!(errors.body.contains("no such customer"), "{}", errors.body);
    let print = millstream::crates::core::Fingerprint::of("no such customer 42").to_string();
    let path = format!("{BILLING}/dead/replay");
    let confirm = scene.get(&format!("{path}?fingerprint={print}")).await;
    assert!(confirm.body.contains("Replay 3 dead letters"), "{}", confirm.body);
    let (expected, ends) = (hidden(&confirm, "expected"), hidden(&confirm, "ends"));
    let fields =
        |typed| [("fingerprint", &*print), ("expected", &*expected), ("ends", &*ends), ("confirm", typed)];
    let some = [("limit", "1"), ("confirm", "1")];
    let some: Vec<_> = fields("x")[..3].iter().copied().chain(some).collect();
    let none: Vec<_> =
        some.iter().map(|(name, value)| (*name, if *name == "limit" { "0" } else { value })).collect();
    assert_eq!(scene.post(&path, &none).await.status, StatusCode::BAD_REQUEST);
    let page = scene.ended(scene.post(&path, &some).await).await;
    assert!(page.contains("1 of 1"), "{page}");
    assert_eq!(letters.count().await.expect("a count"), 8);
    let wrong = scene.post(&path, &fields("2")).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert_eq!(letters.count().await.expect("a count"), 8, "nothing was changed");
    let page = scene.ended(scene.post(&path, &fields("3")).await).await;
    assert!(page.contains("2 of 3"), "one of the three is gone: {page}");
    assert_eq!(letters.count().await.expect("a count"), 6);
}

#[tokio::test]
async fn letters_that_die_after_the_count_are_not_purged() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let (topic, group) = names();
    let path = format!("{BILLING}/dead/purge");
    let confirm = scene.get(&path).await;
    let (expected, ends) = (hidden(&confirm, "expected"), hidden(&confirm, "ends"));
    assert_eq!(expected, "6");
    let orders = Topic::<bytes::Bytes>::raw("orders").partitions(2);
    let producer = scene.mq.producer(orders.clone()).await.expect("a producer");
    producer.send(&bytes::Bytes::from_static(b"x")).await.expect("sent");
    let consumer = scene.mq.consumer(orders, "billing");
    let consumer = consumer
        .start(async |_: Delivery<bytes::Bytes>| Outcome::dead_letter("later"))
        .await
        .expect("started");
    eventually("it is dead", async || consumer.report().dead == 1).await;
    consumer.shutdown().await;
    let some = [("expected", &*expected), ("ends", &*ends), ("limit", "5"), ("confirm", "5")];
    assert_eq!(
        scene.post(&path, &some).await.status,
        StatusCode::BAD_REQUEST,
        "only a replay may be of some"
    );
    let fields = [("expected", &*expected), ("ends", &*ends), ("confirm", "6")];
    let page = scene.ended(scene.post(&path, &fields).await).await;
    assert!(page.contains("6 of 6"), "{page}");
    let left =
        scene.mq.admin().dead_letters(&topic, &group).await.expect("letters").list(10).await.expect("a list");
    assert_eq!(left.iter().map(|letter| letter.error.as_str()).collect::<Vec<_>>(), ["later"]);
}

#[tokio::test]
async fn the_page_of_an_action_does_not_name_a_topic_that_its_reader_may_not_see() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let secret = Topic::<bytes::Bytes>::raw("secret");
    scene.mq.producer(secret).await.expect("created");
    let hides = || Access::read("bob").topic("secret".parse().expect("a name"), None);
    let access = move |parts: &Parts| {
        if parts.headers.contains_key("x-bob") { hides() } else { Access::admin("ann") }
    };
    let router = dashboard(scene.mq.clone()).access(access).router();
    let ends = "0:9999999999999-0,1:9999999999999-0";
    let fields = format!("to_topic=secret&expected=6&ends={ends}&confirm=6");
    let request = Request::post(format!("{BILLING}/dead/replay"))
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "application/x-www-form-urlencoded");
    let begun = answer(&router, request.body(Body::from(fields)).expect("a request")).await;
    assert_eq!(begun.status, StatusCode::SEE_OTHER, "{}", begun.body);
    let page = format!("/actions/{}", begun.location().rsplit('/').next().unwrap_or_default());
    assert!(ask(&router, Request::get(&page)).await.body.contains("secret"));
    let seen = ask(&router, Request::get(&page).header("x-bob", "1")).await;
    assert_eq!(seen.status, StatusCode::OK);
    assert!(!seen.body.contains("secret") && seen.body.contains("(hidden)"), "{}", seen.body);
}

#[tokio::test]
async fn a_letter_is_edited_and_replayed() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let path = format!("{BILLING}/dead/0/{}/edit", scene.place.letter);
    let form = scene.get(&path).await;
    assert!(form.body.contains("<textarea name=\"payload\""), "{}", form.body);
    let fields = [("payload", "mended\r\ntwice"), ("key", "k"), ("header", "repair=2"), ("breaks", "lf")];
    let page = scene.ended(scene.post(&path, &fields).await).await;
    assert!(page.contains("1 of 1") && page.contains("edited"), "{page}");
    let (seen, mut seen_by_test) = tokio::sync::mpsc::channel(10);
    let orders = Topic::<bytes::Bytes>::raw("orders").partitions(2);
    let consumer = scene.mq.consumer(orders, "billing").start(move |it: Delivery<bytes::Bytes>| {
        let seen = seen.clone();
        async move {
            let header = it.headers().get_str("repair").map(str::to_owned);
            let key = it.key().map(|key| String::from_utf8_lossy(key).into_owned());
            // The test ends when it has what it waits for.
            let _ = seen.send((it.payload.clone(), key, header)).await;
            Outcome::Ack
        }
    });
    let consumer = consumer.await.expect("started");
    let (payload, key, header) = seen_by_test.recv().await.expect("it comes");
    assert_eq!(
        (&payload[..], key.as_deref(), header.as_deref()),
        (&b"mended\ntwice"[..], Some("k"), Some("2"))
    );
    consumer.shutdown().await;
    assert_eq!(scene.get(&path).await.status, StatusCode::NOT_FOUND, "the letter is gone");
}

#[tokio::test]
async fn retries_are_run_now_and_given_up() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let topic: TopicName = "orders".parse().expect("a name");
    let waiting: GroupName = "waiting".parse().expect("a name");
    let id = &scene.place.message;
    let now = format!("{WAITING}/retries/now");
    let one = [("id", id.as_str()), ("partition", "0"), ("expected", "1"), ("confirm", "1")];
    let page = scene.ended(scene.post(&now, &one).await).await;
    assert!(page.contains("1 of 1"), "{page}");
    let kill = format!("{WAITING}/retries/kill");
    let confirm = scene.get(&kill).await;
    let expected = hidden(&confirm, "expected");
    let page = scene.ended(scene.post(&kill, &[("expected", &expected), ("confirm", &expected)]).await).await;
    assert!(page.contains("done"), "{page}");
    let dead = scene
        .mq
        .admin()
        .dead_letters(&topic, &waiting)
        .await
        .expect("letters")
        .count()
        .await
        .expect("a count");
    assert_eq!(dead.to_string(), expected);
}

#[tokio::test]
async fn tasks_that_die_after_the_count_are_not_purged() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let path = "/queues/mails/dead/purge";
    let confirm = scene.get(path).await;
    let (expected, until) = (hidden(&confirm, "expected"), hidden(&confirm, "until"));
    let purge = async |until: &str| {
        let fields = [("expected", &*expected), ("until", until), ("confirm", &*expected)];
        scene.ended(scene.post(path, &fields).await).await
    };
    let page = purge("2001-01-01").await;
    assert!(page.contains(&format!("0 of {expected}")), "all died later: {page}");
    let page = purge(&until).await;
    assert!(page.contains(&format!("{expected} of {expected}")), "{page}");
    assert!(scene.get("/queues/mails/dead").await.body.contains("No task is dead."));
}

#[tokio::test]
async fn delayed_messages_and_tasks_are_run_and_cancelled() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let orders = Topic::<bytes::Bytes>::raw("orders");
    let delayed = scene.mq.delayed(&orders).await.expect("delayed messages");
    let delay = [("id", TURNED), ("delay", "7200")];
    let before = delayed.get(TURNED).await.expect("read").expect("it waits").due;
    scene.ended(scene.post("/topics/orders/delayed/reschedule", &delay).await).await;
    assert!(delayed.get(TURNED).await.expect("read").expect("it waits").due > before);
    scene.ended(scene.post("/topics/orders/delayed/cancel", &[("id", TURNED)]).await).await;
    assert!(delayed.get(TURNED).await.expect("read").is_none());
    let gone = scene.ended(scene.post("/topics/orders/delayed/now", &[("id", TURNED)]).await).await;
    assert!(gone.contains("it does not wait (any more)"), "{gone}");

    scene.ended(scene.post("/queues/mails/now", &[("id", TURNED)]).await).await;
    let queue = scene.get("/queues/mails").await.body;
    assert!(queue.contains("Overdue"), "{queue}");
    scene.ended(scene.post("/queues/mails/cancel", &[("id", TURNED)]).await).await;
    assert_eq!(scene.get("/queues/mails").await.body.matches("No task waits.").count(), 1);
    let gone = scene.ended(scene.post("/queues/mails/cancel", &[("id", TURNED)]).await).await;
    assert!(gone.contains("it is nowhere"), "{gone}");
    let confirm = scene.get("/queues/mails/dead/replay").await;
    let expected = hidden(&confirm, "expected");
    assert_eq!(expected, "1");
    let fields = [("expected", "1"), ("confirm", "1")];
    let page = scene.ended(scene.post("/queues/mails/dead/replay", &fields).await).await;
    assert!(page.contains("1 of 1"), "{page}");
    assert!(scene.get("/queues/mails/dead").await.body.contains("No task is dead."));
}

#[tokio::test]
async fn schedules_and_locks_are_changed() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let path = "/topics/orders/schedules/change";
    scene.ended(scene.post(path, &[("id", TURNED), ("change", "pause")]).await).await;
    assert!(scene.get("/topics/orders/schedules").await.body.contains("paused"));
    scene.ended(scene.post(path, &[("id", TURNED), ("change", "resume")]).await).await;
    scene
        .ended(scene.post("/queues/mails/schedules/change", &[("id", TURNED), ("change", "now")]).await)
        .await;
    assert_eq!(scene.post(path, &[("id", TURNED), ("change", "x")]).await.status, StatusCode::BAD_REQUEST);

    let fence = scene.place.fence.to_string();
    let fields = |typed| [("name", "invoice:1"), ("fence", fence.as_str()), ("confirm", typed)];
    assert_eq!(scene.post("/locks/release", &fields("x")).await.status, StatusCode::BAD_REQUEST);
    assert!(scene.get("/locks").await.body.contains("invoice:1"));
    let page = scene.ended(scene.post("/locks/release", &fields("invoice:1")).await).await;
    assert!(page.contains("done"), "{page}");
    let state = scene.mq.admin().lock(&"invoice:1".parse().expect("a name")).await.expect("its state");
    assert_eq!(state.holder, None);
}

#[tokio::test]
async fn limits_are_shown_and_their_rules_set() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let permits = scene.mq.backend().permits().expect("limits").clone();
    let (key, ttl) = ("tenant:acme%20%26%20co".parse::<PermitKey>().expect("a key"), Duration::from_secs(60));
    for name in ["ann-1", "bob-1"] {
        let holder = PermitHolder::new(name).expect("a holder");
        permits.renew(&holder, ttl, &Continuity::new(ttl), true).await.expect("joined");
        let want = Want { key: key.clone(), units: 1, at_most: 1 };
        let steps = vec![Step::Takes(Take { wants: vec![want], waits: true })];
        permits.exchange(&Exchange { holder, number: 1, version: 0, steps }).await.expect("an answer");
    }
    let shown = scene.get("/limits").await.body;
    assert!(shown.contains(key.as_str()) && shown.contains("bob-1"), "{shown}");
    assert!(shown.contains("No rule is set"), "{shown}");
    assert!(!scene.get("/limits?prefix=other:").await.body.contains(key.as_str()));

    let set = [("pattern", key.as_str()), ("limit", "7")];
    scene.ended(scene.post("/limits/rule", &set).await).await;
    let rules = async || scene.mq.admin().limit_rules().await.expect("rules").rules;
    assert_eq!(rules().await, [(key.as_str().parse().expect("a pattern"), LimitBound::AtMost(7))]);
    let shown = scene.get("/limits").await.body;
    assert!(shown.contains("/limits/rule?pattern=tenant") && shown.contains("limit=7"), "{shown}");
    scene.ended(scene.post("/limits/rule", &[("pattern", key.as_str()), ("limit", "")]).await).await;
    assert_eq!(rules().await, []);
    let audit = scene.get("/audit").await.body;
    assert!(audit.contains("limits unset") && audit.contains("limit tenant:acme"), "{audit}");
}

#[tokio::test]
async fn what_is_redacted_is_nowhere() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let secret = bytes::Bytes::from_static(b"the-secret-payload");
    let orders = Topic::<bytes::Bytes>::raw("orders").partitions(2);
    let producer = scene.mq.producer(orders.clone()).await.expect("a producer");
    let sent =
        producer.send(&secret).key("the-secret-key").header("token", "the-secret-token").partition(0).await;
    let id = sent.expect("sent").id;
    let consumer = scene.mq.consumer(orders, "billing");
    let consumer =
        consumer.start(async |_: Delivery<bytes::Bytes>| Outcome::dead_letter("no")).await.expect("started");
    eventually("it is dead", async || consumer.report().dead == 1).await;
    consumer.shutdown().await;
    let (topic, group) = names();
    let letters = scene
        .mq
        .admin()
        .dead_letters(&topic, &group)
        .await
        .expect("letters")
        .list(100)
        .await
        .expect("a list");
    let letter = letters.iter().find(|letter| letter.error == "no").expect("the letter").id;

    let router = dashboard(scene.mq.clone())
        .access(|_| Access::admin("ann"))
        .redact(|origin| match origin {
            Origin::Topic(_) => Redaction::none().payload().key().header("token"),
            _ => Redaction::none(),
        })
        .router();
    let paths = [
        "/topics/orders/messages".to_owned(),
        format!("/topics/orders/messages/0/{id}"),
        format!("{BILLING}/dead/list"),
        format!("{BILLING}/dead/0/{letter}"),
        format!("{BILLING}/dead/replay"),
    ];
    for path in &paths {
        let request = || axum::http::Request::get(path);
        let open = ask(&scene.router, request()).await;
        let shown = ask(&router, request()).await;
        assert_eq!(shown.status, StatusCode::OK, "{path}");
        assert!(!shown.body.contains("the-secret"), "{path}");
        assert!(open.body.contains("the-secret") || path.ends_with("replay"), "{path}: it would be shown");
    }
    for path in [
        "/topics/orders/messages?payload=the-secret".to_owned(),
        "/topics/orders/messages?key=the-secret-key".to_owned(),
        "/topics/orders/messages?header=token=the".to_owned(),
        format!("/topics/orders/messages/0/{id}/payload"),
        format!("{BILLING}/dead/export"),
        format!("{BILLING}/dead/replay?payload=the"),
        format!("{BILLING}/dead/0/{letter}/edit"),
        format!("{WAITING}/retries?payload=the"),
    ] {
        let answer = ask(&router, axum::http::Request::get(&path)).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
    }
}

#[tokio::test]
async fn exports_and_payloads_are_files() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let export = scene.get(&format!("{BILLING}/dead/export")).await;
    assert_eq!(export.body.lines().count(), 6);
    let letter = millstream::admin::from_line(export.body.lines().next().expect("a line")).expect("a letter");
    assert_eq!(letter.group.as_str(), "billing");
    let payload = scene.get(&format!("/topics/orders/messages/0/{}/payload", scene.place.message)).await;
    assert_eq!(payload.body, super::place::NASTY);
    for file in [export, payload] {
        let name = file.headers.get("content-disposition").and_then(|it| it.to_str().ok()).expect("a name");
        assert!(name.starts_with("attachment; filename=\"orders-"), "{name}");
    }
}

#[tokio::test]
async fn a_message_is_found_for_each_group() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let (topic, later) = (names().0, "later".parse().expect("a name"));
    scene.mq.admin().create_group(&topic, &later, Start::Earliest).await.expect("created");
    let story = scene.get(&format!("/topics/orders/messages/0/{}", scene.place.message)).await.body;
    for words in ["dead letter", "waits for a retry", "not read yet"] {
        assert!(story.contains(words), "{words}: {story}");
    }
    let gone = scene.get("/topics/orders/messages/0/1-1").await.body;
    assert!(gone.contains("It is not in the log"), "{gone}");
}

#[tokio::test]
async fn a_running_action_shows_its_progress_and_is_stopped() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    let path = format!("{BILLING}/dead/replay");
    let confirm = scene.get(&path).await;
    let (expected, ends) = (hidden(&confirm, "expected"), hidden(&confirm, "ends"));
    // The second letter would follow the first one after a thousand seconds.
    let fields = [("rate", "0.001"), ("expected", &*expected), ("ends", &*ends), ("confirm", &*expected)];
    let begun = scene.post(&path, &fields).await;
    assert_eq!(begun.status, StatusCode::SEE_OTHER);
    let action = format!("/actions/{}", begun.location().rsplit('/').next().expect("an id"));
    let shows = async || scene.get(&action).await.body.contains("1 of 6");
    eventually("the first letter is replayed", shows).await;
    let page = scene.get(&action).await.body;
    assert!(page.contains("running") && page.contains("Stop"), "{page}");
    let page = scene.ended(scene.post(&format!("{action}/cancel"), &[]).await).await;
    for words in ["cancelled", "1 of 6", "stopped by ann"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let (topic, group) = names();
    let letters = scene.mq.admin().dead_letters(&topic, &group).await.expect("letters");
    assert_eq!(letters.count().await.expect("a count"), 5);
}
