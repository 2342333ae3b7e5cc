//! Code of others that panics: no task is kept by it, and no loop ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use millstream_core::event::Event;
use millstream_core::panics::UserCode;
use millstream_core::policy::{Decision, Failure, Fixed, GivenUp, RetryPolicy, Verdict};
use millstream_core::schedule::{Due, OnConflict, Scheduling};
use millstream_core::tasks::ClaimRequest;
use millstream_core::{
    BoxError, Codec, Continuity, DeadLetterPolicy, Envelope, ErrorKind, Outcome, Place, Shard, TopicSpec,
    wire,
};

use crate::tests::support::link::Link;
use crate::tests::support::places::Places;
use crate::tests::support::{MS, SECS, eventually, memory, open, queue};
use crate::{DelayQueue, DelayedPromoter, PromoterConfig, Task};

#[derive(Debug)]
struct Broken;

impl RetryPolicy for Broken {
    fn decide(&self, _: &Failure<'_>) -> Decision {
        panic!("a policy panics")
    }
}

impl DeadLetterPolicy for Broken {
    fn judge(&self, _: &GivenUp<'_>) -> Verdict {
        panic!("a policy panics")
    }
}

/// An error that nobody can be rid of.
#[derive(Debug, thiserror::Error)]
#[error("sticky")]
struct Sticky;

impl Drop for Sticky {
    fn drop(&mut self) {
        panic!("a drop panics")
    }
}

/// Numbers, but for some.
struct Picky;

impl Codec<u64> for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn encode(&self, value: &u64) -> Result<bytes::Bytes, BoxError> {
        assert!(*value != 99, "a codec panics");
        Ok(value.to_string().into())
    }

    fn decode(&self, payload: &bytes::Bytes) -> Result<u64, BoxError> {
        let value = std::str::from_utf8(payload)?.parse()?;
        assert!(value != 2, "a codec panics");
        Ok(value)
    }
}

#[tokio::test(start_paused = true)]
async fn everything_that_panics_beside_a_handler_has_its_fallback() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let note = told.clone();
    let observer = move |event: &Event<'_>| {
        if let Event::Panicked { code, .. } = *event {
            note.lock().expect("lock").push(code);
        }
    };
    // Beside one that panics at everything.
    let observer = (|_: &Event<'_>| panic!("an observer panics"), observer);
    let queue = DelayQueue::with_codec("q", &Picky).observer(observer).open(&memory()).await.expect("opens");
    let error = queue.schedule(&99).await.expect_err("the codec panics");
    assert_eq!(error.kind(), ErrorKind::Encode);
    for number in 0..6 {
        queue.schedule(&number).await.expect("scheduled");
    }
    let worker = queue.worker().retry(Fixed::new(MS(10)).attempts(2)).dead_letters(Broken);
    let worker = worker.start(async |task: Task<u64>| match task.payload {
        1 => Outcome::dead_letter(Unreadable),
        3 => Outcome::retry(Sticky),
        4 if task.attempt() == 1 => panic!("a handler panics"),
        _ => Outcome::Ack,
    });
    let worker = worker.await.expect("starts");
    eventually(|| worker.report().done == 3 && worker.report().dead == 3, "all ended").await;
    assert!(worker.progress().is_ready() && worker.progress().failing.is_empty());
    worker.drain().await;
    let dead = queue.dead().list(10).await.expect("list");
    let mut dead: Vec<_> = dead.iter().map(|dead| (dead.reason.as_str(), dead.error.as_str())).collect();
    dead.sort_unstable();
    let expected = [
        ("exhausted", "sticky"),
        ("rejected", "an error without a text: the error's text panicked: an error panics"),
        ("undecodable", "the codec panicked: a codec panics"),
    ];
    assert_eq!(dead, expected);
    let told = told.lock().expect("lock");
    let count = |code: UserCode| told.iter().filter(|known| **known == code).count();
    assert_eq!((count(UserCode::Codec), count(UserCode::DeadLetterPolicy)), (2, 3));
    assert_eq!((count(UserCode::ErrorText), count(UserCode::Handler)), (3, 1));
    assert!(count(UserCode::Observer) > 5);
}

/// An error that nobody can read.
#[derive(Debug)]
struct Unreadable;

impl std::fmt::Display for Unreadable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("an error panics")
    }
}

impl std::error::Error for Unreadable {}

#[tokio::test(start_paused = true)]
async fn a_policy_that_panics_is_replaced_by_the_default_one() {
    let queue = queue().await;
    queue.schedule(&1).await.expect("scheduled");
    let worker = queue.worker().retry(Broken).hold(SECS(3)).start(async |_: Task<u64>| Err::<(), _>("no"));
    let worker = worker.await.expect("starts");
    eventually(|| worker.report().dead == 1, "given up after as many attempts as by default").await;
    assert_eq!((worker.report().retried, worker.progress().running), (9, 0));
    let dead = queue.dead().list(1).await.expect("list");
    assert!(dead[0].error.contains("a policy panics"), "{}", dead[0].error);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn an_error_that_cannot_be_read_is_a_failure_all_the_same() {
    let queue = queue().await;
    queue.schedule(&1).await.expect("scheduled");
    let worker = queue.worker().hold(SECS(3)).start(async |_: Task<u64>| Err::<(), _>(Unreadable));
    let worker = worker.await.expect("starts");
    eventually(|| worker.report().dead == 1, "given up").await;
    let dead = queue.dead().list(1).await.expect("list");
    assert!(dead[0].error.contains("an error panics"), "{}", dead[0].error);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_costs_nothing() {
    let queue = queue().await;
    let worker = queue.worker().observer(|_: &Event<'_>| panic!("an observer panics"));
    let worker = worker.start(async |_: Task<u64>| ()).await.expect("starts");
    for number in 0..5 {
        queue.schedule(&number).await.expect("scheduled");
        eventually(|| worker.report().done == number + 1, "done").await;
    }
    assert!(worker.progress().is_ready());
    assert_eq!(worker.drain().await.done, 5);
}

#[tokio::test(start_paused = true)]
async fn a_claim_loop_goes_on_after_a_panic_and_tells_of_it() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    link.panics.store(2, Ordering::Relaxed);
    let worker = queue.worker().start(async |_: Task<u64>| ()).await.expect("starts");
    eventually(|| worker.progress().failing.len() == 1, "it is told").await;
    let failing = worker.progress().failing;
    assert!(failing[0].operation == "claim" && failing[0].error.contains("panics"), "{failing:?}");
    queue.schedule(&1).await.expect("scheduled");
    eventually(|| worker.report().done == 1, "done").await;
    assert!(worker.progress().is_ready());
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_job_panics_comes_back() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    queue.schedule(&1).await.expect("scheduled");
    let shard = Shard::new("q".parse().expect("a name"), 0);
    let ask = ClaimRequest {
        worker: "dead".into(),
        limit: 1,
        hold: SECS(3),
        crash_limit: 0,
        longest_sleep: SECS(1),
        continuity: Continuity::assured(),
    };
    assert_eq!(
        backend.tasks().expect("delay queues").claim(&shard, &ask).await.expect("claims").tasks.len(),
        1
    );
    // Its second claim has a crash: the begin of the handler is reported to the server first.
    link.panic_renewals.store(1, Ordering::Relaxed);
    let worker = queue.worker().hold(SECS(3)).start(async |_: Task<u64>| ()).await.expect("starts");
    eventually(|| worker.report().done == 1, "done").await;
    assert_eq!((link.calls("extend"), worker.progress().running), (2, 0));
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn renewing_goes_on_after_a_panic() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    queue.schedule(&1).await.expect("scheduled");
    link.panic_renewals.store(1, Ordering::Relaxed);
    let worker = queue.worker().hold(SECS(30)).start(|_: Task<u64>| tokio::time::sleep(SECS(300)));
    let worker = worker.await.expect("starts");
    eventually(|| worker.report().done == 1, "done").await;
    assert!(link.calls("extend") > 25 && worker.report().stale == 0);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_promoter_of_a_topic_goes_on_after_a_panic() {
    let (backend, places) = (memory(), Arc::new(Places::default()));
    let spec = TopicSpec::new("t".parse().expect("a name"), 1).expect("a spec");
    backend.catalog().create_topic(&spec).await.expect("created");
    places.panics.store(1, Ordering::Relaxed);
    let told = Arc::new(AtomicBool::new(false));
    let tell = told.clone();
    let config = PromoterConfig::default();
    let promoter = DelayedPromoter::new(&places.over(&backend), spec.clone(), config).expect("valid");
    let promoter = promoter.observer(move |event: &Event<'_>| {
        tell.fetch_or(matches!(event, Event::Failing { .. }), Ordering::Relaxed);
        panic!("an observer panics");
    });
    let promoter = tokio::spawn(promoter.run());
    let place = Place::from(spec.iter().next().expect("one"));
    let (id, fields) = ("a".parse().expect("an id"), wire::encode(&Envelope::new("x")));
    let message =
        Scheduling { place: place.clone(), id, due: Due::In(MS(5)), fields, on_conflict: OnConflict::Keep };
    assert!(backend.schedule().schedule(&[message]).await[0].is_ok());
    tokio::time::sleep(SECS(30)).await;
    assert_eq!(backend.schedule().waiting(&place).await.expect("counts").total, 0);
    assert!(told.load(Ordering::Relaxed) && !promoter.is_finished());
    promoter.abort();
}

#[tokio::test(start_paused = true)]
async fn sleeps_without_end_are_refused_and_long_ones_do_no_harm() {
    let backend = memory();
    let spec = TopicSpec::new("t".parse().expect("a name"), 1).expect("a spec");
    let config = PromoterConfig::default().with_longest_sleep(std::time::Duration::MAX);
    let error = DelayedPromoter::new(&backend, spec.clone(), config).expect_err("too long");
    assert!(error.to_string().contains("at most a day"), "{error}");
    let config = PromoterConfig::default().with_longest_sleep(std::time::Duration::from_nanos(1));
    let error = DelayedPromoter::new(&backend, spec, config).expect_err("too short");
    assert!(error.to_string().contains("at least 10ms"), "{error}");
    let queue = open(&backend, 1).await;
    let worker = queue.worker().longest_sleep(std::time::Duration::MAX);
    let error = worker.start(async |_: Task<u64>| ()).await.expect_err("too long");
    assert!(error.to_string().contains("at most a day"), "{error}");
    let worker = queue.worker().longest_sleep(SECS(24 * 3_600)).handler_timeout(std::time::Duration::MAX);
    let worker = worker.start(async |_: Task<u64>| tokio::time::sleep(SECS(5)).await).await.expect("starts");
    queue.schedule(&1).await.expect("scheduled");
    eventually(|| worker.progress().running == 1, "it runs").await;
    assert_eq!(worker.shutdown_within(std::time::Duration::MAX).await.done, 1);
}
