//! Sends with a time limit of their own.

use std::sync::Arc;
use std::time::Duration;

use super::support::*;
use async_trait::async_trait;
use millstream_core::event::Ignore;
use millstream_core::log::{Append, Appended, Receipt, Settled, Trimmed};
use millstream_core::schedule::{Placed, Promoted, ScheduleId, Scheduling};
use millstream_core::{
    Backend, ErrorKind, Lease, Log, Place, Reader, Result, Retention, Schedule, Settlement, Timestamp,
};
use millstream_runtime::{Delivery, Producer, ProducerBuilder};
use tokio::time::Instant;

/// Value of a header that fills more than half of a buffer of 1,024 bytes.
const FILL: [u8; 600] = [0; 600];

/// Roles whose stores take a time.
struct Slow<R: ?Sized>(Arc<R>, Duration);

#[async_trait]
impl Log for Slow<dyn Log> {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        tokio::time::sleep(self.1).await;
        self.0.append(batch).await
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        self.0.reader(lease).await
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        self.0.settle(lease, batch).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.0.trim(lease, retention).await
    }
}

#[async_trait]
impl Schedule for Slow<dyn Schedule> {
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        tokio::time::sleep(self.1).await;
        self.0.schedule(batch).await
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        self.0.cancel(place, ids).await
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        self.0.promote(lease, limit).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.0.now().await
    }
}

/// A backend whose stores take a time.
fn slow(takes: Duration) -> Bench {
    let Bench { backend } = bench();
    let log: Arc<dyn Log> = Arc::new(Slow(backend.log().clone(), takes));
    let schedule: Arc<dyn Schedule> = Arc::new(Slow(backend.schedule().clone(), takes));
    Bench { backend: backend.with_log(log).with_schedule(schedule) }
}

async fn producer(backend: &Backend, buffer: usize) -> Producer<u64> {
    let builder = ProducerBuilder::new(backend.clone(), NUMBERS, Arc::new(Ignore));
    builder.buffer_memory(buffer).await.expect("a producer")
}

/// Everything that is stored.
async fn stored(bench: &Bench) -> Vec<u64> {
    let puller = bench.consumer(NUMBERS, "g").pull().await.expect("started");
    let mut stored = Vec::new();
    while let Ok(Some(message)) = tokio::time::timeout(Duration::from_secs(60), puller.next()).await {
        stored.push(message.payload);
        message.ack();
    }
    puller.shutdown().await;
    stored
}

#[tokio::test(start_paused = true)]
async fn a_send_whose_time_is_over_is_unconfirmed_and_stored_in_its_place() {
    let bench = slow(Duration::from_secs(10));
    let producer = producer(&bench.backend, 1 << 20).await;
    let began = Instant::now();
    let limit = Duration::from_secs(2);
    let plain = async { producer.send(&1).timeout(limit).await.map(drop) };
    let with_id = async { producer.send(&2).dedup("two").timeout(limit).await.map(drop) };
    let delayed = async { producer.send(&3).timeout(limit).delay(Duration::ZERO).await.map(drop) };
    let too = async { producer.send(&4).delay(Duration::ZERO).timeout(limit).await.map(drop) };
    let (plain, with_id, delayed, too) = tokio::join!(plain, with_id, delayed, too);
    for result in [plain, with_id, delayed, too] {
        let error = result.expect_err("no answer yet");
        assert_eq!(error.kind(), ErrorKind::Unconfirmed);
        assert!(error.to_string().contains("no answer within 2s"), "{error}");
    }
    let took = began.elapsed();
    assert!(took >= limit && took < limit + Duration::from_secs(1), "{took:?}");
    // The limit of one is not that of others in its request, nor of the request itself.
    producer.send(&5).await.expect("stored");
    producer.flush().await;
    let mut stored = stored(&bench).await;
    let place = |number| stored.iter().position(|it| *it == number).expect("stored");
    assert!(place(1) < place(5), "{stored:?}");
    stored.sort_unstable();
    assert_eq!(stored, [1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_send_that_found_no_room_in_its_time_is_not_stored() {
    let bench = slow(Duration::from_secs(10));
    // Room for one message, and not for two.
    let producer = producer(&bench.backend, 1_024).await;
    let first = async { producer.send(&1).header("fill", FILL).await };
    let second = async {
        let began = Instant::now();
        let error = producer
            .send(&2)
            .header("fill", FILL)
            .timeout(Duration::from_secs(2))
            .await
            .expect_err("no room");
        assert_eq!(error.kind(), ErrorKind::Backpressure);
        assert!(error.to_string().contains("stayed full for 2s"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(3));
    };
    let (first, ()) = tokio::join!(first, second);
    first.expect("stored");
    producer.flush().await;
    assert_eq!(stored(&bench).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_limit_above_that_of_the_producer_and_one_without_an_end_change_nothing() {
    let bench = slow(Duration::from_secs(10));
    let producer = producer(&bench.backend, 1_024).await;
    for limit in [Duration::from_secs(11), Duration::from_secs(3_600), Duration::MAX] {
        producer.send(&1).timeout(limit).await.expect("stored");
    }
    // 30 s is the limit of the producer: it ends the wait for room.
    let sends = (0..6).map(|_| async {
        producer.send(&2).header("fill", FILL).timeout(Duration::MAX).await.map_err(|it| it.kind())
    });
    let sent = futures_util::future::join_all(sends).await;
    let failed: Vec<_> = sent.into_iter().filter_map(std::result::Result::err).collect();
    assert!(failed.contains(&ErrorKind::Backpressure), "{failed:?}");
    assert!(!failed.contains(&ErrorKind::Unconfirmed), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_there_at_once_counts_with_no_time_at_all() {
    let bench = bench();
    let producer = producer(&bench.backend, 1 << 20).await;
    let error = producer.send(&1).timeout(Duration::ZERO).await.expect_err("no answer at once");
    assert_eq!(error.kind(), ErrorKind::Unconfirmed);
    producer.close().await;
    // What is refused at once is not unconfirmed.
    let error = producer.send(&2).timeout(Duration::ZERO).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    let seen = bench.consumer(NUMBERS, "g").start(async |_: Delivery<u64>| {}).await.expect("started");
    seen.wait_idle().await.expect("idle");
    assert_eq!(seen.shutdown().await.acked, 1);
}
