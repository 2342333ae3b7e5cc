//! The check before a redelivery: a message that took effect is not handled again, and no other one is held up by it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::scenario::*;
use crate::support::*;
use millstream_core::policy::Fixed;
use millstream_core::{Check, Outcome};
use millstream_runtime::{Batch, Concurrency, Delivery, Idempotent, RetryOrder, Sharing};

const ONCE: fn() -> Fixed = || Fixed::new(MS(1)).attempts(3);

/// Numbers whose effect is there.
fn is_done(value: u64) -> bool {
    value.is_multiple_of(2)
}

fn done_or_run(value: u64) -> Check {
    if is_done(value) { Check::Complete } else { Check::Run }
}

/// Every first attempt takes effect or not, and fails.
#[tokio::test(start_paused = true)]
async fn only_redeliveries_are_checked_and_what_is_done_is_not_handled_again_in_every_mode() {
    for mode in 0..5 {
        let bench = bench();
        produce(&bench, 20).await;
        let (scenario, asked) = (Scenario::default(), Seen::default());
        let consumer = bench.consumer(NUMBERS, "g").retry(ONCE());
        let consumer = match mode {
            0 => consumer,
            1 => consumer.concurrency(Concurrency::PerKey(8)),
            2 => consumer.concurrency(Concurrency::Unordered(8)),
            3 => consumer.retry_order(RetryOrder::BlockPartition),
            _ => consumer.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(8)),
        };
        let (handler, checks) = (scenario.clone(), asked.clone());
        let running = consumer
            .check(move |delivery: Delivery<u64>| {
                note(&checks, &delivery);
                async move { done_or_run(delivery.payload) }
            })
            .start(move |delivery: Delivery<u64>| {
                drop(handler.begin(&delivery));
                async move { if delivery.attempt() == 1 { Err("no") } else { Ok(()) } }
            });
        let running = running.await.expect("started");
        eventually(
            || running.report().acked + running.report().checked == 20,
            || format!("mode {mode}: {:?}", running.report()),
        )
        .await;
        let report = running.shutdown().await;
        assert_eq!((report.acked, report.checked, report.retried), (10, 10, 20), "mode {mode}");
        let mut asked = asked.lock().expect("lock").clone();
        asked.sort_unstable();
        assert_eq!(asked, (0..20).map(|value| (value, 2)).collect::<Vec<_>>(), "mode {mode}");
        let again: Vec<_> = scenario.order().into_iter().filter(|(_, attempt)| *attempt > 1).collect();
        assert!(
            again.len() == 10 && again.iter().all(|(value, _)| !is_done(*value)),
            "mode {mode}: {again:?}"
        );
        assert_eq!(bench.told.lines("handled: Checked"), 10, "mode {mode}");
        assert_eq!(stats(&bench).await.pending, 0, "mode {mode}");
    }
}

/// The first owner ends while it handles; nobody knows whether its messages took effect.
#[tokio::test(start_paused = true)]
async fn a_message_that_an_owner_left_is_checked_as_the_same_attempt() {
    let bench = bench();
    produce(&bench, 2).await;
    let (link, consumer) = linked(&bench, NUMBERS);
    let begun = Scenario::default();
    let handler = begun.clone();
    let first = consumer.concurrency(Concurrency::Unordered(2)).start(move |delivery: Delivery<u64>| {
        let running = handler.begin(&delivery);
        async move {
            for_ever().await;
            drop(running);
        }
    });
    let first = first.await.expect("started");
    begun.until(2).await;
    link.cut();
    let (handled, asked) = (Seen::default(), Seen::default());
    let (handler, checks) = (handled.clone(), asked.clone());
    let second = bench
        .consumer(NUMBERS, "g")
        .check(move |delivery: Delivery<u64>| {
            note(&checks, &delivery);
            async move { done_or_run(delivery.payload) }
        })
        .start(move |delivery: Delivery<u64>| {
            note(&handler, &delivery);
            async {}
        });
    let second = second.await.expect("started");
    eventually(|| second.report().acked == 1, || format!("{:?}", second.report())).await;
    let report = second.shutdown().await;
    assert_eq!((report.acked, report.checked), (1, 1));
    assert_eq!(*handled.lock().expect("lock"), [(1, 1)]);
    assert_eq!(*asked.lock().expect("lock"), [(0, 1), (1, 1)]);
    first.shutdown_within(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn a_replayed_dead_letter_is_checked() {
    let bench = bench();
    produce(&bench, 2).await;
    let handled = Seen::default();
    let handler = handled.clone();
    let running = bench
        .consumer(NUMBERS, "g")
        .check(|delivery: Delivery<u64>| async move { done_or_run(delivery.payload) })
        .start(move |delivery: Delivery<u64>| {
            note(&handler, &delivery);
            let first = delivery.id() == delivery.origin();
            async move { if first { Outcome::dead_letter("no") } else { Outcome::Ack } }
        });
    let running = running.await.expect("started");
    eventually(|| running.report().dead == 2, || format!("{:?}", running.report())).await;
    let letters = dead(&bench, "g").await;
    letters.replay_all().await.expect("replayed");
    eventually(|| running.report().acked == 1, || format!("{:?}", running.report())).await;
    let report = running.shutdown().await;
    assert_eq!((report.acked, report.checked), (1, 1));
    assert_eq!(*handled.lock().expect("lock"), [(0, 1), (1, 1), (1, 1)]);
}

/// One message whose check has a different result each time.
#[tokio::test(start_paused = true)]
async fn a_check_may_snooze_fail_panic_or_take_too_long() {
    let bench = bench();
    produce(&bench, 1).await;
    let (asked, handled) = (Arc::new(AtomicUsize::new(0)), Seen::default());
    let (checks, handler) = (asked.clone(), handled.clone());
    let running = bench
        .consumer(NUMBERS, "g")
        .retry(Fixed::new(MS(1)).attempts(9))
        .handler_timeout(MS(100))
        .check(move |_: Delivery<u64>| {
            let call = checks.fetch_add(1, Ordering::SeqCst);
            async move {
                match call {
                    0 => Ok(Check::Snooze(MS(50))),
                    1 => Err("the database is away"),
                    2 => panic!("boom"),
                    3 => {
                        for_ever().await;
                        Ok(Check::Run)
                    }
                    4 => Ok(Check::Run),
                    _ => Ok(Check::DeadLetter("cancelled meanwhile".into())),
                }
            }
        })
        .start(move |delivery: Delivery<u64>| {
            note(&handler, &delivery);
            async { Err::<(), _>("no") }
        });
    let running = running.await.expect("started");
    eventually(|| running.report().dead == 1, || format!("{:?}", running.report())).await;
    let report = running.shutdown().await;
    // Attempts 2 to 4 end in the check: error, panic, timeout. Attempt 5 runs and fails, attempt 6 is given up.
    assert_eq!(*handled.lock().expect("lock"), [(0, 1), (0, 5)]);
    assert_eq!((report.snoozed, report.retried, report.acked, report.checked), (1, 5, 0, 0));
    let letters = dead(&bench, "g").await.list(10).await.expect("letters");
    let errors: Vec<_> = letters[0].history.failures().iter().map(|failed| failed.error.clone()).collect();
    assert!(letters[0].error.contains("cancelled meanwhile"), "{letters:?}");
    for text in ["the database is away", "boom", "timed out"] {
        assert!(errors.iter().any(|error| error.contains(text)), "{text}: {errors:?}");
    }
}

/// The time limit is that of both: a check that has used half of it leaves the other half.
#[tokio::test(start_paused = true)]
async fn a_check_and_its_handler_share_the_time_limit() {
    let bench = bench();
    produce(&bench, 1).await;
    let took = Arc::new(Mutex::new(Vec::new()));
    let times = took.clone();
    let running = bench
        .consumer(NUMBERS, "g")
        .retry(Fixed::new(MS(1)).attempts(2))
        .handler_timeout(MS(100))
        .check(async |_: Delivery<u64>| {
            tokio::time::sleep(MS(60)).await;
            Check::Run
        })
        .start(move |delivery: Delivery<u64>| {
            let (times, began) = (times.clone(), tokio::time::Instant::now());
            let first = delivery.attempt() == 1;
            let dropped = OnDrop(Some(move || times.lock().expect("lock").push(began.elapsed())));
            async move {
                if first {
                    return Err("no");
                }
                for_ever().await;
                drop(dropped);
                Ok(())
            }
        });
    let running = running.await.expect("started");
    eventually(|| running.report().dead == 1, || format!("{:?}", running.report())).await;
    running.shutdown().await;
    let took = took.lock().expect("lock").clone();
    assert!(took[1] >= MS(38) && took[1] <= MS(45), "{took:?}");
}

struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

/// The lease is lost while the check runs: the handler would be the second one.
#[tokio::test(start_paused = true)]
async fn no_handler_begins_once_the_message_is_no_longer_ours() {
    let bench = bench();
    produce(&bench, 1).await;
    let (link, consumer) = linked(&bench, NUMBERS);
    let (handled, checking) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
    let (handler, checks) = (handled.clone(), checking.clone());
    let first = consumer
        .retry(ONCE())
        .check(move |delivery: Delivery<u64>| {
            checks.fetch_add(1, Ordering::SeqCst);
            async move {
                delivery.cancelled().await;
                Check::Run
            }
        })
        .start(move |delivery: Delivery<u64>| {
            note(&handler, &delivery);
            async { Err::<(), _>("no") }
        });
    let first = first.await.expect("started");
    eventually(|| checking.load(Ordering::SeqCst) == 1, || "a check".into()).await;
    link.cut();
    let second = bench.consumer(NUMBERS, "g").start(async |_: Delivery<u64>| ()).await.expect("started");
    eventually(|| second.report().acked == 1, || format!("{:?}", second.report())).await;
    first.shutdown_within(Duration::from_secs(60)).await;
    second.shutdown().await;
    assert_eq!(*handled.lock().expect("lock"), [(0, 1)], "the first owner began no second one");
}

#[tokio::test(start_paused = true)]
async fn of_a_batch_only_what_is_not_done_is_handled_again() {
    let bench = bench();
    produce(&bench, 100).await;
    let (handled, running_checks) = (Seen::default(), Arc::new((AtomicUsize::new(0), AtomicUsize::new(0))));
    let (handler, at_once) = (handled.clone(), running_checks.clone());
    let running = bench
        .consumer(NUMBERS, "g")
        .retry(Fixed::new(MS(100)).attempts(2))
        .check(move |delivery: Delivery<u64>| {
            let at_once = at_once.clone();
            async move {
                let now = at_once.0.fetch_add(1, Ordering::SeqCst) + 1;
                at_once.1.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(MS(5)).await;
                at_once.0.fetch_sub(1, Ordering::SeqCst);
                match delivery.payload {
                    // The others of the batch are handled all the same.
                    1 => panic!("boom"),
                    value => done_or_run(value),
                }
            }
        })
        .start_batch((100, MS(5)), move |batch: Batch<u64>| {
            batch.iter().for_each(|delivery| note(&handler, delivery));
            let outcomes: Vec<_> = batch
                .iter()
                .map(|it| if it.attempt() == 1 { Outcome::retry("no") } else { Outcome::Ack })
                .collect();
            async move { outcomes }
        });
    let running = running.await.expect("started");
    let settled = || {
        let report = running.report();
        report.acked + report.checked + report.dead == 100
    };
    eventually(settled, || format!("{:?}", running.report())).await;
    let report = running.shutdown().await;
    assert_eq!((report.acked, report.checked, report.dead, report.retried), (49, 50, 1, 100));
    let mut again: Vec<_> = handled.lock().expect("lock").clone();
    again.retain(|(_, attempt)| *attempt > 1);
    again.sort_unstable();
    let expected: Vec<_> =
        (0..100).filter(|value| !is_done(*value) && *value != 1).map(|it| (it, 2)).collect();
    assert_eq!(again, expected);
    let most = running_checks.1.load(Ordering::SeqCst);
    assert!((2..=16).contains(&most), "{most} checks at once");
}

/// What a check finds done is done for the other messages of its operation too.
#[tokio::test(start_paused = true)]
async fn a_check_completes_the_operation_of_its_message() {
    let bench = bench();
    produce(&bench, 2).await;
    let (handled, asked) = (Seen::default(), Seen::default());
    let (handler, checks) = (handled.clone(), asked.clone());
    let running = bench
        .consumer(NUMBERS, "g")
        .retry_order(RetryOrder::BlockPartition)
        .retry(ONCE())
        .idempotent(Idempotent::by(|_| Some("one for all")))
        .check(move |delivery: Delivery<u64>| {
            note(&checks, &delivery);
            async { Check::Complete }
        })
        .start(move |delivery: Delivery<u64>| {
            note(&handler, &delivery);
            async { Err::<(), _>("the reply was lost") }
        });
    let running = running.await.expect("started");
    eventually(|| running.report().duplicates == 1, || format!("{:?}", running.report())).await;
    let report = running.shutdown().await;
    assert_eq!((report.checked, report.duplicates, report.acked, report.dead), (1, 1, 0, 0));
    assert_eq!(*handled.lock().expect("lock"), [(0, 1)]);
    assert_eq!(*asked.lock().expect("lock"), [(0, 2)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_pulled_is_checked_too() {
    let bench = bench();
    produce(&bench, 2).await;
    let puller = bench
        .consumer(NUMBERS, "g")
        .retry(ONCE())
        .check(|delivery: Delivery<u64>| async move { done_or_run(delivery.payload) })
        .pull()
        .await
        .expect("started");
    let mut pulled = Vec::new();
    for _ in 0..3 {
        let next = puller.next().await.expect("a message");
        pulled.push((next.payload, next.attempt()));
        if next.attempt() == 1 { next.retry("no") } else { next.ack() }
    }
    eventually(|| puller.report().acked == 1, || format!("{:?}", puller.report())).await;
    assert_eq!(pulled, [(0, 1), (1, 1), (1, 2)]);
    assert_eq!(puller.shutdown().await.checked, 1);
}
