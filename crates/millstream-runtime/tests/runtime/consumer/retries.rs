//! When and how a message comes back: snoozes, times, budgets, classes of errors, and what is remembered of failures.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::scenario::*;
use crate::support::*;
use millstream_core::policy::{ByError, Exponential, Fixed, Never, Within};
use millstream_core::{Outcome, Reason, Timestamp};
use millstream_runtime::{Batch, Concurrency, Consumer, ConsumerBuilder, Delivery, RetryOrder, Sharing};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// What a handler saw: when, of which value, as which attempt, with which last error and history.
type Saw = (Duration, u64, u32, Option<String>, String);

/// Records its calls, and returns scripted outcomes.
#[derive(Clone)]
struct HandlerLog(Arc<Mutex<Vec<Saw>>>, Instant);

impl HandlerLog {
    fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    fn see(&self, delivery: &Delivery<u64>) {
        let attempts = delivery.history().failures().iter().map(|failed| failed.attempt.to_string());
        let attempts: Vec<_> = attempts.collect();
        let last = delivery.last_error().map(str::to_owned);
        let saw = (self.1.elapsed(), delivery.payload, delivery.attempt(), last, attempts.join(" "));
        self.0.lock().expect("lock").push(saw);
    }

    async fn start(
        &self,
        consumer: ConsumerBuilder<u64>,
        say: impl Fn(&Delivery<u64>, usize) -> Outcome + Send + Sync + 'static,
    ) -> Consumer {
        let witness = self.clone();
        let consumer = consumer.start(move |delivery: Delivery<u64>| {
            witness.see(&delivery);
            std::future::ready(say(&delivery, witness.saw().len()))
        });
        consumer.await.expect("started")
    }

    fn saw(&self) -> Vec<Saw> {
        self.0.lock().expect("lock").clone()
    }

    /// Without times.
    fn story(&self) -> Vec<(u64, u32, Option<String>, String)> {
        self.saw()
            .into_iter()
            .map(|(_, value, attempt, last, history)| (value, attempt, last, history))
            .collect()
    }

    async fn until(&self, n: usize) {
        eventually(|| self.saw().len() >= n, || format!("{n} of {:?}", self.saw())).await;
    }

    /// How long before call `n` (from 1) the one before was.
    fn gap(&self, n: usize) -> Duration {
        let saw = self.saw();
        saw[n].0 - saw[n - 1].0
    }
}

fn told(value: u64, attempt: u32, last: &str, history: &str) -> (u64, u32, Option<String>, String) {
    (value, attempt, Some(last.to_owned()).filter(|last| !last.is_empty()), history.to_owned())
}

fn about(gap: Duration, expected: Duration) -> bool {
    (expected..expected + MS(30)).contains(&gap)
}

/// In every order, and side by side with others.
fn modes(bench: &Bench) -> Vec<(String, ConsumerBuilder<u64>)> {
    let orders = [RetryOrder::Skip, RetryOrder::BlockKey, RetryOrder::BlockPartition];
    let ordered = orders.map(|order| (format!("{order:?}"), bench.consumer(NUMBERS, "g").retry_order(order)));
    let shared = bench.consumer(NUMBERS, "g").sharing(Sharing::Shared).concurrency(Concurrency::Unordered(4));
    ordered.into_iter().chain([("shared".into(), shared)]).collect()
}

/// Runs this in each of the modes, each on a backend of its own.
async fn in_all_modes<F: Future>(test: impl Fn(String, Bench, ConsumerBuilder<u64>) -> F) {
    for n in 0..modes(&bench()).len() {
        let bench = bench();
        let (mode, consumer) = modes(&bench).remove(n);
        test(mode, bench, consumer).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_snooze_uses_no_attempt_and_forgets_nothing() {
    in_all_modes(|mode, bench, consumer| async move {
        send(&bench, &[("a", 0)]).await;
        let witness = HandlerLog::new();
        // The policy allows one retry: it is not asked about snoozes.
        let consumer = witness
            .start(consumer.retry(Fixed::new(MS(10)).attempts(2)), |_, call| match call {
                1 | 2 | 4 | 5 => Outcome::snooze(3 * SECOND),
                3 => Outcome::retry("busy"),
                _ => Outcome::Ack,
            })
            .await;
        witness.until(6).await;
        let expected = [
            told(0, 1, "", ""),
            told(0, 1, "", ""),
            told(0, 1, "", ""),
            told(0, 2, "busy", "1"),
            told(0, 2, "busy", "1"),
            told(0, 2, "busy", "1"),
        ];
        assert_eq!(witness.story(), expected, "{mode}");
        for n in [1, 2, 4, 5] {
            assert!(about(witness.gap(n), 3 * SECOND), "{mode}: {n} after {:?}", witness.gap(n));
        }
        eventually(|| consumer.report().acked == 1, || mode.clone()).await;
        assert_eq!(bench.told.lines("handled: Snoozed"), 4, "{mode}");
        let report = consumer.shutdown().await;
        assert_eq!((report.snoozed, report.retried, report.dead), (4, 1, 0), "{mode}");
        assert_eq!(stats(&bench).await.pending, 0, "{mode}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_has_the_key_of_a_snoozed_message_waits_behind_it() {
    let bench = bench();
    send(&bench, &[("a", 0), ("a", 1), ("b", 2)]).await;
    let witness = HandlerLog::new();
    let consumer = bench.consumer(NUMBERS, "g").retry_order(RetryOrder::BlockKey);
    let says = |delivery: &Delivery<u64>, call| match (delivery.payload, call) {
        (0, 1) => Outcome::snooze(SECOND),
        _ => Outcome::Ack,
    };
    let consumer = witness.start(consumer, says).await;
    witness.until(4).await;
    let order: Vec<_> = witness.saw().iter().map(|saw| (saw.1, saw.2)).collect();
    assert_eq!(order, [(0, 1), (2, 1), (0, 1), (1, 1)]);
    consumer.shutdown().await;
}

/// A time that the server's clock will show.
fn after(delivery: &Delivery<u64>, delay: Duration) -> Timestamp {
    delivery.origin().timestamp().saturating_add(delay)
}

#[tokio::test(start_paused = true)]
async fn a_retry_at_a_time_comes_then_by_the_servers_clock() {
    in_all_modes(|mode, bench, consumer| async move {
        let sent = Instant::now();
        send(&bench, &[("a", 0)]).await;
        let sent = sent.elapsed();
        // It lies for a while: its id is old when it fails.
        tokio::time::sleep(3 * SECOND).await;
        let witness = HandlerLog::new();
        let begun = Instant::now();
        let says = |delivery: &Delivery<u64>, call| match call {
            1 => Outcome::retry_at(after(delivery, 10 * SECOND), "not yet"),
            2 => Outcome::retry_at(after(delivery, 2 * SECOND), "long ago"),
            3 => Outcome::requeue("once more"),
            _ => Outcome::Ack,
        };
        let consumer = witness.start(consumer.retry(Fixed::new(60 * SECOND)), says).await;
        witness.until(4).await;
        let waited = witness.saw()[1].0 + (begun - witness.1) + sent + 3 * SECOND;
        assert!((10 * SECOND - MS(2)..10 * SECOND + MS(60)).contains(&waited), "{mode}: {waited:?}");
        // Who settles need not be who looks after the partition: that one looks four times per second.
        let soon = if mode == "shared" { MS(300) } else { MS(30) };
        assert!(witness.gap(2) < soon && witness.gap(3) < soon, "{mode}: at once: {:?}", witness.saw());
        let expected = [
            told(0, 1, "", ""),
            told(0, 2, "not yet", "1"),
            told(0, 3, "long ago", "1 2"),
            told(0, 4, "once more", "1 2 3"),
        ];
        assert_eq!(witness.story(), expected, "{mode}");
        consumer.shutdown().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_ends_retries_and_the_dead_letter_tells_of_all_failures() {
    in_all_modes(|mode, bench, consumer| async move {
        send(&bench, &[("a", 0)]).await;
        let witness = HandlerLog::new();
        // At 0, 2, 4 and 6 seconds. At 6 the next one would be over the budget.
        let policy = Within::new(7 * SECOND, Fixed::new(2 * SECOND).attempts(u32::MAX));
        let says = |delivery: &Delivery<u64>, _| Outcome::retry(format!("no {}", delivery.attempt()));
        let consumer = witness.start(consumer.retry(policy), says).await;
        bench.told.wait_for("handled: Dead").await;
        let attempts: Vec<_> = witness.saw().iter().map(|saw| saw.2).collect();
        assert_eq!(attempts, [1, 2, 3, 4], "{mode}");
        consumer.shutdown().await;
        let letter = dead(&bench, "g").await.list(10).await.expect("listed").remove(0);
        assert_eq!((&letter.reason, letter.attempts), (&Reason::Exhausted, 4), "{mode}");
        let failures = letter.history.failures();
        let texts: Vec<_> = failures.iter().map(|failed| failed.error.as_str()).collect();
        assert_eq!(texts, ["no 1", "no 2", "no 3", "no 4"], "{mode}");
        for pair in failures.windows(2) {
            let gap = pair[1].at.saturating_duration_since(pair[0].at).as_millis();
            assert!((2_000..2_050).contains(&gap), "{mode}: {failures:?}");
        }
        assert!(failures[3].at <= letter.id.timestamp(), "{mode}: {failures:?} and {}", letter.id);
    })
    .await;
}

/// The budget is the message's, not the owner's.
#[tokio::test(start_paused = true)]
async fn a_budget_goes_on_under_another_owner_and_in_another_mode() {
    for first in 0..4 {
        let bench = bench();
        send(&bench, &[("a", 0)]).await;
        let policy = || Within::new(61 * SECOND, Fixed::new(30 * SECOND).attempts(u32::MAX));
        let says = |_: &Delivery<u64>, _| Outcome::retry("no");
        let witness = HandlerLog::new();
        let (mode, consumer) = modes(&bench).remove(first);
        let consumer = witness.start(consumer.retry(policy()), says).await;
        witness.until(2).await;
        consumer.shutdown().await;
        let (next, consumer) = modes(&bench).remove((first + 1) % 4);
        let consumer = witness.start(consumer.retry(policy()), says).await;
        bench.told.wait_for("handled: Dead").await;
        consumer.shutdown().await;
        let attempts: Vec<_> = witness.saw().iter().map(|saw| (saw.2, saw.4.clone())).collect();
        let expected =
            [(1, ""), (2, "1"), (3, "1 2")].map(|(attempt, history)| (attempt, history.to_owned()));
        assert_eq!(attempts, expected, "{mode}, then {next}");
        let letter = dead(&bench, "g").await.list(10).await.expect("listed").remove(0);
        assert_eq!(letter.history.failures().len(), 3, "{mode}, then {next}");
    }
}

#[tokio::test(start_paused = true)]
async fn classes_of_errors_have_policies_of_their_own() {
    let bench = bench();
    send(&bench, &[("a", 0), ("b", 1), ("c", 2)]).await;
    let witness = HandlerLog::new();
    let policy = ByError::otherwise(Exponential::from(SECOND).no_jitter().attempts(3))
        .on::<std::num::ParseIntError>(Never)
        .when(|failure| failure.error.to_string().contains("429"), Within::new(SECOND, Fixed::new(MS(400))));
    let says = |delivery: &Delivery<u64>, _| match delivery.payload {
        0 => Outcome::retry("x".parse::<u8>().expect_err("no number")),
        1 => Outcome::retry("429 slow down"),
        _ => Outcome::retry("anything"),
    };
    let consumer = witness.start(bench.consumer(NUMBERS, "g").retry(policy), says).await;
    eventually(|| consumer.report().dead == 3, || format!("{:?}", witness.saw())).await;
    let attempts = |value| witness.saw().iter().filter(|saw| saw.1 == value).count();
    assert_eq!((attempts(0), attempts(1), attempts(2)), (1, 3, 3));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn each_message_of_a_batch_is_put_off_by_itself() {
    in_all_modes(|mode, bench, consumer| async move {
        send(&bench, &[("a", 0), ("b", 1), ("c", 2), ("d", 3)]).await;
        let witness = HandlerLog::new();
        let seen = witness.clone();
        let handler = move |batch: Batch<u64>| {
            let first = seen.saw().len() < 4;
            batch.iter().for_each(|delivery| seen.see(delivery));
            let say = |delivery: &Delivery<u64>| match delivery.payload {
                0 if first => Outcome::snooze(SECOND),
                1 if first => Outcome::requeue("again"),
                2 if first => Outcome::retry_at(after(delivery, 5 * SECOND), "then"),
                _ => Outcome::Ack,
            };
            std::future::ready(batch.iter().map(say).collect::<Vec<_>>())
        };
        let consumer = consumer.start_batch((4, MS(200)), handler).await.expect("started");
        eventually(|| consumer.report().acked == 4, || format!("{mode}: {:?}", witness.saw())).await;
        let mut again = witness.story().split_off(4);
        again.sort();
        let expected = [told(0, 1, "", ""), told(1, 2, "again", "1"), told(2, 2, "then", "1")];
        assert!(expected.iter().all(|told| again.contains(told)), "{mode}: {again:?}");
        let report = consumer.shutdown().await;
        assert_eq!((report.snoozed, report.retried), (1, 2), "{mode}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_pulls_can_put_off_too() {
    let bench = bench();
    send(&bench, &[("a", 0)]).await;
    let puller = bench.consumer(NUMBERS, "g").retry(Fixed::new(SECOND)).pull().await.expect("started");
    let mut attempts = Vec::new();
    for call in 0..4 {
        let number = puller.next().await.expect("a message");
        attempts.push((number.attempt(), number.history().failures().len()));
        match call {
            0 => number.snooze(SECOND),
            1 => number.requeue("again"),
            2 => {
                let time = after(&number, 5 * SECOND);
                number.retry_at(time, "then");
            }
            _ => number.ack(),
        }
    }
    assert_eq!(attempts, [(1, 0), (1, 0), (2, 1), (3, 2)]);
    let report = puller.shutdown().await;
    assert_eq!((report.snoozed, report.retried, report.acked), (1, 2, 1));
}
