//! Backpressure: a send waits, or is refused, while the log of its partition has reached the bound of the topic.
//!
//! Each producer measures the lengths itself. The reply to an append contains the length of the log, so a partition
//! with room costs no extra request. Only a partition that was full at its last measurement, or was never measured,
//! is queried before a send.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::{Append, Appended, Appender, Measured, full};
use millstream_core::policy::Exponential;
use millstream_core::sorted::{SortedMap, sort};
use millstream_core::{Log, TopicPartition};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::config::OnFull;

/// Bound of the topic, shared by all clones of a producer. Stored as 0 if there is none.
#[derive(Clone, Debug)]
pub(super) struct Bound(Arc<AtomicU64>);

impl Bound {
    pub(super) fn new(max_length: Option<u64>) -> Self {
        Self(Arc::new(AtomicU64::new(max_length.unwrap_or(0))))
    }

    pub(super) fn set(&self, max_length: Option<u64>) {
        self.0.store(max_length.unwrap_or(0), Ordering::Relaxed);
    }

    fn get(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.load(Ordering::Relaxed))
    }
}

/// Log that accepts messages to a partition only while the partition has room.
pub(super) struct Bounded {
    log: Arc<dyn Log>,
    /// Appender of a durability of more than `Stored`. Its requests run one after the other here, as all of them do.
    durable: Option<AsyncMutex<Box<dyn Appender>>>,
    bound: Bound,
    on_full: OnFull,
    /// Last measured length of each partition.
    lengths: Mutex<SortedMap<TopicPartition, u64>>,
}

/// Returns the results of messages whose lengths could not be queried: nothing was sent, whatever the query says.
fn not_sent(error: &Error, count: usize) -> Vec<Result<Appended>> {
    let error = match error.kind() {
        ErrorKind::Unconfirmed => Error::new(ErrorKind::Unavailable, format!("not sent: {error}")),
        _ => error.clone(),
    };
    (0..count).map(|_| Err(error.clone())).collect()
}

impl Bounded {
    pub(super) fn new(
        log: Arc<dyn Log>,
        durable: Option<Box<dyn Appender>>,
        bound: Bound,
        on_full: OnFull,
    ) -> Self {
        let durable = durable.map(AsyncMutex::new);
        Self { log, durable, bound, on_full, lengths: Mutex::default() }
    }

    pub(super) fn is_bound(&self) -> bool {
        self.bound.get().is_some()
    }

    /// Appends a batch. If the producer waits when a partition is full, it waits until `deadline` at most. A repetition is refused too
    /// while its partition is full.
    pub(super) async fn append(&self, batch: &[Append], deadline: Instant) -> Vec<Result<Appended>> {
        let Some(bound) = self.bound.get() else { return self.appended(batch).await };
        let full = match self.full(batch, deadline).await {
            Ok(full) => full,
            // The append returns an error of its own for each message.
            Err(error) if error.kind() == ErrorKind::WrongType => Vec::new(),
            Err(error) => return not_sent(&error, batch.len()),
        };
        if full.is_empty() {
            return self.measured(batch).await;
        }
        let refused = |append: &Append| full.contains(&append.topic_partition);
        let rest: Vec<Append> = batch.iter().filter(|append| !refused(append)).cloned().collect();
        let mut results = if rest.is_empty() { Vec::new() } else { self.measured(&rest).await }.into_iter();
        let missing = || Err(Error::new(ErrorKind::Protocol, "the backend returned too few results"));
        let result = |append: &Append| {
            if refused(append) {
                return Err(is_full(append, bound));
            }
            results.next().unwrap_or_else(missing)
        };
        batch.iter().map(result).collect()
    }

    async fn appended(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        let Some(durable) = &self.durable else { return self.log.append(batch).await };
        let mut durable = durable.lock().await;
        durable.begin(Arc::new(batch.to_vec()));
        durable.finish().await
    }

    async fn measured(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        if self.durable.is_some() || batch.iter().any(|append| append.identity.is_repeatable()) {
            // Its requests have no lengths beside them, so each partition is asked for its length before the next one.
            for append in batch {
                self.lengths().remove(&append.topic_partition);
            }
            return self.appended(batch).await;
        }
        let Measured { results, lengths, .. } = self.log.append_measured(batch).await;
        self.lengths().extend(lengths);
        results
    }

    fn lengths(&self) -> std::sync::MutexGuard<'_, SortedMap<TopicPartition, u64>> {
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the partitions of a batch that have no room, after waiting for room if the producer is configured to
    /// wait.
    async fn full(&self, batch: &[Append], deadline: Instant) -> Result<Vec<TopicPartition>> {
        // Read again each time: an operator may have raised or removed the bound.
        let bound = || self.bound.get().map_or(u64::MAX, NonZeroU64::get);
        let mut full: Vec<TopicPartition> = {
            let lengths = self.lengths();
            let room = |tp: &TopicPartition| lengths.get(tp).is_some_and(|length| *length < bound());
            batch.iter().map(|append| &append.topic_partition).filter(|tp| !room(tp)).cloned().collect()
        };
        sort(&mut full);
        full.dedup();
        let pauses =
            Exponential::from(Duration::from_millis(5)).up_to(Duration::from_millis(250)).equal_jitter();
        let mut looks = 0;
        while !full.is_empty() {
            let found = self.log.lengths(&full).await?;
            let now: Vec<_> = full.into_iter().zip(found).collect();
            full = now.iter().filter(|(_, length)| *length >= bound()).map(|(tp, _)| tp.clone()).collect();
            self.lengths().extend(now);
            looks += 1;
            let pause = pauses.delay(looks, fastrand::u64(..));
            if self.on_full == OnFull::Reject || Instant::now() + pause >= deadline {
                break;
            }
            if !full.is_empty() {
                tokio::time::sleep(pause).await;
            }
        }
        Ok(full)
    }
}

fn is_full(append: &Append, bound: NonZeroU64) -> Error {
    full(&append.topic_partition, bound.get())
}
