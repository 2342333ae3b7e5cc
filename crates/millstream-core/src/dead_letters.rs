//! The dead-letters role: what will not be retried, and how it comes back.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::envelope::{Envelope, Limits};
use crate::error::{Error, ErrorKind, Result};
use crate::history::History;
use crate::id::MessageId;
use crate::inspect::{Page, Range};
use crate::name::GroupName;
use crate::topic::TopicPartition;
use crate::wire::{self, Field, Fields, Malformed};

/// Why a message was given up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The retry policy had no further attempt.
    Exhausted,
    /// The handler said so.
    Rejected,
    /// The codec could not read the payload.
    Undecodable,
    /// The entry is not a message: no payload, a field twice, or over a limit.
    Malformed,
    /// Processes died over it, as often as the consumer allows.
    Crashed,
    /// A parked message whose body was gone when it became due; only its id is left.
    Orphan,
    /// A word that this version does not know.
    Other(Cow<'static, str>),
}

impl Reason {
    /// The word in the entry, in metrics and in the CLI.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
            Self::Malformed => "malformed",
            Self::Crashed => "crashed",
            Self::Orphan => "orphan",
            Self::Other(word) => word,
        }
    }

    /// Reads the word back.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        [Self::Exhausted, Self::Rejected, Self::Undecodable, Self::Malformed, Self::Crashed, Self::Orphan]
            .into_iter()
            .find(|reason| reason.as_str() == word)
            .unwrap_or_else(|| Self::Other(Cow::Owned(word.to_owned())))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A message that a group gave up, with where it came from and its original entry.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The id of the dead letter; its first part is when the message died, by the server's clock.
    pub id: MessageId,
    /// Why.
    pub reason: Reason,
    /// How many attempts were made.
    pub attempts: u32,
    /// What the last attempt failed with; empty if none was made.
    pub error: String,
    /// The id of the message in its partition's log.
    pub origin: MessageId,
    /// The partition it came from and goes back to.
    pub topic_partition: TopicPartition,
    /// The group that gave it up.
    pub group: GroupName,
    /// What all attempts failed with, as far as that is kept.
    pub history: History,
    /// The original entry, byte for byte.
    pub body: Fields,
}

impl DeadLetter {
    /// Reads a dead letter of `group` in `topic_partition` from its entry.
    ///
    /// An entry that somebody else put there is shown too, with an empty reason and itself as the body.
    #[must_use]
    pub fn from_entry(
        id: MessageId,
        topic_partition: TopicPartition,
        group: GroupName,
        fields: &[Field],
    ) -> Self {
        let (lead, body) = wire::split_dead(fields);
        let text = |name| wire::text(lead, name);
        Self {
            id,
            reason: wire::reason(lead),
            attempts: text(wire::ATTEMPTS).and_then(|n| n.parse().ok()).unwrap_or(0),
            error: text(wire::ERROR).unwrap_or_default(),
            origin: text(wire::ORIGIN).and_then(|id| id.parse().ok()).unwrap_or(id),
            topic_partition,
            group,
            history: wire::history(lead),
            body: body.to_vec(),
        }
    }

    /// The message, if the body is one.
    ///
    /// # Errors
    /// Why it is none.
    pub fn envelope(&self, limits: &Limits) -> Result<Envelope, Malformed> {
        wire::decode_body(&self.body, limits)
    }
}

/// For how long it is remembered which letters were [put back](DeadLetters::put), counted from the last one.
pub const IMPORT_MEMORY: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The longest that a claim holds, or that a letter is left alone: longer ones are cut.
pub const MAX_HOLD: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What somebody asks for who wants dead letters to himself for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who: 1 to 128 bytes without spaces, unique to one run of one program.
    pub by: String,
    /// For how long, in milliseconds rounded up, by the server's clock; at most [`MAX_HOLD`].
    pub hold: Duration,
    /// Whether letters are claimed too that were [left](DeadLetterAction::Leave) for later.
    pub left_too: bool,
}

impl Claim {
    /// The name, if it can be one.
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

/// What becomes of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetterAction {
    /// It goes back to its group, and to no other, as a first attempt.
    Replay,
    /// The same, with another body: at most [`MAX_BODY_FIELDS`](wire::MAX_BODY_FIELDS) fields; none for the one it has.
    ReplayAs(Fields),
    /// It is deleted for good.
    Purge,
    /// It stays, and who has claimed it has it no more; nobody else can leave it. For so long it is not claimed again,
    /// unless by those who claim what was [left, too](Claim::left_too); at most [`MAX_HOLD`].
    Leave(Duration),
}

impl DeadLetterAction {
    /// Whether a store can do it.
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

/// Whether a body can be put among dead letters, or replayed in the place of another.
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

/// Lists, claims, settles and puts back dead letters of one group in one partition.
///
/// None of this needs a lease: operators do it while consumers run. A *claim* keeps a letter for one of them while
/// something is done that cannot be one step, such as publishing it to another topic. It ends when the letter is
/// settled, or runs out by the server's clock: then somebody else may claim it.
#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Up to `limit` (at most [`MAX_PAGE`](crate::inspect::MAX_PAGE)) dead letters, and about
    /// [`MAX_PAGE_BYTES`](crate::inspect::MAX_PAGE_BYTES). [`Range::behind`] the last one there may be more. Claimed ones
    /// are among them.
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

    /// Claims dead letters, and tells which: not those that are gone, or that somebody else has claimed. Whoever
    /// claims his own again has them for longer.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`]; [`ErrorKind::InvalidConfig`] for a name that is none. What was claimed
    /// stays claimed until it runs out.
    async fn claim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
        claim: &Claim,
    ) -> Result<Vec<MessageId>>;

    /// Does something to dead letters, and tells to which. Each is done once, however many do it at the same time.
    ///
    /// Passed over are those that are gone, and those that somebody other than `by` has claimed. With `by`, which is for
    /// who has claimed them, also those that somebody has [left](DeadLetterAction::Leave) for later: whoever finds that was too slow,
    /// and somebody else has decided since. A claim that ran out counts as long as nobody else has come. Without `by`,
    /// what was left is replayed and purged as if nothing was said of it: who names a letter without a claim means it.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`]. What was done stays done. [`ErrorKind::TooLarge`] for a body with too
    /// many fields: nothing was done.
    async fn settle(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        by: Option<&str>,
        deeds: &[(MessageId, DeadLetterAction)],
    ) -> Result<Vec<MessageId>>;

    /// Puts letters back that were taken elsewhere before, each under a new id; tells these ids. `None` for one that is
    /// still there under the id it had, or that was put back before, whatever became of it; the latter is remembered for
    /// [`IMPORT_MEMORY`], and passed over with `again`.
    ///
    /// Their topic, partition and group are written as they are said here.
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

    /// Deletes all dead letters up to an id, claimed or not. Gives back how many.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`]. What was deleted stays deleted.
    async fn purge_through(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        last: MessageId,
    ) -> Result<usize>;

    /// Moves dead letters that nobody has claimed back to their group. Gives back how many.
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

    /// Deletes dead letters that nobody has claimed for good. Gives back how many.
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
    fn a_reason_reads_back_and_an_unknown_one_is_kept() {
        for reason in ["exhausted", "rejected", "undecodable", "malformed", "orphan", "from-the-future"] {
            assert_eq!(Reason::parse(reason).as_str(), reason);
        }
        assert_eq!(Reason::parse("exhausted"), Reason::Exhausted);
    }

    #[test]
    fn who_claims_has_a_name() {
        let named = |by: &str| Claim { by: by.into(), hold: Duration::ZERO, left_too: false };
        for bad in ["", "-", "a b", "a\n", &"x".repeat(129)] {
            assert_eq!(named(bad).check().expect_err(bad).kind(), ErrorKind::InvalidConfig);
        }
        assert_eq!(named("cli-1f").check().expect("a name"), "cli-1f");
    }

    #[test]
    fn an_entry_reads_back() {
        let letter = DeadLetter {
            id: MessageId::new(9, 0),
            reason: Reason::Rejected,
            attempts: 3,
            error: "no such flight".into(),
            origin: MessageId::new(5, 1),
            topic_partition: TopicPartition::new("flights".parse().expect("name"), 2),
            group: "crew".parse().expect("name"),
            history: History::parse("5 1 no gate\n9 3 no such flight"),
            body: wire::encode(&Envelope::new("x")),
        };
        let fields = wire::dead_letter(&letter, &letter.body);
        let back =
            DeadLetter::from_entry(letter.id, letter.topic_partition.clone(), letter.group.clone(), &fields);
        assert_eq!(format!("{back:?}"), format!("{letter:?}"));
        assert_eq!(back.envelope(&Limits::default()).expect("a message"), Envelope::new("x"));
    }
}
