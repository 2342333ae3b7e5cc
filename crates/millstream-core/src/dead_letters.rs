//! The dead-letters role: what will not be retried, and how it comes back.

use std::borrow::Cow;
use std::fmt;

use async_trait::async_trait;

use crate::envelope::{Envelope, Limits};
use crate::error::Result;
use crate::history::History;
use crate::id::MessageId;
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

/// Lists, replays and purges dead letters of one group in one partition.
///
/// None of this needs a lease: operators do it while consumers run.
#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Up to `limit` dead letters with an id above `after`, oldest first. Pass [`MessageId::ZERO`] to start.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
        limit: usize,
    ) -> Result<Vec<DeadLetter>>;

    /// Moves dead letters back to their group, and to no other, as a first attempt. Gives back how many: each
    /// is moved once, however many replay it at the same time; unknown ids are passed over.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). What was moved stays moved.
    async fn replay(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize>;

    /// Deletes dead letters for good. Gives back how many.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn purge(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize>;
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
