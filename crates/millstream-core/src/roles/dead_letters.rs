//! The dead-letters role: messages that will not be retried, and their replay.

use std::time::Duration;

use async_trait::async_trait;

use crate::capability::unsupported;
use crate::error::{Error, ErrorKind, Result};
use crate::id::MessageId;
use crate::inspect::{Page, Range};
use crate::leases::Lease;
use crate::name::GroupName;
use crate::topic::TopicPartition;
use crate::wire::{self, Field, Fields};

pub use crate::message::dead_letter::{DeadLetter, Reason};
pub use crate::topic::dead_letter_retention::{DeadLetterRetention, Overdue};

/// Time for which a letter that was [put back](DeadLetters::put) is remembered, counted from the last one: 7 days.
pub const IMPORT_MEMORY: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Longest time for which a claim holds or a letter is left alone: longer times are cut to it. 365 days.
pub const MAX_HOLD: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Request for exclusive access to dead letters for a limited time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Name of the claimer: 1 to 128 bytes without spaces, unique to one run of one program.
    pub by: String,
    /// Time for which the claim holds, in milliseconds rounded up, by the server's clock; at most [`MAX_HOLD`].
    pub hold: Duration,
    /// Whether to claim also letters that were [left](DeadLetterAction::Leave) for later.
    pub left_too: bool,
}

impl Claim {
    /// Returns the name, if it is valid.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if it is empty, too long, has spaces, or is `-`.
    pub fn check(&self) -> Result<&str> {
        let by = self.by.as_str();
        let bad = by.is_empty() || by == "-" || by.len() > 128 || by.contains(char::is_whitespace);
        if bad {
            let message = format!("{by:?} cannot claim: 1 to 128 bytes without spaces, and not \"-\"");
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        Ok(by)
    }
}

/// Action on a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetterAction {
    /// Move it back to its group, and to no other, as a first attempt.
    Replay,
    /// The same, with another body: at most [`MAX_BODY_FIELDS`](wire::MAX_BODY_FIELDS) fields; an empty one keeps the
    /// body that it has.
    ReplayAs(Fields),
    /// Delete it permanently.
    Purge,
    /// Keep it and end its claim; only the claimer can do this. For this time it is not claimed again, except by claims
    /// with [`left_too`](Claim::left_too); at most [`MAX_HOLD`].
    Leave(Duration),
}

impl DeadLetterAction {
    /// Checks whether a store can do it.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for a body with too many fields.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::ReplayAs(body) => check_body(body),
            Self::Replay | Self::Purge | Self::Leave(_) => Ok(()),
        }
    }
}

/// Checks whether a body can be stored as a dead letter, or replayed in place of another one.
///
/// # Errors
/// [`ErrorKind::TooLarge`] if it has too many fields.
pub fn check_body(body: &[Field]) -> Result<()> {
    let fields = body.len();
    if fields > wire::MAX_BODY_FIELDS {
        let message =
            format!("{fields} fields in the body of a dead letter, at most {}", wire::MAX_BODY_FIELDS);
        return Err(Error::new(ErrorKind::TooLarge, message));
    }
    Ok(())
}

/// Caller of a [trim](DeadLetters::trim).
#[derive(Clone, Copy, Debug)]
pub enum TrimBy<'a> {
    /// The owner of the partition for the group: a former owner, which may have been paused and know an earlier retention, is
    /// refused. It does a bounded amount of work.
    Owner(&'a Lease),
    /// An operator. All is done.
    Operator,
    /// An operator who wants to know what would be dropped. Nothing is.
    DryRun,
}

/// Result of a [trim](DeadLetters::trim).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimmedLetters {
    /// Number of dead letters that were dropped because they were too old.
    pub aged: u64,
    /// Number of dead letters that were dropped because there were too many newer ones.
    pub excess: u64,
    /// Number of dead letters that would have been dropped and stay, because they are claimed.
    pub claimed: u64,
    /// Whether there may be more to drop: an owner's trim is bounded.
    pub more: bool,
}

impl TrimmedLetters {
    /// Creates a result without more to drop.
    #[must_use]
    pub const fn new(aged: u64, excess: u64, claimed: u64) -> Self {
        Self { aged, excess, claimed, more: false }
    }

    /// Returns the number of dead letters that were dropped.
    #[must_use]
    pub const fn dropped(self) -> u64 {
        self.aged + self.excess
    }

    /// Counts one more letter that is dropped.
    pub fn count(&mut self, overdue: Overdue) {
        match overdue {
            Overdue::Age => self.aged += 1,
            Overdue::Length => self.excess += 1,
        }
    }
}

/// Lists, claims, settles and puts back dead letters of one group in one partition.
/// None of this needs a lease: operators do it while consumers run. A *claim* reserves a letter for one of them during
/// work that cannot be one step, such as publishing it to another topic. It ends when the letter is settled, or expires
/// by the server's clock: then another process may claim the letter.
#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Returns up to `limit` (at most [`MAX_PAGE`](crate::inspect::MAX_PAGE)) dead letters, of about
    /// [`MAX_PAGE_BYTES`](crate::inspect::MAX_PAGE_BYTES) in total. There may be more [behind](Range::behind) the last
    /// one. Claimed letters are included.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        range: Range,
        limit: usize,
    ) -> Result<Page<DeadLetter>>;

    /// Claims dead letters, and returns the ids of those that were claimed: not those that are gone, or that another
    /// process has claimed. A process that claims its own letters again extends its claim.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`]; [`ErrorKind::InvalidConfig`] for an invalid name. Letters that were
    /// claimed stay claimed until the claim expires.
    async fn claim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
        claim: &Claim,
    ) -> Result<Vec<MessageId>>;

    /// Applies actions to dead letters, and returns the ids of those that were done. Each letter is settled once, however
    /// many requests run concurrently.
    ///
    /// Letters that are gone are skipped, and so are letters that are claimed by another name than `by`. `by` is for the
    /// claimer. With it, letters that another process has [left](DeadLetterAction::Leave) for later are skipped too: the
    /// caller was too slow, and the other process has decided since. An expired claim counts as long as no other process
    /// has claimed the letter. Without `by`, letters that were left are replayed and purged like any other: a caller that
    /// names a letter without a claim means it.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`]. Actions that were done stay done. [`ErrorKind::TooLarge`] for a body
    /// with too many fields: nothing was done.
    async fn settle(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        by: Option<&str>,
        deeds: &[(MessageId, DeadLetterAction)],
    ) -> Result<Vec<MessageId>>;

    /// Puts exported letters back, each under a new id; returns these ids. `None` for a letter that still exists under
    /// its old id, or that was put back before, whatever became of it. The latter is remembered for [`IMPORT_MEMORY`];
    /// `again` ignores it.
    ///
    /// Their topic, partition and group are taken from the arguments.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    async fn put(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        letters: &[DeadLetter],
        again: bool,
    ) -> Result<Vec<Option<MessageId>>>;

    /// Deletes all dead letters up to an id, claimed or not. Returns the number of deleted letters.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`]. Letters that were deleted stay deleted.
    async fn purge_through(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        last: MessageId,
    ) -> Result<usize>;

    /// Drops the dead letters that a retention does not keep, oldest first: see [`DeadLetterRetention`]. Letters that are
    /// claimed at the moment stay. The clock is the server's.
    ///
    /// [Optional](crate::Capability::TrimDeadLetters).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] for an [owner](TrimBy::Owner) that is none any more: nothing was dropped. Transient ones and
    /// [`ErrorKind::WrongType`]: letters that were dropped stay dropped. By default [`ErrorKind::Unsupported`].
    async fn trim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        retention: DeadLetterRetention,
        by: TrimBy<'_>,
    ) -> Result<TrimmedLetters> {
        let _ = (topic_partition, group, retention, by);
        Err(unsupported("DeadLetters::trim"))
    }

    /// Moves unclaimed dead letters back to their group. Returns the number of moved letters.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    async fn replay(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize> {
        let deeds: Vec<_> = ids.iter().map(|id| (*id, DeadLetterAction::Replay)).collect();
        Ok(self.settle(topic_partition, group, None, &deeds).await?.len())
    }

    /// Deletes unclaimed dead letters permanently. Returns the number of deleted letters.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    async fn purge(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize> {
        let deeds: Vec<_> = ids.iter().map(|id| (*id, DeadLetterAction::Purge)).collect();
        Ok(self.settle(topic_partition, group, None, &deeds).await?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_claims_has_a_name() {
        let named = |by: &str| Claim { by: by.into(), hold: Duration::ZERO, left_too: false };
        for bad in ["", "-", "a b", "a\n", &"x".repeat(129)] {
            assert_eq!(named(bad).check().expect_err(bad).kind(), ErrorKind::InvalidConfig);
        }
        assert_eq!(named("cli-1f").check().expect("a name"), "cli-1f");
    }
}
