//! Steps of a message or task, as an operator sees them, and signals.

use bytes::Bytes;
use millstream_core::batches::BatchId;
use millstream_core::steps::{Signalled, StepKind, StepRecord, WorkId, check_name};
use millstream_core::{ErrorKind, Result, Timestamp};

use crate::Admin;

/// What is stored of the steps of one message for a group, or of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkSteps {
    /// When it was read, by the server's clock.
    pub now: Timestamp,
    /// The records, in the order in which they were stored.
    pub records: Vec<StepRecord>,
}

impl WorkSteps {
    /// Whether a record is a wait that has not ended.
    #[must_use]
    pub fn is_open(&self, record: &StepRecord) -> bool {
        let is_signalled = record.ends_by_signal() && self.of(StepKind::Signal, &record.name).is_some();
        record.kind == StepKind::Wait && record.at > self.now && !is_signalled
    }

    /// Returns the waits that somebody can end by a signal. That of a step for its members is not among them.
    pub fn waits(&self) -> impl Iterator<Item = &StepRecord> {
        self.records.iter().filter(|it| self.is_open(it) && it.ends_by_signal() && !it.is_of_members())
    }

    /// Returns what would become of a signal of this name, as far as that is known without sending it.
    #[must_use]
    pub fn foreseen(&self, name: &str) -> Option<Signalled> {
        match (self.of(StepKind::Signal, name), self.of(StepKind::Wait, name)) {
            (Some(_), _) => Some(Signalled::Known),
            (None, Some(wait)) if wait.at <= self.now => Some(Signalled::Late),
            _ => None,
        }
    }

    fn of(&self, kind: StepKind, name: &str) -> Option<&StepRecord> {
        self.records.iter().find(|it| it.kind == kind && it.name == name)
    }
}

/// Returns the batch of the members of a step, if the record names it.
#[must_use]
pub fn batch_of(record: &StepRecord) -> Option<BatchId> {
    let sent = std::str::from_utf8(&record.value).ok().filter(|_| record.is_of_members())?;
    sent.split(' ').next()?.parse().ok()
}

/// Returns the word for what a record is.
#[must_use]
pub fn step_word(record: &StepRecord) -> &'static str {
    match record.kind {
        StepKind::Done if record.is_of_members() => "sent",
        StepKind::Done => "done",
        StepKind::Wait => "waits",
        StepKind::Signal => "signal",
    }
}

impl Admin {
    /// Returns what is stored of the steps of a message or task; nothing of one that is settled, or never was there. The steps of a dead letter are in its
    /// [header](millstream_core::steps::STEPS_HEADER), also while it is replayed.
    ///
    /// # Errors
    /// `Unsupported` for a backend without steps; `Protocol` for what is none of ours; transient ones.
    pub async fn steps(&self, id: &WorkId) -> Result<WorkSteps> {
        let (now, records) = self.backend.steps()?.read(id).await?;
        Ok(WorkSteps { now, records })
    }

    /// Signals a message or task that waits for this in its steps, or will. The value is what the handler reads: JSON.
    ///
    /// # Errors
    /// `InvalidName`, `TooLarge` above [256 KiB](millstream_core::steps::MAX_STEPS), and `GroupMissing`; `Unsupported` for a backend without steps; transient
    /// ones, after which it can be repeated.
    pub async fn signal(&self, id: &WorkId, name: &str, value: impl Into<Bytes>) -> Result<Signalled> {
        check_name(name)?;
        self.backend.steps()?.signal(id, name, value.into()).await
    }

    /// Returns the name of the wait for which something is parked until this time.
    pub(crate) async fn wait_until(&self, id: &WorkId, due: Timestamp) -> Result<Option<String>> {
        let Ok(role) = self.backend.steps() else { return Ok(None) };
        match role.read(id).await {
            Ok((_, records)) => {
                let wait = records.into_iter().rfind(|it| it.kind == StepKind::Wait && it.at == due);
                Ok(wait.map(|it| it.step().to_owned()))
            }
            // What cannot be read does not hide where the message is.
            Err(error) if matches!(error.kind(), ErrorKind::Protocol | ErrorKind::WrongType) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
