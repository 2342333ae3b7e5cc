//! Limits of consumers of dead letters: a letter waits in its place, is left, or counts for a breaker.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use millstream_core::event::Ignore;
use millstream_core::policy::Never;
use millstream_runtime::{Breaker, DeadLetterConsumerBuilder, DeadLetterOutcome, Letter};

/// A topic with so many letters of tenant `a`.
async fn buried(letters: u64) -> Bench {
    let bench = bench();
    send(&bench, NUMBERS, letters, &["a"]).await;
    let consumer = bench.consumer(NUMBERS, "g").retry(Never);
    let consumer = consumer.start(async |_: Delivery<u64>| Err::<(), _>("broken")).await.expect("a consumer");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.dead, letters);
    bench
}

fn letters(bench: &Bench) -> DeadLetterConsumerBuilder<u64> {
    let builder = DeadLetterConsumerBuilder::new(bench.backend.clone(), NUMBERS, "g", Arc::new(Ignore));
    builder.concurrency(4).poll(MS(100)).hold(SECOND * 5)
}

#[tokio::test(start_paused = true)]
async fn letters_share_units_with_messages_and_wait_for_hours() {
    let bench = buried(6).await;
    // A message has the only unit for an hour.
    const OTHER: Topic<u64> = Topic::new("others");
    send(&bench, OTHER, 1, &["a"]).await;
    let running = Scenario::default();
    let consumer = start(bench.consumer(OTHER, "other").limit(tenant()), &running, SECOND * 3_600).await;
    running.until(1).await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (at_once, seen) = (now.clone(), most.clone());
    let dead = letters(&bench).limit(tenant()).start(move |_: Letter<u64>| {
        seen.fetch_max(at_once.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let at_once = at_once.clone();
        async move {
            sleep(SECOND).await;
            at_once.fetch_sub(1, Ordering::Relaxed);
            DeadLetterOutcome::Delete
        }
    });
    let dead = dead.await.expect("started");
    sleep(SECOND * 3_500).await;
    assert_eq!(dead.report().deleted, 0);
    eventually(|| dead.report().deleted == 6, || format!("{:?}", dead.report())).await;
    assert_eq!(most.load(Ordering::Relaxed), 1);
    dead.shutdown().await;
    consumer.shutdown().await;
    all_free(&bench).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_over_a_quota_is_left() {
    let bench = buried(6).await;
    let dead = letters(&bench).limit(tenant().quota(Rate::per_day(2)));
    let dead = dead.start(async |_: Letter<u64>| DeadLetterOutcome::Delete).await.expect("started");
    eventually(|| dead.report().left == 4, || format!("{:?}", dead.report())).await;
    let report = dead.shutdown().await;
    assert_eq!((report.deleted, report.left, report.failed), (2, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn letters_wait_for_a_breaker() {
    let bench = buried(20).await;
    let (away, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let breaker = Breaker::new().calls(5).open_for(SECOND * 10);
    let (service, called) = (away.clone(), calls.clone());
    let dead =
        letters(&bench).concurrency(1).leave_for(SECOND).limit(Limit::global("payments").breaker(breaker));
    let dead = dead.start(move |_: Letter<u64>| {
        called.fetch_add(1, Ordering::Relaxed);
        let away = service.load(Ordering::Relaxed);
        async move { if away { Err("503") } else { Ok(DeadLetterOutcome::Delete) } }
    });
    let dead = dead.await.expect("started");
    sleep(SECOND * 100).await;
    let failed = calls.load(Ordering::Relaxed);
    assert!((5..=16).contains(&failed), "five opened it, and one tries every ten seconds: {failed} calls");
    away.store(false, Ordering::Relaxed);
    eventually(|| dead.report().deleted == 20, || format!("{:?}", dead.report())).await;
    dead.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_whose_units_were_lost_is_handled_again() {
    let bench = buried(1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let called = calls.clone();
    let dead = letters(&bench).limit(tenant()).start(move |_: Letter<u64>| {
        called.fetch_add(1, Ordering::Relaxed);
        async {
            sleep(SECOND * 20).await;
            DeadLetterOutcome::Delete
        }
    });
    let dead = dead.await.expect("started");
    eventually(|| calls.load(Ordering::Relaxed) == 1, || "it began".into()).await;
    let holder = usage(&bench).await[0].held[0].0.clone();
    let permits = bench.backend.permits().expect("permits").clone();
    while permits.end(&holder).await.expect("ended") {}
    eventually(|| dead.report().deleted == 1, || format!("{:?}", dead.report())).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2, "what came of it before does not count");
    dead.shutdown().await;
}
