//! Several message types in one topic.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::*;
use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::codec::Raw;
use millstream_core::event::Cause;
use millstream_core::policy::{Fixed, Never};
use millstream_core::{Check, ErrorKind, Limits, Outcome, Reason, Topic};
use millstream_runtime::extract::{Attempt, Payload, State, with_state};
use millstream_runtime::{Answer, Delivery, Layer, Next, Router, TYPE_HEADER, Timeout, Trace, test};

const EVENTS: Topic<Bytes> = Topic::raw("numbers").partitions(1);
const OTHERS: Topic<Bytes> = Topic::raw("others").partitions(1);

/// What handlers got, in order.
type Log = Arc<Mutex<Vec<String>>>;

fn log(log: &Log, what: impl Into<String>) {
    log.lock().expect("lock").push(what.into());
}

fn lines(log: &Log) -> Vec<String> {
    log.lock().expect("lock").clone()
}

async fn count(State(seen): State<Log>, Attempt(attempt): Attempt, Payload(number): Payload<u64>) -> Outcome {
    log(&seen, format!("count {number} {attempt}"));
    if attempt == 1 { Outcome::retry("the first time") } else { Outcome::Ack }
}

fn router(seen: &Log) -> Router {
    let names = seen.clone();
    Router::new().on("count", with_state(seen.clone(), count)).on("name", move |name: Delivery<String>| {
        log(&names, format!("name {} {}", name.payload, name.attempt()));
        async {}
    })
}

/// Notes the size of each payload.
struct Sizes(Log);

#[async_trait]
impl Layer for Sizes {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        log(&self.0, format!("{} bytes", delivery.payload.len()));
        next.run(delivery).await
    }
}

#[tokio::test(start_paused = true)]
async fn each_type_has_its_handler_with_retries_layers_and_arguments() {
    let (bench, seen) = (bench(), Log::default());
    let all = bench.producer(EVENTS).await;
    let (counts, names) = (all.typed::<u64>("count"), all.typed::<String>("name"));
    counts.send(&123).key("k").await.expect("stored");
    names.send(&"ada".to_owned()).key("k").await.expect("stored");
    let builder = bench.consumer(EVENTS, "g").retry(Fixed::new(MS(10)).attempts(2));
    let builder = builder.layer(Sizes(seen.clone())).layer(Timeout::new(Duration::from_secs(1)));
    let consumer = builder.start_router(router(&seen)).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.retried, report.dead), (2, 1, 0));
    let expected =
        ["3 bytes", "count 123 1", "5 bytes", "name ada 1", "3 bytes", "count 123 2"].map(str::to_owned);
    assert_eq!(lines(&seen), expected);
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_an_hour_runs_once_inside_of_layers() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let (bench, seen) = (bench(), Log::default());
    bench.producer(EVENTS).await.typed::<u64>("slow").send(&1).await.expect("stored");
    let mut consumers = Vec::new();
    for member in ["a", "b"] {
        let seen = seen.clone();
        let router = Router::new().on("slow", move |_: Delivery<u64>| {
            log(&seen, member);
            tokio::time::sleep(HOUR)
        });
        let builder = bench.consumer(EVENTS, "g").layer(Trace::new()).layer(Sizes(Log::default()));
        let consumer = builder.layer(Timeout::new(HOUR * 2)).start_router(router).await.expect("started");
        consumers.push(consumer);
    }
    consumers[0].wait_idle().await.expect("idle");
    let mut acked = 0;
    for consumer in consumers {
        acked += consumer.shutdown().await.acked;
    }
    assert_eq!((acked, lines(&seen).len()), (1, 1), "{:?}", lines(&seen));
}

#[tokio::test(start_paused = true)]
async fn a_type_without_a_handler_is_a_dead_letter_with_its_bytes_until_a_consumer_knows_it() {
    let (bench, seen) = (bench(), Log::default());
    let all = bench.producer(EVENTS).await;
    let long = "ä".repeat(500);
    all.typed::<u64>("new").send(&1).await.expect("stored");
    all.typed::<u64>(&*long).send(&2).await.expect("stored");
    all.send(&Bytes::from_static(b"3")).await.expect("stored");
    all.send(&Bytes::from_static(b"4")).header(TYPE_HEADER, [0xff]).await.expect("stored");
    all.typed::<String>("count").send(&"planted".to_owned()).await.expect("stored");
    let builder = bench.consumer(EVENTS, "g").retry(Fixed::new(MS(10)));
    let consumer = builder.start_router(router(&seen)).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.dead, 5);
    assert_eq!(lines(&seen), [""; 0]);
    let letters = bench.dead("g").await.list(10).await.expect("listed");
    assert!(letters.iter().all(|letter| letter.reason == Reason::Undecodable && letter.attempts == 0));
    let errors: Vec<_> = letters.iter().map(|letter| letter.error.clone()).collect();
    assert_eq!(errors[0], "there is no handler for messages of the type \"new\"");
    assert_eq!(errors[1], format!("there is no handler for messages of the type \"{}\"…", "ä".repeat(64)));
    assert_eq!(errors[2], "there is no header \"millstream-type\", which names the type");
    assert_eq!(errors[3], "the header \"millstream-type\" is not text");

    let kept = letters[4].envelope(&Limits::default()).expect("a message");
    assert_eq!((letters[4].reason.as_str(), &kept.payload[..]), ("undecodable", &b"\"planted\""[..]));

    assert_eq!(bench.dead("g").await.replay_all().await.expect("replayed"), 5);
    let later = seen.clone();
    let newer = router(&seen).on("new", move |new: Delivery<u64>| {
        log(&later, format!("new {}", new.payload));
        async {}
    });
    let consumer = bench.consumer(EVENTS, "g").start_router(newer).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;
    assert_eq!(lines(&seen), ["new 1"]);
}

#[tokio::test(start_paused = true)]
async fn all_others_may_have_a_handler_and_another_header_may_name_the_type() {
    let (bench, seen) = (bench(), Log::default());
    let all = bench.producer(EVENTS).await;
    all.send(&Bytes::from_static(b"\xff")).await.expect("stored");
    all.send(&Bytes::from_static(b"raw")).header("ce_type", "raw").await.expect("stored");
    all.send(&Bytes::from_static(b"7"))
        .header("ce_type", "other")
        .header("ce_type", "raw")
        .await
        .expect("stored");
    let (raws, others) = (seen.clone(), seen.clone());
    let router = Router::by_header("ce_type").on_with("raw", &Raw, move |raw: Delivery<Bytes>| {
        log(&raws, format!("raw {:?}", raw.payload));
        async {}
    });
    let router = router.otherwise(move |other: Delivery<Bytes>| {
        log(&others, format!("other {:?}", other.payload));
        async { Outcome::dead_letter("not for us") }
    });
    let builder = bench.consumer(OTHERS, "g").retry(Never).also_router(EVENTS, router);
    let consumer = builder.start(async |_: Delivery<Bytes>| {}).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.dead), (1, 2));
    let expected = ["other b\"\\xff\"", "raw b\"raw\"", "other b\"7\""];
    assert_eq!(lines(&seen), expected, "the first of two headers counts");
}

#[tokio::test(start_paused = true)]
async fn a_check_sees_the_bytes_and_a_handler_that_panics_or_hangs_fails_alone() {
    let (bench, seen) = (bench(), Log::default());
    let all = bench.producer(EVENTS).await;
    for kind in ["panics", "hangs", "fine"] {
        all.typed::<u64>(kind).send(&1).await.expect("stored");
    }
    let checked = seen.clone();
    let router = Router::new()
        .on(
            "panics",
            |number: Delivery<u64>| async move { assert_eq!(number.payload, 0, "a handler panics") },
        )
        .on("hangs", |_: Delivery<u64>| std::future::pending::<()>())
        .on("fine", |_: Delivery<u64>| async {});
    let builder = bench.consumer(EVENTS, "g").retry(Fixed::new(MS(10)).attempts(2)).handler_timeout(MS(100));
    let builder = builder.check(move |delivery: Delivery<Bytes>| {
        log(&checked, delivery.headers().get_str(TYPE_HEADER).expect("a type"));
        async { Check::Run }
    });
    let consumer = builder.start_router(router).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.retried, report.dead), (1, 2, 2));
    assert_eq!(lines(&seen), ["panics", "hangs"], "before the second attempts");
}

#[tokio::test]
async fn a_router_is_checked_when_the_consumer_starts() {
    let bench = bench();
    let twice = || Router::new().on("a", |_: Delivery<u64>| async {}).on("a", |_: Delivery<u64>| async {});
    let empty = || Router::new().on("", |_: Delivery<u64>| async {}).otherwise(|_: Delivery<Bytes>| async {});
    let unnamed = || Router::by_header("").otherwise(|_: Delivery<Bytes>| async {});
    for (router, why) in [
        (twice(), "type \"a\" has two handlers in a router"),
        (empty(), "a type of a router is empty"),
        (unnamed(), "the header of a router has no name"),
        (Router::new(), "a router has no handler"),
    ] {
        let error = bench.consumer(EVENTS, "g").start_router(router).await.map(drop).expect_err(why);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(why), "{error}");
    }
    let also = bench.consumer(OTHERS, "g").also_router(EVENTS, twice()).also_router(OTHERS, Router::new());
    let error = also.start(async |_: Delivery<Bytes>| {}).await.map(drop).expect_err("both");
    for why in ["two handlers", "topic others is there twice"] {
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn the_type_of_a_message_is_named_once() {
    let all = bench().producer(EVENTS).await;
    for (kind, send) in [("", false), ("a", true)] {
        let typed = all.typed::<u64>(kind);
        let mut message = typed.send(&1);
        if send {
            message = message.header(TYPE_HEADER, "b");
        }
        let error = message.await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{kind:?}");
    }
}

#[tokio::test]
async fn a_test_passes_messages_to_a_router() {
    let seen = Log::default();
    let router = router(&seen);
    let message = |kind: &'static str, payload: &'static str| {
        test::delivery(Bytes::from_static(payload.as_bytes())).header(TYPE_HEADER, kind)
    };
    let first = router.handle(message("count", "1").build()).await;
    assert_eq!((first.cause(), first.is_done()), (Some(Cause::Error), false));
    assert!(router.handle(message("count", "1").attempt(2).build()).await.is_done());
    for (kind, payload) in [("count", "x"), ("unknown", "1")] {
        let answer = router.handle(message(kind, payload).build()).await;
        assert_eq!(answer.cause(), Some(Cause::Undecodable), "{kind}");
    }
    assert_eq!(lines(&seen), ["count 1 1", "count 1 2"]);
}
