//! The audit log: a topic that all processes share.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures_util::StreamExt;
use millstream::admin::{Browse, Message};
use millstream::crates::core::log::Append;
use millstream::crates::core::{Limits, wire};
use millstream::{Envelope, Retention, Topic, TopicChange, TopicName, TopicPartition};
use millstream_dashboard::{Access, Origin, Redaction, dashboard};
use serde_json::Value;
use tower::ServiceExt;

use super::place::eventually;
use super::support::{Scene, ask};

const TOPIC: &str = "millstream-audit";
const EXPORTS: &str = "millstream-audit-exports";
const BILLING: &str = "/topics/orders/groups/billing";

fn name(of: &str) -> TopicName {
    of.parse().expect("a name")
}

/// Entries as they are stored, oldest first.
async fn stored(scene: &Scene, topic: &str) -> Vec<Value> {
    let read = |message: &Message| {
        let envelope = message.decode(&Limits::default()).envelope.expect("a message");
        serde_json::from_slice(&envelope.payload).expect("JSON")
    };
    match scene.mq.admin().messages(&name(topic), &Browse::default()).await {
        Ok(found) => found.messages.iter().map(read).collect(),
        Err(_) => Vec::new(),
    }
}

/// Replays the letters whose error contains a word, and returns the entries of that.
async fn replay(scene: &Scene) -> Vec<Value> {
    let path = format!("{BILLING}/dead/replay");
    let confirm = scene.get(&format!("{path}?payload=script&key=x")).await;
    assert_eq!(confirm.status, StatusCode::OK);
    let fields = [
        ("payload", "script"),
        ("from", "2h"),
        ("rate", "500"),
        ("expected", "6"),
        ("ends", "0:9999999999999-0,1:9999999999999-0"),
        ("confirm", "6"),
    ];
    assert_eq!(scene.post(&path, &fields).await.status, StatusCode::SEE_OTHER);
    eventually("its end is stored", async || stored(scene, TOPIC).await.len() == 2).await;
    stored(scene, TOPIC).await
}

#[tokio::test]
async fn an_entry_says_who_did_what_to_what_and_how_much_of_it() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    assert!(stored(&scene, TOPIC).await.is_empty(), "the topic is created with the first action");
    let entries = replay(&scene).await;
    let [begin, end] = &entries[..] else { panic!("{entries:?}") };
    for entry in [begin, end] {
        assert_eq!(entry["user"], "ann");
        assert_eq!((&entry["action"], &entry["version"]), (&"dlq replay".into(), &1.into()));
        assert_eq!((&entry["topic"], &entry["group"]), (&"orders".into(), &"billing".into()));
        assert_eq!(entry["select"]["payload"], "script");
        assert_eq!(entry["select"]["up_to"], "0:9999999999999-0,1:9999999999999-0");
        let from = entry["select"]["from"].as_str().expect("text");
        assert!(from.ends_with('Z') && from.starts_with("20"), "an absolute time: {from}");
        assert_eq!(entry["settings"]["rate"], "500");
        assert_eq!(entry["asked"], 6);
    }
    assert_eq!((&begin["event"], &end["event"]), (&"begin".into(), &"end".into()));
    assert_eq!(begin["id"], end["id"]);
    assert_eq!(begin["id"].as_str().map(str::len), Some(32), "a random id");
    assert_eq!((&end["result"], &end["done"]), (&"done".into(), &6.into()));
    assert_eq!(end["began"], begin["time"]);
    let spec = scene.mq.admin().topic(&name(TOPIC)).await.expect("the topic");
    assert_eq!((spec.partitions, spec.retention), (1, Retention::Length(10_000)));
}

fn router(scene: &Scene, access: impl Fn() -> Access + Send + Sync + 'static) -> Router {
    dashboard(scene.mq.clone())
        .access(move |_| access())
        .redact(|origin| match origin {
            Origin::Topic(topic) if topic.as_str() == "orders" => Redaction::none().payload(),
            _ => Redaction::none(),
        })
        .router()
}

async fn page(router: &Router) -> String {
    ask(router, Request::get("/audit")).await.body
}

#[tokio::test]
async fn another_process_shows_it_as_far_as_its_user_may_see_it() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    replay(&scene).await;
    let mine = scene.get("/audit").await.body;
    assert!(mine.contains("payload = script") && mine.contains("href=\"./actions/"), "{mine}");
    assert_eq!(mine.matches("dlq replay").count(), 1, "an action is one row: {mine}");
    let other = router(&scene, || Access::read("bob"));
    let shown = page(&other).await;
    assert!(shown.contains("dlq replay") && shown.contains("ann") && shown.contains("done"), "{shown}");
    assert!(shown.contains("payload = (redacted)") && !shown.contains("actions/"), "{shown}");
    let hidden = router(&scene, || Access::admin("eve").topic(name("orders"), None));
    let shown = page(&hidden).await;
    assert!(shown.contains("Nothing was changed yet") && !shown.contains("orders"), "{shown}");
    for path in [format!("/topics/{TOPIC}"), format!("/topics/{TOPIC}/messages")] {
        let refused = ask(&hidden, Request::get(&path)).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}: it has entries about all topics");
        assert_eq!(ask(&other, Request::get(&path)).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn where_no_entry_can_be_stored_what_relieves_goes_on_and_all_else_is_refused() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let (topic, group) = (name("orders"), "billing".parse().expect("a name"));
    // There is room for one entry: the beginning of the first action.
    let full = Topic::<bytes::Bytes>::raw(TOPIC).max_length(1);
    scene.mq.producer(full).to_our_own_topic().await.expect("created");
    let is_paused =
        async || scene.mq.admin().group_state(&topic, &group).await.expect("its state").paused.is_some();
    assert_eq!(scene.post(&format!("{BILLING}/pause"), &[]).await.status, StatusCode::SEE_OTHER);
    eventually("it is paused, though the end is not stored", is_paused).await;
    let fields = [("expected", "6"), ("ends", "0:9999999999999-0,1:9999999999999-0"), ("confirm", "6")];
    let refused = scene.post(&format!("{BILLING}/dead/replay"), &fields).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    let why = "nothing was changed, since the audit log cannot be written";
    assert!(refused.body.contains(why), "{}", refused.body);
    // Exports have a topic of their own.
    assert_eq!(scene.get(&format!("{BILLING}/dead/export")).await.status, StatusCode::OK);

    let answer = scene.post(&format!("{BILLING}/resume"), &[]).await;
    scene.ended(answer).await;
    assert!(!is_paused().await, "it is resumed");
    let purge = scene.post(&format!("{BILLING}/dead/purge"), &fields).await;
    assert!(scene.ended(purge).await.contains("dlq purge"));
    assert_eq!(stored(&scene, TOPIC).await.len(), 1);
    let shown = scene.get("/audit").await.body;
    assert!(shown.contains("entries are not stored") && shown.contains("dlq purge"), "{shown}");

    let room = TopicChange::new().max_length(None);
    scene.mq.admin().alter_topic(&name(TOPIC), &room).await.expect("altered");
    // The next one comes behind those that wait.
    let answer = scene.post(&format!("{BILLING}/pause"), &[]).await;
    scene.ended(answer).await;
    let all = stored(&scene, TOPIC).await;
    let said: Vec<_> =
        all.iter().map(|it| format!("{} {}", it["action"], it["event"]).replace('"', "")).collect();
    let of = |action: &str| ["begin", "end"].map(|event| format!("{action} {event}"));
    let expected = [of("group pause"), of("group resume"), of("dlq purge"), of("group pause")].concat();
    assert_eq!(said, expected);
    assert!(!scene.get("/audit").await.body.contains("not stored"));
}

#[tokio::test]
async fn exports_take_no_room_of_changes_and_are_added_up() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let answer = scene.post(&format!("{BILLING}/pause"), &[]).await;
    scene.ended(answer).await;
    for number in 0..20 {
        let export = scene.get(&format!("{BILLING}/dead/export?error=script&x={number}")).await;
        assert_eq!(export.status, StatusCode::OK);
    }
    eventually("the first one is stored", async || stored(&scene, EXPORTS).await.len() == 2).await;
    assert_eq!(stored(&scene, TOPIC).await.len(), 2, "those of the change");
    let shown = scene.get("/audit?of=exports").await.body;
    assert!(shown.contains("dlq export") && !shown.contains("group pause"), "{shown}");
    assert!(!scene.get("/audit").await.body.contains("dlq export"));
    let foreign = Request::get(format!("{BILLING}/dead/export")).header("sec-fetch-site", "cross-site");
    assert_eq!(ask(&scene.router, foreign).await.status, StatusCode::FORBIDDEN);
}

/// Ten minutes later the others are one entry: once the last of them has ended, and with what became of them.
#[tokio::test]
async fn the_sum_of_exports_waits_for_the_last_and_tells_how_they_ended() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let export = || Request::get(format!("{BILLING}/dead/export")).body(Body::empty()).expect("a request");
    let begin = async || {
        let response = scene.router.clone().oneshot(export()).await.expect("it cannot fail");
        let mut body = response.into_body().into_data_stream();
        body.next().await.expect("the first letters").expect("read");
        body
    };
    drop(begin().await);
    eventually("the first one is stored", async || stored(&scene, EXPORTS).await.len() == 2).await;
    let (mut ends, leaves) = (begin().await, begin().await);
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(601)).await;
    tokio::time::resume();
    // One that comes now is the first of the next sum.
    drop(begin().await);
    eventually("it is stored", async || stored(&scene, EXPORTS).await.len() == 4).await;
    while ends.next().await.is_some() {}
    drop((ends, leaves));
    eventually("the sum is stored", async || stored(&scene, EXPORTS).await.len() == 5).await;
    let entries = stored(&scene, EXPORTS).await;
    let sum = entries.iter().find(|it| it["asked"] == 2).expect("a sum of two");
    assert_eq!(
        (&sum["result"], &sum["error"]),
        (&"cancelled".into(), &"0 failed and 1 were cancelled".into())
    );
    assert!(sum["done"].as_u64() > Some(0), "{sum}");
}

#[tokio::test]
async fn the_topic_is_the_one_that_was_set_or_none() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let pause = || {
        let request = Request::post(format!("{BILLING}/pause")).header("sec-fetch-site", "same-origin");
        request.header("content-type", "application/x-www-form-urlencoded")
    };
    let none = dashboard(scene.mq.clone())
        .access(|_| Access::admin("ann"))
        .audit_topic(None)
        .expect("none")
        .router();
    assert_eq!(ask(&none, pause()).await.status, StatusCode::SEE_OTHER);
    assert!(page(&none).await.contains("group pause"), "those of the process");
    assert!(scene.mq.admin().topic(&name(TOPIC)).await.is_err(), "no topic");
    let changes = "millstream-audit-changes";
    let other = dashboard(scene.mq.clone()).access(|_| Access::admin("ann")).audit_topic(name(changes));
    let other = other.expect("a name of an audit log").router();
    assert_eq!(ask(&other, pause()).await.status, StatusCode::SEE_OTHER);
    eventually("both are stored", async || stored(&scene, changes).await.len() == 2).await;
    assert!(page(&other).await.contains("in topic millstream-audit-changes"));
    // No other program would know that it may not send there.
    let refused =
        dashboard(scene.mq.clone()).audit_topic(name("changes")).expect_err("no name of an audit log");
    assert!(refused.to_string().contains("millstream-audit-changes is"), "{refused}");
    let refused = scene.mq.producer(Topic::<u8>::new(changes)).await.expect_err("its own topic");
    assert!(refused.to_string().contains("is the audit log of dashboards"), "{refused}");
}

#[tokio::test]
async fn an_export_is_recorded_with_its_end() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let export = scene.get(&format!("{BILLING}/dead/export?error=script")).await;
    assert_eq!(export.status, StatusCode::OK);
    eventually("its end is stored", async || stored(&scene, EXPORTS).await.len() == 2).await;
    let entries = stored(&scene, EXPORTS).await;
    assert_eq!((&entries[1]["action"], &entries[1]["result"]), (&"dlq export".into(), &"done".into()));
    assert_eq!(entries[1]["done"], export.body.lines().count());
    assert_eq!(entries[0]["select"]["error"], "script");
}

#[tokio::test]
async fn an_export_whose_client_leaves_is_recorded_with_what_it_got() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let request = Request::get(format!("{BILLING}/dead/export")).body(Body::empty()).expect("a request");
    let response = scene.router.clone().oneshot(request).await.expect("it cannot fail");
    let mut body = response.into_body().into_data_stream();
    let first = body.next().await.expect("the first letters").expect("read");
    drop(body);
    eventually("its end is stored", async || stored(&scene, EXPORTS).await.len() == 2).await;
    let entries = stored(&scene, EXPORTS).await;
    assert_eq!(entries[1]["result"], "cancelled");
    assert_eq!(entries[1]["done"], first.iter().filter(|byte| **byte == b'\n').count());
}

#[tokio::test]
async fn it_is_read_in_pages_and_what_is_no_entry_is_shown_as_such() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let topic = Topic::<bytes::Bytes>::raw(TOPIC);
    let producer = scene.mq.producer(topic).to_our_own_topic().await.expect("created");
    let entry = |number: u32, event: &str| {
        let text = format!(
            r#"{{"version":1,"event":"{event}","id":"{number}","time":"","user":"user-{number}","action":"group pause"}}"#
        );
        bytes::Bytes::from(text)
    };
    producer.send(&bytes::Bytes::from_static(b"<script>")).await.expect("sent");
    for number in 0..150 {
        producer.send(&entry(number, "begin")).await.expect("sent");
        producer.send(&entry(number, "end")).await.expect("sent");
    }
    let first = scene.get("/audit").await;
    assert!(first.body.contains("user-149") && first.body.contains("user-50"), "{}", first.body);
    assert!(!first.body.contains("user-49<"), "a page");
    assert!(first.body.contains("data-live"), "the newest page is refreshed");
    let older = first.body.split("href=\"").map(|it| it.split('"').next().unwrap_or_default());
    let older = older.filter(|it| it.contains("after=")).last().expect("a link to older ones");
    let second = scene.get(older.trim_start_matches('.')).await;
    assert!(second.body.contains("user-49") && second.body.contains("user-0<"), "{}", second.body);
    assert!(!second.body.contains("user-50<") && second.body.contains("no entry"), "{}", second.body);
    assert!(!second.body.contains("data-live"));
    assert_eq!(scene.get("/audit?after=x").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn entries_that_are_not_kept_are_dropped_with_the_first_entry_of_a_process_and_every_hundredth_after_it()
 {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let length = async || {
        let all = [TopicPartition::new(name(TOPIC), 0)];
        scene.mq.backend().log().lengths(&all).await.expect("a length")[0]
    };
    let act = async |router: &Router, number: u32| {
        let change = if number.is_multiple_of(2) { "pause" } else { "resume" };
        let request = Request::post(format!("{BILLING}/{change}")).header("sec-fetch-site", "same-origin");
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let answer = ask(router, request).await;
        let page = answer.location().trim_start_matches("../").to_owned();
        let is_over = async || !ask(router, Request::get(format!("/{page}"))).await.body.contains("running");
        eventually("it ends", is_over).await;
    };
    // The topic has the retention with which the dashboard creates it.
    act(&scene.router, 0).await;
    // Past producers, which would trim.
    let (log, topic_partition) = (scene.mq.backend().log(), TopicPartition::new(name(TOPIC), 0));
    let entry = |number: u32| {
        let fields = wire::encode(&Envelope::new(number.to_string()));
        Append::new(topic_partition.clone(), fields)
    };
    let fill: Vec<Append> = (0..10_100).map(entry).collect();
    for some in fill.chunks(500) {
        assert!(log.append(some).await.iter().all(Result::is_ok));
    }
    assert_eq!(length().await, 10_102);

    let other = dashboard(scene.mq.clone()).access(|_| Access::admin("bob")).router();
    act(&other, 1).await;
    assert_eq!(length().await, 10_001, "those that were kept when it began, and its end");
    let oldest = Browse { limit: 1, ..Browse::default() };
    let oldest = scene.mq.admin().messages(&name(TOPIC), &oldest).await.expect("entries").messages;
    let envelope = oldest[0].decode(&Limits::default()).envelope.expect("a message");
    assert_eq!(&envelope.payload[..], b"101", "the newest ones are kept");
    assert!(page(&other).await.contains("bob"), "they are read");

    let shorter = TopicChange::new().retention(Retention::Length(10));
    scene.mq.admin().alter_topic(&name(TOPIC), &shorter).await.expect("altered");
    for number in 2..51 {
        act(&other, number).await;
    }
    assert_eq!(length().await, 10_099, "a hundred entries of this process");
    act(&other, 51).await;
    assert_eq!(length().await, 11);
}
