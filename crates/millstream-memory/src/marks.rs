//! Marks of cancelled messages of a group, or of cancelled tasks of a shard.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use millstream_core::batches::{BatchId, KEPT_OPEN};
use millstream_core::cancels::{CancelMark, CancelMarks, MAX_MARKS, Marked};
use millstream_core::{MessageId, Timestamp};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// Number of marks from which those that are over are dropped.
const MANY: usize = 1_000;
/// How long they stay.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3_600);

#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    version: u64,
    /// Whether the partition has many readers.
    pub(crate) shared: bool,
    all: HashMap<String, (CancelMark, Timestamp, String)>,
    /// Batches that are cancelled, with all of their members.
    batches: BTreeMap<BatchId, Timestamp>,
    changed: Arc<Notify>,
}

impl Marks {
    /// Returns a mark with the token of its claim.
    pub(crate) fn get(&self, id: &str) -> Option<(CancelMark, &str)> {
        self.all.get(id).map(|(mark, _, claim)| (*mark, &**claim))
    }

    /// Adds a mark. False if there are too many. `first` is the first entry of the log.
    pub(crate) fn add(
        &mut self,
        id: &str,
        mark: CancelMark,
        claim: &str,
        now: Timestamp,
        first: Option<MessageId>,
    ) -> bool {
        self.version += 1;
        if self.all.len() >= MANY && self.version.is_multiple_of(100) {
            self.all.retain(|id, (mark, since, _)| {
                let is_unread = |first: MessageId| id.parse().is_ok_and(|id: MessageId| id.ms >= first.ms);
                *mark == CancelMark::Ahead && first.is_some_and(is_unread)
                    || since.saturating_add(KEPT) >= now
            });
        }
        if self.all.len() >= MAX_MARKS {
            return false;
        }
        self.all.insert(id.to_owned(), (mark, now, claim.to_owned()));
        self.wake();
        true
    }

    /// Cancels all members of a batch.
    pub(crate) fn add_batch(&mut self, batch: &BatchId, now: Timestamp) {
        if !self.batches.contains_key(batch) {
            self.version += 1;
            self.batches.retain(|_, since| since.saturating_add(KEPT_OPEN) >= now);
            self.batches.insert(batch.clone(), now);
            self.wake();
        }
    }

    /// Answers for a mark, if it is of this claim. False if there is none, or if it stays.
    pub(crate) fn answer(&mut self, id: &str, mark: CancelMark, claim: &str, now: Timestamp) -> bool {
        let known = self.all.get_mut(id).filter(|(known, _, of)| mark.replaces(*known) && of == claim);
        let Some((known, since, _)) = known else { return false };
        (*known, *since) = (mark, now);
        self.wake();
        true
    }

    pub(crate) fn remove(&mut self, id: &str) {
        self.all.remove(id);
    }

    /// Removes a mark that has no answer.
    pub(crate) fn forget(&mut self, id: &str) {
        if self.get(id).is_some_and(|(mark, _)| !mark.is_answered()) {
            self.remove(id);
        }
    }

    /// Returns a mark unless it has no answer yet: then what tells that something changed.
    pub(crate) fn look(&self, id: &str) -> Result<Option<CancelMark>, OwnedNotified> {
        match self.get(id) {
            Some((CancelMark::Asked, _)) => Err(self.changed.clone().notified_owned()),
            other => Ok(other.map(|(mark, _)| mark)),
        }
    }

    /// Returns all marks if the version is another one, or else what tells that something changed.
    pub(crate) fn since(&self, version: u64) -> Result<CancelMarks, OwnedNotified> {
        if self.version == version {
            return Err(self.changed.clone().notified_owned());
        }
        let marked = |(id, (mark, _, claim)): (&String, &(CancelMark, Timestamp, String))| Marked {
            id: id.clone(),
            mark: *mark,
            claim: claim.clone(),
        };
        let mut marks: Vec<_> = self.all.iter().map(marked).collect();
        // In a fixed order, since simulations repeat themselves.
        marks.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(CancelMarks { version: self.version, marks, batches: self.batches.keys().cloned().collect() })
    }

    /// Lets all look again that wait for a change.
    pub(crate) fn wake(&self) {
        self.changed.notify_waiters();
    }
}
