//! Dead letters: messages that a group gave up, with their reasons.

use std::borrow::Cow;
use std::fmt;

use crate::envelope::{Envelope, Limits};
use crate::history::History;
use crate::id::MessageId;
use crate::name::GroupName;
use crate::partition::TopicPartition;
use crate::wire::{self, Field, Fields, Malformed};

/// Reason why a message was given up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The retry policy allowed no further attempt.
    Exhausted,
    /// The handler rejected the message.
    Rejected,
    /// The codec could not read the payload.
    Undecodable,
    /// The entry is not a message: no payload, a duplicate field, or over a limit.
    Malformed,
    /// Processes died while they handled it, as often as the consumer allows.
    Crashed,
    /// An operator gave it up while it waited for its retry.
    Killed,
    /// The body of a parked message was gone when it became due; only its id is left.
    Orphan,
    /// A reason that this version does not know.
    Other(Cow<'static, str>),
}

impl Reason {
    /// All reasons that this version knows.
    pub const ALL: [Self; 7] = [
        Self::Exhausted,
        Self::Rejected,
        Self::Undecodable,
        Self::Malformed,
        Self::Crashed,
        Self::Killed,
        Self::Orphan,
    ];

    /// Returns the word in the entry, in metrics and in the CLI.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
            Self::Malformed => "malformed",
            Self::Crashed => "crashed",
            Self::Killed => "killed",
            Self::Orphan => "orphan",
            Self::Other(word) => word,
        }
    }

    /// Parses the word.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        Self::ALL
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

/// Message that a group gave up, with its place of origin and its original entry.
#[derive(Clone)]
pub struct DeadLetter {
    /// Id of the dead letter; its first part is the time of death, by the server's clock.
    pub id: MessageId,
    /// The reason.
    pub reason: Reason,
    /// Number of attempts that were made.
    pub attempts: u32,
    /// Error of the last attempt; empty if none was made.
    pub error: String,
    /// Id of the message in its partition's log.
    pub origin: MessageId,
    /// The partition it came from and goes back to.
    pub topic_partition: TopicPartition,
    /// The group that gave it up.
    pub group: GroupName,
    /// Failures of all attempts, as far as they are kept.
    pub history: History,
    /// The original entry, byte for byte.
    pub body: Fields,
}

/// Without the bytes of the message: they may be secret.
impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: usize = self.body.iter().map(|(name, value)| name.len() + value.len()).sum();
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("reason", &self.reason)
            .field("attempts", &self.attempts)
            .field("error", &self.error)
            .field("origin", &self.origin)
            .field("topic_partition", &self.topic_partition)
            .field("group", &self.group)
            .field("history", &self.history)
            .field("body_bytes", &bytes)
            .finish()
    }
}

impl DeadLetter {
    /// Reads a dead letter of `group` in `topic_partition` from its entry.
    ///
    /// An entry that another program put there is returned too, with an empty reason and itself as the body.
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

    /// Decodes the message.
    ///
    /// # Errors
    /// The reason why the body is not a message.
    pub fn envelope(&self, limits: &Limits) -> Result<Envelope, Malformed> {
        wire::decode_body(&self.body, limits)
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
