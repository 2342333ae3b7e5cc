//! Progress: what a handler says of its work reaches whoever follows the message, and costs little.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::support::link::{Link, link};
use super::support::*;
use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::event::Ignore;
use millstream_core::policy::{Fixed, Never};
use millstream_core::{Backend, MessageResult, Reply};
use millstream_runtime::{
    Answer, Batch, Concurrency, ConsumerBuilder, Delivery, Follow, Followed, Layer, Next, Producer,
    Requested, Sharing,
};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

async fn ask(producer: &Producer<u64>, number: u64) -> Requested<u64> {
    producer.send(&number).reply::<u64>().begin().await.expect("stored")
}

/// Follows to the result. Returns attempt, fraction and text of each line.
async fn lines_of(mut follow: Follow) -> (Vec<(u32, Option<f64>, String)>, MessageResult) {
    let mut lines = Vec::new();
    loop {
        match follow.next().await.expect("no error") {
            Some(Followed::Progress(line)) => lines.push((line.attempt, line.fraction, line.text)),
            Some(Followed::Result(result)) => {
                assert_eq!(follow.next().await.expect("no error"), None, "behind the result");
                return (lines, result);
            }
            other => panic!("{other:?} before the result"),
        }
    }
}

fn line(attempt: u32, fraction: Option<f64>, text: &str) -> (u32, Option<f64>, String) {
    (attempt, fraction, text.to_owned())
}

fn consumer_over(backend: Backend) -> ConsumerBuilder<u64> {
    ConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(Ignore))
}

fn reports(cable: &Link) -> u64 {
    cable.calls().remove("report_progress").unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn whoever_follows_sees_the_work_of_each_attempt_and_then_the_result() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let requested = ask(&producer, 7).await;
    let early = tokio::spawn(lines_of(requested.follow()));
    let handler = async |number: Delivery<u64>| {
        number.log("begun");
        sleep(SECOND).await;
        number.progress(0.5, "half");
        if number.attempt() == 1 {
            return Err("once more");
        }
        sleep(SECOND).await;
        number.progress(1.0, "");
        number.log("written just before the end");
        Ok(Reply::json(&14))
    };
    let retry = Fixed::new(SECOND).attempts(3);
    let consumer = bench.consumer(NUMBERS, "g").retry(retry).start(handler).await.expect("a consumer");
    let (lines, result) = early.await.expect("no panic");
    let expected = [
        line(1, None, "begun"),
        line(1, Some(0.5), "half"),
        line(2, None, "begun"),
        line(2, Some(0.5), "half"),
        line(2, Some(1.0), ""),
        line(2, Some(1.0), "written just before the end"),
    ];
    assert_eq!(lines, expected);
    assert_eq!(result.decode::<u64>().expect("a number"), 14);
    // Who comes later sees the same, by the id alone.
    let (late, _) = lines_of(Follow::new(&bench.backend, &requested.id)).await;
    assert_eq!(late, expected);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_said_often_is_stored_seldom_and_without_a_request_never() {
    let bench = bench();
    let (cable, linked) = link(&bench.backend);
    let producer = bench.producer(NUMBERS).await;
    let handler = async |number: Delivery<u64>| {
        for step in 0..10_000_u32 {
            number.progress(f64::from(step + 1) / 10_000.0, "");
            if step % 1_000 == 0 {
                number.log(&format!("line {step}"));
            }
            sleep(Duration::from_millis(1)).await;
        }
        Reply::json(&1)
    };
    let consumer = consumer_over(linked).start(handler).await.expect("a consumer");
    let (lines, _) = lines_of(ask(&producer, 1).await.follow()).await;
    let texts: Vec<_> =
        lines.iter().filter(|(.., text)| !text.is_empty()).map(|(.., text)| &**text).collect();
    let expected: Vec<_> = (0..10).map(|at| format!("line {}", at * 1_000)).collect();
    assert_eq!(texts, expected);
    assert_eq!(lines.last().expect("a line").1, Some(1.0));
    let stored = reports(&cable);
    assert!((20..=45).contains(&stored), "{stored} requests in 10 s");
    producer.send(&2).await.expect("stored");
    while consumer.report().acked < 2 {
        sleep(SECOND).await;
    }
    assert_eq!(reports(&cable), 0, "nobody asks");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn batches_and_pulled_and_shared_messages_report_too() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let of_batch = async |batch: Batch<u64>| {
        batch.iter().for_each(|number| number.progress(1.0, &format!("in a batch: {}", number.payload)));
    };
    let consumer = bench.consumer(NUMBERS, "g").replies(true);
    let consumer = consumer.start_batch((10, Duration::ZERO), of_batch).await.expect("a consumer");
    let (one, two) = (ask(&producer, 1).await, ask(&producer, 2).await);
    assert_eq!(lines_of(one.follow()).await.0, [line(1, Some(1.0), "in a batch: 1")]);
    assert_eq!(lines_of(two.follow()).await.0, [line(1, Some(1.0), "in a batch: 2")]);
    consumer.shutdown().await;

    let puller = bench.consumer(NUMBERS, "g").replies(true).pull().await.expect("a puller");
    let requested = ask(&producer, 3).await;
    let pulled = puller.next().await.expect("a message");
    pulled.log("pulled");
    pulled.reply(Reply::json(&3));
    assert_eq!(lines_of(requested.follow()).await.0, [line(1, None, "pulled")]);
    puller.shutdown().await;

    let consumer = bench.consumer(NUMBERS, "others").concurrency(Concurrency::Unordered(8));
    let consumer = consumer.sharing(Sharing::Shared);
    let shared = async |number: Delivery<u64>| {
        number.log("shared");
        Reply::json(&4)
    };
    let consumer = consumer.start(shared).await.expect("a consumer");
    assert_eq!(lines_of(ask(&producer, 4).await.follow()).await.0, [line(1, None, "shared")]);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_stops_neither_the_handler_nor_whoever_follows() {
    let bench = bench();
    let (cable, linked) = link(&bench.backend);
    let (eyes, watching) = link(&bench.backend);
    let producer = bench.producer(NUMBERS).await;
    let away = cable.clone();
    let handler = move |number: Delivery<u64>| {
        let away = away.clone();
        async move {
            number.progress(0.1, "before");
            sleep(SECOND).await;
            away.away.store(true, Ordering::Relaxed);
            number.progress(0.2, "while the server is away");
            sleep(SECOND).await;
            away.away.store(false, Ordering::Relaxed);
            number.progress(0.3, "after");
            Reply::json(&1)
        }
    };
    let consumer = consumer_over(linked).start(handler).await.expect("a consumer");
    eyes.away.store(true, Ordering::Relaxed);
    let requested = ask(&producer, 1).await;
    let following = tokio::spawn(lines_of(Follow::new(&watching, &requested.id)));
    sleep(SECOND).await;
    eyes.away.store(false, Ordering::Relaxed);
    let lines = [
        line(1, Some(0.1), "before"),
        line(1, Some(0.2), "while the server is away"),
        line(1, Some(0.3), "after"),
    ];
    assert_eq!(following.await.expect("no panic").0, lines);
    // Where the lines alone cannot be stored, the message is settled all the same.
    cable.hang("report_progress");
    let asked = Instant::now();
    let reply = ask(&producer, 2).await.within(SECOND * 30).await;
    assert_eq!(reply.expect("a reply"), 1);
    assert!(asked.elapsed() < SECOND * 5, "{:?}", asked.elapsed());
    consumer.shutdown().await;
}

/// Passes every message on.
struct Around;

#[async_trait]
impl Layer for Around {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        next.run(delivery).await
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_said_last_costs_it_no_time_and_is_there_if_it_timed_out() {
    let bench = bench();
    let (cable, linked) = link(&bench.backend);
    let producer = bench.producer(NUMBERS).await;
    let handler = async |number: Delivery<u64>| {
        number.log("begun");
        sleep(SECOND - Duration::from_millis(100)).await;
        number.log("last words");
        match number.payload {
            0 => sleep(SECOND).await,
            1 => panic!("told to"),
            _ => {}
        }
        Reply::json(&number.payload)
    };
    let consumer = consumer_over(linked).layer(Around).handler_timeout(SECOND).retry(Never);
    let consumer = consumer.start(handler).await.expect("a consumer");
    for (number, reason) in [(0, "exhausted"), (1, "exhausted")] {
        let (lines, result) = lines_of(ask(&producer, number).await.follow()).await;
        assert_eq!(lines, [line(1, None, "begun"), line(1, None, "last words")], "{number}");
        assert!(format!("{result:?}").starts_with(&format!("Failed({reason}")), "{result:?}");
    }
    // A single failure at the end.
    cable.fail_once("report_progress");
    let (lines, _) = lines_of(ask(&producer, 2).await.follow()).await;
    assert_eq!(lines.last().expect("a line").2, "last words");
    // The server takes no progress: the handler that ended in time did.
    cable.hang("report_progress");
    let reply = ask(&producer, 3).await.within(SECOND * 30).await;
    assert_eq!(reply.expect("a reply"), 3);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_does_not_reply_says_nothing_and_late_words_are_not_stored() {
    let bench = bench();
    let (cable, linked) = link(&bench.backend);
    let producer = bench.producer(NUMBERS).await;
    let audit = consumer_over(linked.clone()).start(async |number: Delivery<u64>| number.log("audited"));
    let audit = audit.await.expect("a consumer");
    let _ = ask(&producer, 1).await;
    while audit.report().acked < 1 {
        sleep(SECOND).await;
    }
    assert_eq!(reports(&cable), 0, "it is not there to reply");
    audit.shutdown().await;
    let late = ConsumerBuilder::new(linked, NUMBERS, "late", Arc::new(Ignore));
    let late = late.start(async |number: Delivery<u64>| {
        let words = number.clone();
        tokio::spawn(async move {
            sleep(SECOND).await;
            words.log("behind the settlement");
        });
        Reply::json(&1)
    });
    let late = late.await.expect("a consumer");
    assert_eq!(ask(&producer, 2).await.within(SECOND * 30).await.expect("a reply"), 1);
    sleep(SECOND * 5).await;
    assert_eq!(reports(&cable), 0, "the message is settled");
    late.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_there_is_found_without_a_wait_and_though_lines_cannot_be_read() {
    let bench = bench();
    let (cable, linked) = link(&bench.backend);
    let producer = bench.producer(NUMBERS).await;
    let requested = ask(&producer, 1).await;
    let handler = async |number: Delivery<u64>| {
        number.log("a line");
        Reply::json(&number.payload)
    };
    let consumer = bench.consumer(NUMBERS, "g").start(handler).await.expect("a consumer");
    requested.within(SECOND * 30).await.expect("a reply");
    let (lines, _) = lines_of(requested.follow().within(Duration::ZERO)).await;
    assert_eq!(lines, [line(1, None, "a line")]);
    // Of another one that has said nothing.
    let silent = bench.consumer(NUMBERS, "silent").start(async |_: Delivery<u64>| Reply::json(&2));
    let silent = silent.await.expect("a consumer");
    consumer.shutdown().await;
    let other = ask(&producer, 2).await;
    other.within(SECOND * 30).await.expect("a reply");
    assert_eq!(lines_of(other.follow().within(Duration::ZERO)).await.0, []);
    cable.refuse("progress");
    assert_eq!(lines_of(Follow::new(&linked, &other.id)).await.0, [], "the result is what counts");
    silent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn who_follows_what_never_ends_stops_in_time() {
    let bench = bench();
    let requested = ask(&bench.producer(NUMBERS).await, 1).await;
    let begun = Instant::now();
    let mut follow = requested.follow().within(SECOND * 3);
    assert_eq!(follow.next().await.expect("no error"), None);
    assert!((SECOND * 3..SECOND * 4).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}
