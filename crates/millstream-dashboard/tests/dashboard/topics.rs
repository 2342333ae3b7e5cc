//! Topics that users create, change, delete and verify.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, StatusCode};
use millstream::delay::Task;
use millstream::{
    DeadLetterRetention, Delivery, ErrorKind, Fixed, Outcome, Reply, Retention, Topic, TopicName,
};
use millstream_dashboard::{Access, Permission, Redaction, dashboard};
use tokio::sync::Semaphore;

use super::place::{FINDINGS, NASTY, eventually};
use super::support::{Scene, ask};

fn name(of: &str) -> TopicName {
    of.parse().expect("a name")
}

#[tokio::test]
async fn a_topic_is_created_once_and_with_valid_settings() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let fields = [
        ("name", "events"),
        ("partitions", "3"),
        ("retention", "age"),
        ("keep_time", "7d"),
        ("max_length", "1000"),
        ("dead_time", "30d"),
        ("dead_length", "50"),
    ];
    let but = |name: &str, value: &'static str| {
        fields.map(|(field, before)| (field, if field == name { value } else { before }))
    };
    for (field, value) in [
        ("name", ""),
        ("name", "no/name"),
        ("partitions", "0"),
        ("partitions", "16385"),
        ("retention", "x"),
        ("keep_time", "soon"),
        // Once a log is full, nothing would ever leave it.
        ("retention", "keep"),
    ] {
        let answer = scene.post("/create-topic", &but(field, value)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{field}={value}: {}", answer.body);
    }
    assert!(scene.mq.admin().topic(&name("events")).await.is_err(), "nothing was created");
    assert!(!scene.get("/overview").await.body.contains("events"));
    let page = scene.ended(scene.post("/create-topic", &fields).await).await;
    assert!(page.contains("done") && page.contains("topic create"), "{page}");
    let spec = scene.mq.admin().topic(&name("events")).await.expect("it is there");
    let days = |days: u64| std::time::Duration::from_secs(days * 86_400);
    assert_eq!((spec.partitions, spec.retention), (3, Retention::Age(days(7))));
    assert_eq!(spec.max_length, Some(1_000));
    assert_eq!(spec.dead_letter_retention, DeadLetterRetention::age(days(30)).and_length(50));
    assert!(scene.get("/overview").await.body.contains("events"), "it is listed at once");
    let again = scene.post("/create-topic", &but("partitions", "5")).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.body);
    assert_eq!(scene.mq.admin().topic(&name("events")).await.expect("it is there").partitions, 3);
}

#[tokio::test]
async fn a_packed_topic_is_created_and_changed() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let fields = [
        ("name", "metrics"),
        ("partitions", "1"),
        ("retention", "consumed"),
        ("packing", "none:2:100:65536"),
    ];
    scene.ended(scene.post("/create-topic", &fields).await).await;
    let page = scene.get("/topics/metrics").await.body;
    assert!(page.contains("2 to 100 together, up to 64.0 KiB, compression none"), "{page}");
    let path = "/topics/metrics/alter";
    let preview = scene.get(&format!("{path}?retention=consumed&packing=none%3A4%3A100%3A65536")).await.body;
    assert!(preview.contains("4 to 100 together"), "{preview}");
    let change = [("retention", "consumed"), ("packing", "none:4:100:65536"), ("confirm", "metrics")];
    scene.ended(scene.post(path, &change).await).await;
    let packing = scene.mq.admin().topic(&name("metrics")).await.expect("it is there").packing;
    assert_eq!(packing.map(|it| it.least()), Some(4));
    // One that is not packed cannot become so, and its form does not ask.
    assert!(!scene.get("/topics/orders/alter").await.body.contains("name=\"packing\""));
}

#[tokio::test]
async fn settings_are_changed_after_a_preview() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let path = "/topics/orders/alter";
    let now = scene.get(path).await.body;
    assert!(now.contains("value=\"keep\" selected") && now.contains("Add partitions"), "{now}");
    assert!(scene.get(&format!("{path}?retention=keep")).await.body.contains("these settings already"));
    let preview = scene.get(&format!("{path}?retention=length&keep_length=7&dead_time=30d")).await.body;
    for words in ["for ever", "the newest 7 of a partition", "whether they were read or not", "for 30 d"] {
        assert!(preview.contains(words), "{words}: {preview}");
    }
    let fields =
        |typed| [("retention", "length"), ("keep_length", "7"), ("dead_time", "30d"), ("confirm", typed)];
    assert_eq!(scene.post(path, &fields("order")).await.status, StatusCode::BAD_REQUEST);
    let before = scene.mq.admin().topic(&name("orders")).await.expect("the topic");
    assert_eq!(before.retention, Retention::Keep, "nothing was changed");
    let page = scene.ended(scene.post(path, &fields("orders")).await).await;
    assert!(
        page.contains("topic alter") && page.contains("<dt>retention</dt>") && page.contains("length:7"),
        "{page}"
    );
    let after = scene.mq.admin().topic(&name("orders")).await.expect("the topic");
    assert_eq!((after.retention, after.max_length), (Retention::Length(7), None));
    assert!(scene.get("/topics/orders").await.body.contains("the newest 7 of a partition"));

    let expand = |count, typed| [("partitions", count), ("confirm", typed)];
    let path = "/topics/orders/expand";
    for (count, typed) in [("1", "orders"), ("2", "orders"), ("16385", "orders"), ("4", "yes")] {
        let answer = scene.post(path, &expand(count, typed)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{count} {typed}: {}", answer.body);
    }
    let page = scene.ended(scene.post(path, &expand("4", "orders")).await).await;
    assert!(page.contains("done"), "{page}");
    assert_eq!(scene.mq.admin().topic(&name("orders")).await.expect("the topic").partitions, 4);
}

#[tokio::test]
async fn a_topic_is_deleted_unless_it_is_in_use() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let orders = Topic::<bytes::Bytes>::raw("orders").partitions(2);
    let consumer = scene.mq.consumer(orders, "billing");
    let consumer = consumer.start(async |_: Delivery<bytes::Bytes>| Outcome::Ack).await.expect("started");
    let path = "/topics/orders/delete";
    let preview = scene.get(path).await.body;
    for words in ["What is deleted", "Running consumers", "billing", "waiting"] {
        assert!(preview.contains(words), "{words}: {preview}");
    }
    assert_eq!(scene.post(path, &[("confirm", "yes")]).await.status, StatusCode::BAD_REQUEST);
    let wrong = [("in_use", "maybe"), ("confirm", "orders")];
    assert_eq!(scene.post(path, &wrong).await.status, StatusCode::BAD_REQUEST);
    let page = scene.ended(scene.post(path, &[("confirm", "orders")]).await).await;
    assert!(page.contains("failed") && page.contains("is in use by"), "{page}");
    assert!(scene.mq.admin().topic(&name("orders")).await.is_ok(), "nothing was deleted");
    consumer.shutdown().await;
    let page = scene.ended(scene.post(path, &[("confirm", "orders")]).await).await;
    assert!(page.contains("topic delete") && page.contains("done"), "{page}");
    let gone = scene.mq.admin().topic(&name("orders")).await.expect_err("it is gone");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    for path in ["/topics/orders", path, "/topics/orders/alter", "/topics/orders/verify"] {
        assert_eq!(scene.get(path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert!(!scene.get("/overview").await.body.contains("orders"), "it is not listed any more");
    assert!(scene.get("/audit").await.body.contains("topic delete"));
}

#[tokio::test]
async fn the_audit_log_is_not_changed_by_those_whom_it_records() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    scene.ended(scene.post("/topics/orders/groups/billing/pause", &[]).await).await;
    let audit = "/topics/millstream-audit";
    let confirm = ("confirm", "millstream-audit");
    for path in [format!("{audit}/delete"), format!("{audit}/alter"), format!("{audit}/expand")] {
        let fields = [confirm, ("retention", "length"), ("keep_length", "1"), ("partitions", "2")];
        assert_eq!(scene.post(&path, &fields).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(scene.get(&format!("{audit}/delete")).await.status, StatusCode::FORBIDDEN);
    assert!(!scene.get(audit).await.body.contains("Delete the topic"), "it offers what is refused");
    let spec = scene.mq.admin().topic(&name("millstream-audit")).await.expect("it is there");
    assert_eq!((spec.partitions, spec.retention), (1, Retention::Length(10_000)));
}

#[tokio::test]
async fn a_topic_with_rights_of_its_own_is_not_created_by_those_who_lack_them() {
    let right = || Access::admin("ann").topic("secret".parse().expect("a name"), Some(Permission::Read));
    let scene = Scene::new(right).await;
    let fields = |topic| [("name", topic), ("partitions", "1")];
    assert_eq!(scene.post("/create-topic", &fields("secret")).await.status, StatusCode::FORBIDDEN);
    assert!(scene.mq.admin().topic(&name("secret")).await.is_err());
    scene.ended(scene.post("/create-topic", &fields("open")).await).await;
    assert!(scene.mq.admin().topic(&name("open")).await.is_ok());
}

#[tokio::test]
async fn a_sound_topic_is_verified() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    let before = scene.get("/topics/orders/verify").await.body;
    assert!(before.contains("has not verified the topic") && before.contains("Verify now"), "{before}");
    let page = scene.ended(scene.post("/topics/orders/verify", &[]).await).await;
    assert!(page.contains("0 findings") && page.contains("Items examined"), "{page}");
    let result = scene.get("/topics/orders/verify").await.body;
    assert!(result.contains("sound") && result.contains("Nothing is wrong."), "{result}");
    assert!(!result.contains("Repair"), "nothing is to be repaired");
    let repair = scene.post("/topics/orders/repair", &[("confirm", "orders")]).await;
    assert_eq!(repair.status, StatusCode::FORBIDDEN, "that needs the right of an admin");
    assert_eq!(scene.get("/topics/nothing/verify").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn findings_are_counted_by_fault_and_repaired() {
    let scene = Scene::unsound(|| Access::admin("ann")).await;
    scene.ended(scene.post("/topics/orders/verify", &[]).await).await;
    let found = scene.get("/topics/orders/verify").await.body;
    let counts = found.find("By fault").expect("counts");
    assert!(counts < found.find("Findings, the first 10").expect("findings"), "the counts are first");
    for words in ["not sound", "the note is deleted", &format!("{FINDINGS}")] {
        assert!(found.contains(words), "{words}: {found}");
    }
    assert_eq!(found.matches("not repaired").count(), 11, "ten of one fault, and that of the other: {found}");
    let wrong = scene.post("/topics/orders/repair", &[("confirm", "yes")]).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    let page = scene.ended(scene.post("/topics/orders/repair", &[("confirm", "orders")]).await).await;
    assert!(page.contains("verify --repair") && page.contains(&format!("{FINDINGS} findings")), "{page}");
    let repaired = scene.get("/topics/orders/verify").await.body;
    assert!(repaired.contains("sound") && !repaired.contains("not repaired"), "{repaired}");
    scene.ended(scene.post("/topics/orders/verify", &[]).await).await;
    assert!(scene.get("/topics/orders/verify").await.body.contains("Nothing is wrong."));
    let audit = scene.get("/audit").await.body;
    assert!(audit.contains("verify --repair"), "{audit}");
}

#[tokio::test]
async fn the_page_of_a_message_shows_the_work_on_it_until_there_is_a_result() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let topic = Topic::<u64>::new("imports").retention(Retention::Keep);
    let producer = scene.mq.producer(&topic).await.expect("a producer");
    let requested = producer.send(&1).reply::<u64>().begin().await.expect("sent");
    let path = format!("/topics/imports/messages/{}/{}", requested.sent.partition.0, requested.sent.id);
    let page = scene.get(&path).await.body;
    assert!(page.contains("data-live") && page.contains("none: not yet"), "{page}");
    let go_on = Arc::new(Semaphore::new(0));
    let may = go_on.clone();
    let handler = move |rows: Delivery<u64>| {
        let may = may.clone();
        async move {
            rows.progress(0.4, &format!("page 12{NASTY}"));
            may.acquire().await.expect("open").forget();
            Reply::json(&rows.payload)
        }
    };
    let consumer = scene.mq.consumer(&topic, "g").start(handler).await.expect("a consumer");
    let shows = async |what: &str| scene.get(&path).await.body.contains(what);
    eventually("the work is shown", async || shows("page 12").await).await;
    let page = scene.get(&path).await.body;
    assert!(page.contains(r#"<progress max="1" value="0.4" aria-label="40.0 %">"#), "{page}");
    assert!(!page.contains("<script>window.owned"), "{page}");
    go_on.add_permits(1);
    eventually("the result is shown", async || shows("replied, 1 B").await).await;
    assert!(!scene.get(&path).await.body.contains("data-live"), "nothing changes any more");
    consumer.shutdown().await;
    let hidden = dashboard(scene.mq.clone()).access(|_| Access::admin("ann"));
    let hidden = hidden.redact(|_| Redaction::none().payload()).router();
    let page = ask(&hidden, Request::get(&path)).await.body;
    assert!(page.contains("40.0 %") && !page.contains("page 12"), "{page}");
}

#[tokio::test]
async fn the_page_of_a_task_shows_it_while_a_worker_has_it_and_when_it_comes_back() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let queue = scene.mq.delay_queue::<u64>("imports").await.expect("a queue");
    let requested = queue.schedule(&7).id("a/b").reply::<u64>().begin().await.expect("scheduled");
    let path = "/queues/imports/task?id=a%2Fb";
    assert!(scene.get(path).await.body.contains(">run now<"), "it waits");
    let go_on = Arc::new(Semaphore::new(0));
    let may = go_on.clone();
    let handler = move |task: Task<u64>| {
        let may = may.clone();
        async move {
            task.progress(0.5, "half of it");
            may.acquire().await.expect("open").forget();
            if task.attempt() == 1 { Err(format!("a secret{NASTY}")) } else { Ok(Reply::json(&task.payload)) }
        }
    };
    let worker =
        queue.worker().retry(Fixed::new(Duration::from_secs(3_600))).done_window(Duration::from_secs(60));
    let worker = worker.start(handler).await.expect("a worker");
    let shows = async |what: &str| scene.get(path).await.body.contains(what);
    eventually("its work is shown", async || shows("half of it").await).await;
    let page = scene.get(path).await.body;
    assert!(page.contains("a worker has it") && !page.contains(">run now<"), "{page}");
    go_on.add_permits(1);
    eventually("it comes back", async || shows("a secret").await).await;
    let page = scene.get(path).await.body;
    assert!(page.contains(">run now<") && !page.contains("<script>window.owned"), "{page}");
    let hidden = dashboard(scene.mq.clone()).access(|_| Access::admin("ann"));
    let hidden = hidden.redact(|_| Redaction::none().payload()).router();
    let page = ask(&hidden, Request::get(path)).await.body;
    assert!(
        page.contains("redacted") && !page.contains("a secret") && !page.contains("half of it"),
        "{page}"
    );
    queue.run_now("a/b").await.expect("due");
    go_on.add_permits(1);
    requested.within(Duration::from_secs(60)).await.expect("a reply");
    assert!(shows("Its id is free").await, "{}", scene.get(path).await.body);
    worker.shutdown().await;
}
