//! Idempotent handlers: an operation is done once, whatever is lost, repeated or begun elsewhere.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::scenario::*;
use crate::support::*;
use async_trait::async_trait;
use millstream_core::idempotency::{Begun, Idempotency, Marker, Operation};
use millstream_core::policy::Fixed;
use millstream_core::{Backend, Error, ErrorKind, Outcome, Result, Topic};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_runtime::{
    Batch, Concurrency, ConsumerBuilder, Delivery, Idempotent, RetryOrder, Sharing, WhileRunning,
};
use tokio::time::Instant;

const HOUR: Duration = Duration::from_secs(3_600);
const TWO: Topic<u64> = Topic::new("numbers").partitions(2);

/// Markers whose calls fail when the test says so.
struct Lossy {
    inner: Arc<dyn Idempotency>,
    /// The next begins and completions take effect, and their replies are lost.
    lose: AtomicUsize,
    /// Errors of the next calls, which have no effect.
    fail: Mutex<Vec<ErrorKind>>,
    extended: AtomicUsize,
}

impl Lossy {
    fn after<T>(&self, answer: Result<T>) -> Result<T> {
        match self.lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(Error::new(ErrorKind::Unconfirmed, "lost")),
            Err(_) => answer,
        }
    }

    fn before(&self) -> Result<()> {
        let failure = self.fail.lock().expect("lock").pop();
        failure.map_or(Ok(()), |kind| Err(Error::new(kind, "told to fail")))
    }
}

#[async_trait]
impl Idempotency for Lossy {
    async fn begin(&self, operation: &Operation, holder: &str, token: &str, ttl: Duration) -> Result<Begun> {
        self.before()?;
        self.after(self.inner.begin(operation, holder, token, ttl).await)
    }

    async fn extend(&self, markers: &[Marker]) -> Vec<Result<()>> {
        self.extended.fetch_add(markers.len(), Ordering::SeqCst);
        self.inner.extend(markers).await
    }

    async fn complete(&self, marker: &Marker, result: &[u8], retention: Duration) -> Result<()> {
        self.before()?;
        self.after(self.inner.complete(marker, result, retention).await)
    }

    async fn abandon(&self, marker: &Marker) -> Result<()> {
        self.inner.abandon(marker).await
    }
}

/// A consumer over markers that can fail.
fn lossy(bench: &Bench) -> (Arc<Lossy>, Backend) {
    let inner = bench.backend.idempotency().expect("the role").clone();
    let (lose, extended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let lossy = Arc::new(Lossy { inner, lose, fail: Mutex::default(), extended });
    (lossy.clone(), bench.backend.clone().with_idempotency(lossy))
}

fn consumer(bench: &Bench, backend: Backend, topic: Topic<u64>) -> ConsumerBuilder<u64> {
    let promoter = Promoter::new(&backend, PromoterConfig::default());
    ConsumerBuilder::new(backend, topic, "g", Arc::new(bench.told.clone())).upkeep(promoter)
}

/// Sends values whose header `id` is the value modulo this.
async fn send_modulo(bench: &Bench, topic: Topic<u64>, values: &[u64], modulo: u64) {
    let producer = bench.producer(topic.clone()).await;
    for (at, value) in values.iter().enumerate() {
        let sent = producer.send(value).header("id", (value % modulo).to_string());
        sent.partition(u32::try_from(at).expect("few") % topic.spec().expect("a topic").partitions)
            .await
            .expect("sent");
    }
}

fn by_header() -> Idempotent {
    Idempotent::by_header("id")
}

#[tokio::test(start_paused = true)]
async fn duplicates_are_acknowledged_without_the_handler_in_every_mode() {
    for mode in 0..5 {
        let bench = bench();
        let values: Vec<u64> = (0..40).collect();
        send_modulo(&bench, NUMBERS, &values, 8).await;
        let scenario = Scenario::default();
        let consumer = bench.consumer(NUMBERS, "g").idempotent(by_header());
        let consumer = match mode {
            0 => consumer,
            1 => consumer.concurrency(Concurrency::PerKey(8)),
            2 => consumer.concurrency(Concurrency::Unordered(8)),
            3 => consumer.retry_order(RetryOrder::BlockPartition),
            _ => consumer.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(8)),
        };
        let handler = scenario.clone();
        let running = consumer.start(move |delivery: Delivery<u64>| {
            let running = handler.begin(&delivery);
            async move {
                tokio::time::sleep(MS(3)).await;
                drop(running);
            }
        });
        let running = running.await.expect("started");
        eventually(
            || running.report().acked + running.report().duplicates == 40,
            || format!("mode {mode}: {:?}", running.report()),
        )
        .await;
        let report = running.shutdown().await;
        assert_eq!((report.acked, report.duplicates, report.dead), (8, 32, 0), "mode {mode}");
        let mut handled: Vec<u64> = scenario.calls().iter().map(|call| call.value % 8).collect();
        handled.sort_unstable();
        assert_eq!(handled, (0..8).collect::<Vec<_>>(), "mode {mode}");
        assert_eq!(bench.told.lines("handled: Duplicate"), 32, "mode {mode}");
        assert_eq!(stats(&bench).await.pending, 0, "mode {mode}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_gets_each_operation_once() {
    let bench = bench();
    let values: Vec<u64> = (0..40).collect();
    send_modulo(&bench, NUMBERS, &values, 8).await;
    let seen = Seen::default();
    let handler = seen.clone();
    let running = bench.consumer(NUMBERS, "g").idempotent(by_header()).start_batch(
        (10, MS(5)),
        move |batch: Batch<u64>| {
            batch.iter().for_each(|delivery| note(&handler, delivery));
            async {}
        },
    );
    let running = running.await.expect("started");
    eventually(
        || running.report().acked + running.report().duplicates == 40,
        || format!("{:?}", running.report()),
    )
    .await;
    let report = running.shutdown().await;
    assert_eq!((report.acked, report.duplicates), (8, 32));
    let mut handled: Vec<u64> = seen.lock().expect("lock").iter().map(|(value, _)| value % 8).collect();
    handled.sort_unstable();
    assert_eq!(handled, (0..8).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_repeated_at_once_and_then_done() {
    let bench = bench();
    produce(&bench, 1).await;
    let began = Instant::now();
    let scenario = Scenario::default();
    let handler = scenario.clone();
    let consumer = bench.consumer(NUMBERS, "g").idempotent(Idempotent::by_message_id());
    let running = consumer.retry(Fixed::new(MS(5)).attempts(4)).start(move |delivery: Delivery<u64>| {
        let call = handler.count();
        let _running = handler.begin(&delivery);
        async move {
            match call {
                0 => Outcome::retry("no"),
                1 => panic!("boom"),
                2 => Outcome::snooze(MS(5)),
                _ => Outcome::Ack,
            }
        }
    });
    let running = running.await.expect("started");
    eventually(|| running.report().acked == 1, || format!("{:?}", running.report())).await;
    assert_eq!(scenario.order(), [(0, 1), (0, 2), (0, 3), (0, 3)]);
    // Not after a ttl: each failed attempt has given its marker up.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    running.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_an_hour_keeps_its_marker() {
    let bench = bench();
    let (markers, backend) = lossy(&bench);
    send_modulo(&bench, TWO, &[1, 1], 8).await;
    let scenario = Scenario::default();
    let handler = scenario.clone();
    let consumer = consumer(&bench, backend, TWO).idempotent(by_header().while_running(WhileRunning::Later));
    let running = consumer.start(move |delivery: Delivery<u64>| {
        let running = handler.begin(&delivery);
        async move {
            tokio::time::sleep(HOUR).await;
            drop(running);
        }
    });
    let running = running.await.expect("started");
    scenario.until(1).await;
    tokio::time::sleep(HOUR + Duration::from_secs(20)).await;
    assert_eq!(scenario.count(), 1, "the other message was never handled");
    let report = running.shutdown().await;
    assert_eq!((report.acked, report.duplicates), (1, 1));
    assert!(report.snoozed > 300, "it came back all the time: {report:?}");
    assert!(markers.extended.load(Ordering::SeqCst) > 900, "three times per ttl");
    assert_eq!(bench.told.lines("MarkerLost"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_operation_runs_waits_or_is_skipped() {
    for (choice, after) in [(WhileRunning::Wait, 100), (WhileRunning::Skip, 0)] {
        let bench = bench();
        send_modulo(&bench, TWO, &[1, 1], 8).await;
        let scenario = Scenario::default();
        let handler = scenario.clone();
        let consumer = bench.consumer(TWO, "g").idempotent(by_header().while_running(choice));
        let running = consumer.start(move |delivery: Delivery<u64>| {
            let running = handler.begin(&delivery);
            async move {
                tokio::time::sleep(Duration::from_secs(100)).await;
                drop(running);
            }
        });
        let running = running.await.expect("started");
        let began = Instant::now();
        eventually(|| running.report().duplicates == 1, || format!("{choice:?}: {:?}", running.report()))
            .await;
        let waited = began.elapsed().as_secs();
        assert!((after..=after + 3).contains(&waited), "{choice:?}: {waited} s");
        eventually(|| running.report().acked == 1, || format!("{choice:?}: {:?}", running.report())).await;
        assert_eq!((scenario.count(), running.report().snoozed), (1, 0), "{choice:?}");
        running.shutdown().await;
    }
}

/// As after the death of an owner: the marker of this message runs, and nobody extends it.
#[tokio::test(start_paused = true)]
async fn a_marker_that_a_dead_owner_left_delays_its_message_by_a_ttl_and_never_skips_it() {
    for choice in [WhileRunning::Wait, WhileRunning::Later, WhileRunning::Skip] {
        let bench = bench();
        let id = produce(&bench, 1).await[0];
        let ttl = Duration::from_secs(10);
        let operation = Operation::new("numbers".parse().unwrap(), "g".parse().unwrap(), "k").unwrap();
        let role = bench.backend.idempotency().unwrap();
        role.begin(&operation, &format!("0-{id}"), "dead", ttl).await.expect("begun");
        let began = Instant::now();
        let scenario = Scenario::default();
        let handler = scenario.clone();
        let settings = Idempotent::by(|_| Some("k")).while_running(choice);
        let running =
            bench.consumer(NUMBERS, "g").idempotent(settings).start(move |delivery: Delivery<u64>| {
                drop(handler.begin(&delivery));
                async {}
            });
        let running = running.await.expect("started");
        scenario.until(1).await;
        let waited = began.elapsed();
        assert!(waited >= ttl - MS(100) && waited <= ttl + Duration::from_secs(2), "{choice:?}: {waited:?}");
        assert_eq!(scenario.order(), [(0, 1)], "{choice:?}: no attempt is used");
        running.shutdown().await;
    }
}

/// The lease is uncertain while the server is away, so what waits for its operation is not handled. It is still there when the
/// lease is certain again.
#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_its_operation_during_an_outage_is_handled_whole() {
    for (order, concurrency) in [
        (RetryOrder::Skip, Concurrency::Serial),
        (RetryOrder::Skip, Concurrency::Unordered(4)),
        (RetryOrder::BlockPartition, Concurrency::Serial),
    ] {
        let bench = bench();
        let id = produce(&bench, 1).await[0];
        let operation = Operation::new("numbers".parse().unwrap(), "g".parse().unwrap(), "k").unwrap();
        let role = bench.backend.idempotency().unwrap();
        let minute = Duration::from_secs(60);
        role.begin(&operation, &format!("0-{id}"), "dead", minute).await.expect("begun");
        let seen = Seen::default();
        let handler = seen.clone();
        let (link, consumer) = linked(&bench, NUMBERS);
        let consumer = consumer.retry_order(order).concurrency(concurrency);
        let settings = Idempotent::by(|_| Some("k")).while_running(WhileRunning::Wait);
        let running = consumer.idempotent(settings).start(move |delivery: Delivery<u64>| {
            note(&handler, &delivery);
            async {}
        });
        let running = running.await.expect("started");
        eventually(|| running.health().in_flight == 1, || format!("{:?}", running.health())).await;
        link.away.store(true, Ordering::Relaxed);
        // The default of a lease is 10 s.
        tokio::time::sleep(Duration::from_secs(10)).await;
        link.away.store(false, Ordering::Relaxed);
        eventually(
            || running.report().acked + running.report().dead == 1,
            || format!("{:?}", running.report()),
        )
        .await;
        assert_eq!(*seen.lock().expect("lock"), [(0, 1)], "{order:?}, {concurrency:?}");
        running.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_replies_and_refusals_change_nothing() {
    let bench = bench();
    let (markers, backend) = lossy(&bench);
    produce(&bench, 10).await;
    // The first begin, the second, and the completion.
    markers.lose.store(5, Ordering::SeqCst);
    let kinds = [ErrorKind::Unavailable, ErrorKind::Denied, ErrorKind::Unconfirmed];
    markers.fail.lock().expect("lock").extend(kinds);
    let seen = Seen::default();
    let handler = seen.clone();
    let consumer = consumer(&bench, backend, NUMBERS).idempotent(Idempotent::by_message_id());
    let running = consumer.start(move |delivery: Delivery<u64>| {
        note(&handler, &delivery);
        async {}
    });
    let running = running.await.expect("started");
    eventually(|| running.report().acked == 10, || format!("{:?}", running.report())).await;
    assert_eq!(*seen.lock().expect("lock"), (0..10).map(|value| (value, 1)).collect::<Vec<_>>());
    assert!(bench.told.lines("Recovered") > 0, "it was reported: {:?}", bench.told.all());
    let report = running.shutdown().await;
    assert_eq!((report.duplicates, report.retried), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_was_taken_over_is_reported() {
    let bench = bench();
    let (markers, backend) = lossy(&bench);
    produce(&bench, 1).await;
    let consumer = consumer(&bench, backend, NUMBERS).idempotent(Idempotent::by_message_id());
    let failing = markers.clone();
    let running = consumer.start(move |_: Delivery<u64>| {
        failing.fail.lock().expect("lock").push(ErrorKind::Fenced);
        async {}
    });
    let running = running.await.expect("started");
    bench.told.wait_for("MarkerLost").await;
    eventually(|| running.report().acked == 1, || format!("{:?}", running.report())).await;
    running.shutdown().await;
    assert_eq!(bench.told.lines("MarkerLost"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_its_header_is_rejected_and_one_without_an_operation_handled() {
    let bench = bench();
    produce(&bench, 2).await;
    let running = bench.consumer(NUMBERS, "g").idempotent(by_header()).start(async |_: Delivery<u64>| ());
    let running = running.await.expect("started");
    eventually(|| running.report().dead == 2, || format!("{:?}", running.report())).await;
    running.shutdown().await;
    let letters = dead(&bench, "g").await.list(10).await.expect("letters");
    assert!(letters.iter().all(|letter| letter.error.contains("no header \"id\"")), "{letters:?}");

    let none = Idempotent::by(|_| None::<&'static str>);
    let running = bench.consumer(NUMBERS, "h").idempotent(none).start(async |_: Delivery<u64>| ());
    let running = running.await.expect("started");
    produce(&bench, 2).await;
    eventually(|| running.report().acked == 2, || format!("{:?}", running.report())).await;
    running.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_kept_is_refused_when_it_is_built() {
    let bench = bench();
    let short = by_header().retention(HOUR);
    let refused = bench.consumer(NUMBERS, "g").idempotent(short).start(async |_: Delivery<u64>| ()).await;
    let refused = refused.expect_err("too short");
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    assert!(refused.to_string().contains("3600s") && refused.to_string().contains("86400s"), "{refused}");
    let without = bench.backend.clone().without(millstream_core::Capability::Idempotency);
    let refused =
        consumer(&bench, without, NUMBERS).idempotent(by_header()).start(async |_: Delivery<u64>| ());
    assert_eq!(refused.await.expect_err("no role").kind(), ErrorKind::Unsupported);
}
