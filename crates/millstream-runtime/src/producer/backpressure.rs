//! The bound of a topic: who sends beyond it waits, or is refused.
//!
//! Each producer looks for itself: the length of a log comes with the answer to what was appended to it, so that a
//! partition with room costs nothing more. Only one that was full when it was seen last, or was never seen, is asked for
//! before something is sent to it.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::{Append, Measured};
use millstream_core::policy::Exponential;
use millstream_core::{Log, MessageId, TopicPartition};
use tokio::time::Instant;

use super::config::OnFull;

/// The bound as all clones of a producer know it.
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

/// Appends as long as there is room.
pub(super) struct Bounded {
    log: Arc<dyn Log>,
    bound: Bound,
    on_full: OnFull,
    /// The lengths as they were seen last.
    lengths: Mutex<BTreeMap<TopicPartition, u64>>,
}

impl Bounded {
    pub(super) fn new(log: Arc<dyn Log>, bound: Bound, on_full: OnFull) -> Self {
        Self { log, bound, on_full, lengths: Mutex::default() }
    }

    pub(super) fn is_bound(&self) -> bool {
        self.bound.get().is_some()
    }

    /// Waits for room up to `deadline`.
    pub(super) async fn append(&self, batch: &[Append], deadline: Instant) -> Vec<Result<MessageId>> {
        let Some(bound) = self.bound.get() else { return self.log.append(batch).await };
        let full = match self.full(batch, deadline).await {
            Ok(full) => full,
            // Each is told for itself what it meets.
            Err(error) if error.kind() == ErrorKind::WrongType => return self.measured(batch).await,
            // That was a question: nothing was sent.
            Err(error) if error.kind() == ErrorKind::Unconfirmed => {
                let error = Error::new(ErrorKind::Unavailable, format!("not sent: {error}"));
                return batch.iter().map(|_| Err(error.duplicate())).collect();
            }
            Err(error) => return batch.iter().map(|_| Err(error.duplicate())).collect(),
        };
        if full.is_empty() {
            return self.measured(batch).await;
        }
        let refused = |append: &Append| full.contains(&append.topic_partition);
        let rest: Vec<Append> = batch.iter().filter(|append| !refused(append)).cloned().collect();
        let mut results = if rest.is_empty() { Vec::new() } else { self.measured(&rest).await }.into_iter();
        let missing = || Err(Error::new(ErrorKind::Protocol, "the backend gave too few results"));
        let result = |append: &Append| {
            if refused(append) {
                let why = format!("{} is full: it has {bound} entries or more", append.topic_partition);
                return Err(Error::new(ErrorKind::Backpressure, why));
            }
            results.next().unwrap_or_else(missing)
        };
        batch.iter().map(result).collect()
    }

    async fn measured(&self, batch: &[Append]) -> Vec<Result<MessageId>> {
        let Measured { results, lengths } = self.log.append_measured(batch).await;
        self.lengths().extend(lengths);
        results
    }

    fn lengths(&self) -> std::sync::MutexGuard<'_, BTreeMap<TopicPartition, u64>> {
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The partitions of a batch that have no room, after a wait if that is wanted.
    async fn full(&self, batch: &[Append], deadline: Instant) -> Result<Vec<TopicPartition>> {
        // Asked for again each time: an operator may have given it more room, or none.
        let bound = || self.bound.get().map_or(u64::MAX, NonZeroU64::get);
        let mut full: Vec<TopicPartition> = {
            let lengths = self.lengths();
            let room = |tp: &TopicPartition| lengths.get(tp).is_some_and(|length| *length < bound());
            batch.iter().map(|append| &append.topic_partition).filter(|tp| !room(tp)).cloned().collect()
        };
        full.sort_unstable();
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
