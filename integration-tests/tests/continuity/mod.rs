//! `docs/protocol.md#continuity`: what keeps a right that ends tries again within a sixth of its ttl. Each of them is asked the
//! same, while the server hangs and while it refuses connections, and loses nothing to one that is slow.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream::delay::DelayQueue;
use millstream::{
    Concurrency, Delivery, Event, Idempotent, Millstream, Observer, Outcome, Sharing, Start, Topic,
};
use millstream_core::Backend;
use millstream_memory::MemoryBackend;
use millstream_testkit::chaos::{Chaos, Faults, Outage};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(30);
/// How long the server is away: less than half a ttl, so that nobody judges.
const AWAY: Duration = Duration::from_secs(14);

/// The failed rounds of each loop, and what ended.
#[derive(Clone, Default)]
struct Failures(Arc<Mutex<Vec<(&'static str, Instant)>>>);

impl Observer for Failures {
    fn observe(&self, event: &Event<'_>) {
        let name = match event {
            Event::Failing { operation, .. } => operation,
            Event::MarkerLost { .. }
            | Event::CallMarkerLost { .. }
            | Event::ClaimsLost { .. }
            | Event::LockEnded { .. } => "lost",
            _ => return,
        };
        self.0.lock().expect("no panic").push((name, Instant::now()));
    }
}

impl Failures {
    fn of(&self, operation: &str) -> Vec<Instant> {
        let all = self.0.lock().expect("no panic");
        all.iter().filter(|(name, _)| *name == operation).map(|(_, at)| *at).collect()
    }
}

/// Begins something that holds a right for an hour, and returns what must be kept alive.
type Begin = fn(Backend, Failures) -> futures_util::future::BoxFuture<'static, Box<dyn Send>>;

/// Checks one keeper: its loop, and how it is begun.
async fn keeps(operation: &str, begin: Begin) {
    keeps_for(operation, AWAY, begin).await;
}

/// The same, while the server is away for this time.
async fn keeps_for(operation: &str, away: Duration, begin: Begin) {
    for outage in [Outage::Hung, Outage::Refused] {
        let chaos = Chaos::new(MemoryBackend::new(), 1);
        let client = chaos.client();
        // A request that hangs has the limit of its caller, and none of its own.
        let patient = Faults::none().timeout(TTL * 10);
        client.suffer(&patient);
        let failures = Failures::default();
        let held = begin(client.backend(), failures.clone()).await;
        // Not at the time of a renewal.
        sleep(TTL * 2 + TTL / 4).await;
        assert_eq!(failures.of(operation), [], "before the outage");

        let began = Instant::now();
        chaos.begin_outage(outage);
        sleep(away).await;
        chaos.end_outage();
        sleep(TTL * 2).await;
        let failed = failures.of(operation);
        assert!(failed.len() > 1, "{operation}, {outage:?}: {failed:?}");
        let gap = failed.windows(2).map(|pair| pair[1] - pair[0]).max().expect("two");
        assert!(gap <= TTL / 6, "{operation}, {outage:?}: {gap:?} between two tries");
        // The first try that failed came in time too, and took no longer than it may.
        let first = failed[0] - began;
        assert!(first <= TTL / 3 + TTL / 10, "{operation}, {outage:?}: the first failed after {first:?}");
        assert_eq!(failures.of("lost"), [], "{operation}, {outage:?}");

        // A server that takes a tenth of the limit, for each way, is no failure.
        let failed = failed.len();
        client.suffer(&patient.latency(TTL / 100, TTL / 100));
        sleep(TTL * 4).await;
        assert_eq!(
            (failures.of(operation).len(), failures.of("lost").len()),
            (failed, 0),
            "{operation}: slow"
        );
        drop(held);
    }
}

fn topic() -> Topic<u64> {
    Topic::new("orders")
}

async fn sent(mq: &Millstream) {
    let producer = mq.producer(topic()).build().await.expect("starts");
    producer.send(&1).await.expect("sent");
    producer.close().await;
}

/// Starts a consumer with handlers that take an hour.
async fn consumer(backend: Backend, failures: Failures, sharing: Sharing, once: bool) -> Box<dyn Send> {
    let mq = Millstream::over(backend).with_observer(failures);
    sent(&mq).await;
    let begun = Arc::new(tokio::sync::Notify::new());
    let begins = begun.clone();
    let mut consumer = mq
        .consumer(topic(), "billing")
        .start_from(Start::Earliest)
        .lease_ttl(TTL)
        .sharing(sharing)
        .concurrency(Concurrency::Unordered(4));
    if once {
        consumer = consumer.idempotent(Idempotent::by_message_id());
    }
    let running = consumer
        .start(move |_: Delivery<u64>| {
            begins.notify_one();
            async {
                sleep(TTL * 100).await;
                Outcome::Ack
            }
        })
        .await
        .expect("starts");
    timeout(TTL * 4, begun.notified()).await.expect("handled");
    Box::new(running)
}

#[tokio::test(start_paused = true)]
async fn leases() {
    keeps("renew", |backend, failures| Box::pin(consumer(backend, failures, Sharing::Exclusive, false)))
        .await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats() {
    // Their times are spread, so that the first may come a third of the ttl after the beginning.
    keeps_for("heartbeat", AWAY * 2, |backend, failures| {
        Box::pin(consumer(backend, failures, Sharing::Exclusive, false))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn entries_of_shared_mode() {
    keeps("extend", |backend, failures| Box::pin(consumer(backend, failures, Sharing::Shared, false))).await;
}

#[tokio::test(start_paused = true)]
async fn markers() {
    keeps("extend_markers", |backend, failures| {
        Box::pin(consumer(backend, failures, Sharing::Exclusive, true))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_tasks() {
    keeps("extend", |backend, failures| {
        Box::pin(async move {
            let queue =
                DelayQueue::<u64>::new("mails").observer(failures).open(&backend).await.expect("opened");
            queue.schedule(&1).await.expect("scheduled");
            let begun = Arc::new(tokio::sync::Notify::new());
            let begins = begun.clone();
            let worker = queue.worker().hold(TTL).start(move |_| {
                begins.notify_one();
                sleep(TTL * 100)
            });
            let worker = worker.await.expect("starts");
            begun.notified().await;
            Box::new(worker) as Box<dyn Send>
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_dead_letters() {
    keeps("claim dead letters", |backend, failures| {
        Box::pin(async move {
            let mq = Millstream::over(backend).with_observer(failures);
            sent(&mq).await;
            let refusing = mq.consumer(topic(), "billing").start_from(Start::Earliest).lease_ttl(TTL);
            let refusing = refusing.start(|_: Delivery<u64>| async { Outcome::dead_letter("no") }).await;
            let refusing = refusing.expect("starts");
            while refusing.report().dead == 0 {
                sleep(Duration::from_millis(100)).await;
            }
            refusing.shutdown().await;
            let begun = Arc::new(tokio::sync::Notify::new());
            let begins = begun.clone();
            let letters = mq.dead_letter_consumer(topic(), "billing").hold(TTL);
            let letters = letters.start(move |_| {
                begins.notify_one();
                async {
                    sleep(TTL * 100).await;
                    Ok::<(), String>(())
                }
            });
            let letters = letters.await.expect("starts");
            begun.notified().await;
            Box::new(letters) as Box<dyn Send>
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn markers_of_calls() {
    keeps("extend marker", |backend, failures| {
        Box::pin(async move {
            let calls =
                Millstream::over(backend).with_observer(failures).idempotent("charges").lease_ttl(TTL);
            let begun = Arc::new(tokio::sync::Notify::new());
            let begins = begun.clone();
            let call = tokio::spawn(async move {
                let work = || async move {
                    begins.notify_one();
                    sleep(TTL * 100).await;
                    Ok::<u64, String>(1)
                };
                let _ = calls.run("key", work).await;
            });
            begun.notified().await;
            Box::new(tokio_util::task::AbortOnDropHandle::new(call)) as Box<dyn Send>
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn locks() {
    keeps("renew lock", |backend, failures| {
        Box::pin(async move {
            let mq = Millstream::over(backend).with_observer(failures);
            Box::new(mq.lock("invoice").ttl(TTL).acquire().await.expect("held")) as Box<dyn Send>
        })
    })
    .await;
}
