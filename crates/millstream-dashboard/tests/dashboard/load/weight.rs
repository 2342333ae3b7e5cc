//! Times of pages of a large topic, and the longest commands: to be run by hand, in release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use millstream::{Delivery, Millstream, Outcome, Record, Topic};
use millstream_dashboard::{Access, dashboard};
use tokio::time::Instant;
use tower::ServiceExt;

use crate::server::Server;

/// Number of partitions.
const PARTITIONS: u32 = 64;
/// Messages of a partition, unless `MILLSTREAM_MESSAGES` says otherwise.
const MESSAGES: usize = 10_000;
/// Number of topics of the large overview.
const TOPICS: usize = 2_000;
/// Number of looks at each page, each by a dashboard that has read nothing.
const LOOKS: usize = 20;
/// Messages that die in each group, unless `MILLSTREAM_DEAD` says otherwise.
const DEAD: usize = 2_000;

/// Returns the number that an environment variable has.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

async fn fill(mq: &Millstream, messages: usize, dead: usize) {
    let topic = Topic::<Bytes>::raw("orders").partitions(PARTITIONS).retention(millstream::Retention::Keep);
    let producer = mq.producer(topic.clone()).await.expect("a topic");
    let payload = Bytes::from(vec![b'x'; 100]);
    for partition in 0..PARTITIONS {
        let records = (0..messages).map(|_| Record::new(&payload).partition(partition));
        assert!(producer.send_all(records).await.iter().all(Result::is_ok));
    }
    for group in ["billing", "shipping"] {
        let left = Arc::new(AtomicUsize::new(dead));
        let die = move |_: Delivery<Bytes>| {
            let left = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            let outcome = left.map(|left| Outcome::dead_letter(format!("no such customer {left}")));
            std::future::ready(outcome.unwrap_or(Outcome::Ack))
        };
        let consumer = mq.consumer(topic.clone(), group).start(die).await.expect("started");
        while consumer.report().dead < dead as u64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        consumer.shutdown().await;
    }
}

/// Looks at a page, each time by a dashboard that has read nothing, and returns the median and the 95th percentile.
async fn look(mq: &Millstream, path: &str) -> (Duration, Duration) {
    let mut times = Vec::new();
    for _ in 0..LOOKS {
        let router = dashboard(mq.clone()).access(|_| Access::admin("ann")).router();
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let began = Instant::now();
        let answer = router.oneshot(request).await.expect("it cannot fail");
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        to_bytes(answer.into_body(), 16 << 20).await.expect("a body");
        times.push(began.elapsed());
    }
    times.sort_unstable();
    (times[LOOKS / 2], times[LOOKS * 95 / 100])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: cargo test --release -p millstream-dashboard --test dashboard -- --ignored --nocapture weight"]
async fn pages_of_a_large_topic_are_fast() {
    let server = Server::builder().arg("--slowlog-log-slower-than", "5000").start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let (messages, dead) = (number("MILLSTREAM_MESSAGES", MESSAGES), number("MILLSTREAM_DEAD", DEAD));
    fill(&mq, messages, dead).await;
    server.cli(&["SLOWLOG", "RESET"]);
    println!("{PARTITIONS} partitions of {messages} messages, {dead} dead letters");
    let group = "/topics/orders/groups/billing";
    let error = millstream::crates::core::Fingerprint::of("no such customer 7");
    let mut slow = Vec::new();
    for path in [
        "/overview".to_owned(),
        "/topics/orders".to_owned(),
        "/topics/orders/memory".to_owned(),
        "/topics/orders/messages".to_owned(),
        "/topics/orders/delayed".to_owned(),
        group.to_owned(),
        format!("{group}/pending"),
        format!("{group}/retries"),
        format!("{group}/dead"),
        format!("{group}/dead/list"),
        format!("{group}/dead/list?error=nothing"),
        format!("{group}/dead/replay"),
        format!("{group}/dead/replay?fingerprint={error}"),
        "/redis".to_owned(),
        "/audit".to_owned(),
    ] {
        let (middle, p95) = look(&mq, &path).await;
        println!("{path}: p50 {middle:.1?}, p95 {p95:.1?}");
        if p95 > Duration::from_millis(100) {
            slow.push(path);
        }
    }
    // As a tab does, though more often.
    let router = dashboard(mq.clone()).access(|_| Access::admin("ann")).router();
    let (began, mut pages) = (Instant::now(), 0);
    loop {
        let request = Request::get(format!("{group}/dead")).body(Body::empty()).expect("a request");
        let answer = router.clone().oneshot(request).await.expect("it cannot fail");
        let body = to_bytes(answer.into_body(), 16 << 20).await.expect("a body");
        pages += 1;
        if !String::from_utf8_lossy(&body).contains("so far") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("all letters are counted after {:.1?}, on page {pages}", began.elapsed());
    // So many topics are read for a look, and of so many the background has the state.
    for (topics, name) in [(100, "/overview of 100 topics"), (TOPICS, "/overview of 2,000 topics")] {
        let there = mq.admin().topics().await.expect("topics").len();
        for number in there..topics {
            let topic = Topic::<Bytes>::raw("small").named(format!("small-{number:04}")).partitions(1);
            mq.producer(topic).await.expect("a topic");
            let topic = format!("small-{number:04}").parse().expect("a name");
            for group in ["billing", "shipping"] {
                let group = group.parse().expect("a name");
                mq.admin().create_group(&topic, &group, millstream::Start::Earliest).await.expect("created");
            }
        }
        let (middle, p95) = look(&mq, "/overview").await;
        println!("{name}, from a dashboard that has read nothing: p50 {middle:.1?}, p95 {p95:.1?}");
        let router = dashboard(mq.clone()).access(|_| Access::admin("ann")).router();
        let (began, mut times) = (Instant::now(), Vec::new());
        while times.len() < LOOKS {
            let request = Request::get("/overview").body(Body::empty()).expect("a request");
            let asked = Instant::now();
            let answer = router.clone().oneshot(request).await.expect("it cannot fail");
            let body = to_bytes(answer.into_body(), 16 << 20).await.expect("a body");
            if !String::from_utf8_lossy(&body).contains("were read so far") {
                if times.is_empty() {
                    println!("all were read after {:.1?}; {} bytes", began.elapsed(), body.len());
                }
                times.push(asked.elapsed());
            }
            // Longer than a page is used.
            tokio::time::sleep(Duration::from_millis(2_100)).await;
        }
        times.sort_unstable();
        println!("{name}: p50 {:.1?}, p95 {:.1?}", times[LOOKS / 2], times[LOOKS * 95 / 100]);
        if p95.max(times[LOOKS * 95 / 100]) > Duration::from_millis(100) {
            slow.push(name.to_owned());
        }
    }
    println!("commands above 5 ms: {}", server.cli(&["SLOWLOG", "LEN"]));
    println!("{}", server.cli(&["SLOWLOG", "GET", "5"]).lines().take(40).collect::<Vec<_>>().join(" "));
    assert!(slow.is_empty(), "p95 above 100 ms: {slow:?}");
}
