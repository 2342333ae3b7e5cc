//! What failed, of whatever kind: a dead letter, a retry that waits, or a dead task.

use millstream_core::inspect::Parked;
use millstream_core::tasks::DeadTask;
use millstream_core::wire::{self, Field, Malformed};
use millstream_core::{
    DeadLetter, Envelope, History, Limits, MessageId, Partition, Reason, Timestamp, TopicPartition,
};

/// A message or task that failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failed {
    /// A dead letter.
    Letter(DeadLetter),
    /// A message that waits for its next attempt.
    Retry(Retry),
    /// A dead task.
    Task(DeadTask),
}

/// Retry that waits, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Partition of the message.
    pub topic_partition: TopicPartition,
    /// The retry.
    pub parked: Parked,
}

/// What is known of a message or task that failed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Facts<'a> {
    /// Its partition; of a task the shard.
    pub partition: Partition,
    /// Id of a dead letter, of the message that waits, or of the record of a dead task.
    pub id: MessageId,
    /// Time of death; of a retry the due time.
    pub at: Timestamp,
    /// Id of the message in its partition's log; of a task that of its record.
    pub origin: MessageId,
    /// Id of a task.
    pub task: Option<&'a str>,
    /// Reason why it was given up, if it was.
    pub reason: Option<&'a Reason>,
    /// Number of attempts; of a retry the number of the next one.
    pub attempts: u32,
    /// Error of the last attempt.
    pub error: &'a str,
    /// Failures of all attempts, as far as they are kept.
    pub history: &'a History,
    /// The original entry.
    pub body: &'a [Field],
}

/// Name of a message or task that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedId {
    /// Its partition; of a task the shard.
    pub partition: Partition,
    /// Its [id](Facts::id).
    pub id: MessageId,
    /// Id of a task.
    pub task: Option<String>,
}

impl Failed {
    /// Returns what is known of it.
    #[must_use]
    pub fn facts(&self) -> Facts<'_> {
        let (partition, id, attempts, error, history, body) = match self {
            Self::Letter(it) => {
                (it.topic_partition.partition, it.id, it.attempts, &it.error, &it.history, &it.body)
            }
            Self::Retry(Retry { topic_partition, parked: it }) => {
                (topic_partition.partition, it.origin, it.attempt, &it.error, &it.history, &it.body)
            }
            Self::Task(it) => {
                (Partition(it.shard.shard), it.id, it.attempts, &it.error, &it.history, &it.body)
            }
        };
        let facts = Facts {
            partition,
            id,
            at: id.timestamp(),
            origin: id,
            task: None,
            reason: None,
            attempts,
            error,
            history,
            body,
        };
        match self {
            Self::Letter(it) => Facts { origin: it.origin, reason: Some(&it.reason), ..facts },
            Self::Retry(it) => Facts { at: it.parked.due, ..facts },
            Self::Task(it) => Facts { task: Some(it.task.as_str()), reason: Some(&it.reason), ..facts },
        }
    }

    /// Returns the dead letter, if it is one.
    #[must_use]
    pub fn letter(self) -> Option<DeadLetter> {
        if let Self::Letter(letter) = self { Some(letter) } else { None }
    }

    /// Returns the retry, if it is one.
    #[must_use]
    pub fn retry(self) -> Option<Retry> {
        if let Self::Retry(retry) = self { Some(retry) } else { None }
    }

    /// Returns the dead task, if it is one.
    #[must_use]
    pub fn task(self) -> Option<DeadTask> {
        if let Self::Task(task) = self { Some(task) } else { None }
    }

    /// Replaces the error if the reason is `undecodable`: codecs quote what they cannot read.
    pub fn conceal(&mut self, text: &str) {
        match self {
            Self::Letter(DeadLetter { reason: Reason::Undecodable, error, .. })
            | Self::Task(DeadTask { reason: Reason::Undecodable, error, .. }) => text.clone_into(error),
            _ => {}
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.facts().body.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl Facts<'_> {
    /// Returns its name.
    #[must_use]
    pub fn named(&self) -> FailedId {
        FailedId { partition: self.partition, id: self.id, task: self.task.map(str::to_owned) }
    }

    /// Returns the id by which it is selected: that of the task, or its own.
    #[must_use]
    pub fn name(&self) -> String {
        self.task.map_or_else(|| self.id.to_string(), str::to_owned)
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// The reason why the body is not a message.
    pub fn envelope(&self, limits: &Limits) -> Result<Envelope, Malformed> {
        wire::decode_body(self.body, limits)
    }
}
