//! Mistakes of holding, seeking, and results of messages.

use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::leases::Token;
use millstream_core::log::ProgressRight;
use millstream_core::log::{Fetched, Note, Receipt, Settled, Settlement, Source};
use millstream_core::progress::{ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::{Capability, Timestamp};
use millstream_core::{Error, ErrorKind, GroupName, Lease, Result, TopicPartition};

use super::log::earlier;
use super::{Broken, Memo, Mutant};

impl Broken {
    /// Stores and spoils a note, and returns whether to pass it on to the backend.
    pub(super) fn noted(
        &self,
        key: (TopicPartition, GroupName, Receipt),
        token: &Token,
        note: &mut Note,
    ) -> bool {
        let source = key.2.source;
        let known = self.memo().notes.insert(key, (token.clone(), note.clone())).is_some();
        match self.sabotage {
            Mutant::HoldForgotten => false,
            Mutant::NotesOfTheLogOnly => source == Source::Log,
            Mutant::FirstNoteStays => !known,
            Mutant::NoteWaitEarly => {
                note.due = earlier(note.due);
                true
            }
            _ => true,
        }
    }

    /// Fails if the group is missing for this mistake, though the backend has it.
    pub(super) fn refuse_missing(&self, lease: &Lease) -> Result<()> {
        let (tp, group) = lease.partition()?;
        if self.memo().missing.contains(&(tp.clone(), group.clone())) {
            return Err(Error::new(ErrorKind::GroupMissing, "the group did not grow"));
        }
        Ok(())
    }

    pub(super) async fn broken_seek(&self, lease: &Lease, start: Start) -> Result<()> {
        let lease = self.unfenced(Mutant::FenceIgnoredOnSeek, lease);
        let (tp, group) = lease.partition()?;
        let mut to = start;
        match (self.sabotage, start) {
            (Mutant::SeekForgotten, _) => return Ok(()),
            (Mutant::SeekIgnoresTime, Start::At(_)) => to = Start::Earliest,
            (Mutant::BeyondTheEndIsTheBeginning, start) => to = self.not_beyond(tp, start).await?,
            (Mutant::SeekLeavesPending, _) => self.leave_pending(&lease).await?,
            (Mutant::SeekDropsRetries, _) => {
                self.memo().without_retries.insert((tp.clone(), group.clone()));
            }
            _ => {}
        }
        match self.inner.log().seek(&lease, to).await {
            Ok(()) if self.is(Mutant::SeekKeepsTheLease) => self
                .inner
                .leases()
                .acquire(
                    &lease.resource,
                    "owner",
                    "the same",
                    lease.ttl,
                    &millstream_core::Continuity::assured(),
                )
                .await
                .map(drop),
            Err(error) if error.kind() == ErrorKind::GroupMissing && self.is(Mutant::LostGroupHidden) => {
                Ok(())
            }
            other => other,
        }
    }

    /// Returns the start, or the beginning of the log if no entry is above it.
    pub(super) async fn not_beyond(&self, tp: &TopicPartition, start: Start) -> Result<Start> {
        let placed = matches!(start, Start::After(_) | Start::At(_));
        let beyond = placed && self.inner.catalog().count(tp, start, None, 1).await? == 0;
        Ok(if beyond { Start::Earliest } else { start })
    }

    /// Stores the pending entries, to be delivered once more.
    async fn leave_pending(&self, lease: &Lease) -> Result<()> {
        let (tp, group) = lease.partition()?;
        let mut reader = self.inner.log().reader(lease).await?;
        let fetched = reader.fetch(usize::MAX, Duration::ZERO).await?;
        if fetched.pending {
            self.memo().left.insert((tp.clone(), group.clone()), fetched.entries);
        }
        Ok(())
    }
}

impl Memo {
    /// Spoils the notes, and the state that a seek should have changed.
    pub(super) fn spoil_notes(
        &mut self,
        sabotage: Mutant,
        lease: &Lease,
        fetched: &mut Fetched,
    ) -> Result<()> {
        let (tp, group) = lease.partition()?;
        let of_group = (tp.clone(), group.clone());
        fetched.entries.splice(..0, self.left.remove(&of_group).unwrap_or_default());
        if self.without_retries.contains(&of_group) {
            fetched.entries.retain(|entry| entry.receipt.source == Source::Log);
        }
        for entry in &mut fetched.entries {
            let noted = self.notes.get(&(tp.clone(), group.clone(), entry.receipt));
            match (sabotage, &mut entry.note, noted) {
                (Mutant::NotesLostAtTakeover, note, Some((token, _))) if *token != lease.token => {
                    *note = None;
                }
                (Mutant::NotesOutliveTheirEntry, note @ None, Some((_, noted))) => {
                    *note = Some(noted.clone());
                }
                (Mutant::NotesShared, note @ None, None) => {
                    let other = |((of, _, receipt), _): &(&(TopicPartition, _, Receipt), _)| {
                        (of, receipt) == (tp, &entry.receipt)
                    };
                    *note = self.notes.iter().find(other).map(|(_, (_, noted))| noted.clone());
                }
                (Mutant::NoteLosesStory, Some(note), _) => {
                    note.error.clear();
                    note.by.clear();
                }
                (Mutant::NoteWaitStands, Some(note), Some((_, noted))) => note.due = noted.due,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Results of messages.
impl Broken {
    /// Takes the results out of settlements.
    pub(super) fn forget_results(&self, batch: &mut [(Receipt, Settlement)]) {
        for (_, settlement) in batch {
            self.spoil_steps(settlement);
            match (self.sabotage, &mut *settlement) {
                (Mutant::MessageResultForgotten, Settlement::AckWith(_)) => *settlement = Settlement::Ack,
                (
                    Mutant::MessageResultForgotten | Mutant::DeadLetterResultForgotten,
                    Settlement::DeadLetter { result, .. },
                ) => *result = None,
                _ => {}
            }
        }
    }

    /// Keeps results beside the backend, whose place is here in [`broken_result`](Self::broken_result).
    pub(super) fn note_results(
        &self,
        tp: &TopicPartition,
        batch: &[(Receipt, Settlement)],
        answer: &Result<Settled>,
    ) {
        self.note_members(tp, batch, answer);
        let keeps = match (self.sabotage, answer) {
            (Mutant::MessageResultUnfenced, Err(error)) => error.kind() == ErrorKind::Fenced,
            (Mutant::StaleMessageResultStored, Ok(settled)) => settled.stale > 0,
            (
                Mutant::LastMessageResultWins
                | Mutant::MessageFailureStays
                | Mutant::MessageResultNeverLeaves
                | Mutant::MessageResultsCollide,
                Ok(settled),
            ) => settled.applied > 0,
            _ => false,
        };
        for stored in batch.iter().filter(|_| keeps).filter_map(|(_, settlement)| settlement.result()) {
            let Some(request) = stored.demand.result else { continue };
            let id = self.result_id(&ResultId::new(tp.clone(), request.number));
            let mut memo = self.memo();
            let first = !memo.message_results.contains_key(&id);
            let replaces = self.is(Mutant::MessageResultNeverLeaves)
                && memo.message_results.get(&id).is_some_and(|earlier| stored.result.replaces(earlier));
            if first || replaces || self.is(Mutant::LastMessageResultWins) {
                memo.message_results.insert(id, stored.result.clone());
            }
        }
    }

    fn result_id(&self, id: &ResultId) -> ResultId {
        let number = if self.is(Mutant::MessageResultsCollide) { 0 } else { id.number };
        ResultId::new(id.place.clone(), number)
    }

    pub(super) async fn broken_result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        self.supports(Capability::Results)?;
        let known = self.memo().message_results.get(&self.result_id(id)).cloned();
        let wait = if self.is(Mutant::MessageResultWaitForgotten) { Duration::ZERO } else { wait };
        match known {
            Some(_) if self.is(Mutant::MessageResultReadOnce) => Ok(None),
            Some(known) => Ok(Some(known)),
            None => {
                let found = self.inner.log().result(id, wait).await?;
                if let (Some(found), Mutant::MessageResultReadOnce) = (&found, self.sabotage) {
                    self.memo().message_results.insert(id.clone(), found.clone());
                }
                Ok(found)
            }
        }
    }
}

/// Progress of messages.
impl Broken {
    /// Keeps lines beside the backend, whose place is here in [`broken_progress`](Self::broken_progress).
    pub(super) async fn broken_report(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        self.supports(Capability::Results)?;
        if self.is(Mutant::ProgressForgotten) {
            return Ok(());
        }
        let mut report = report.clone();
        if self.is(Mutant::ProgressesCollide) {
            report.request.number = 0;
        }
        let answer = self.inner.log().report_progress(right, &report).await;
        let keeps = match (self.sabotage, &answer) {
            (Mutant::ProgressUnfenced, Err(error)) => error.kind() == ErrorKind::Fenced,
            (Mutant::ProgressUnbounded | Mutant::ProgressNeverLeaves, Ok(())) => true,
            _ => return answer,
        };
        let mut memo = self.memo();
        let lines = memo.progress.entry(report.request.number).or_default();
        for line in report.lines.iter().filter(|_| keeps) {
            if self.is(Mutant::ProgressNeverLeaves) && lines.last().is_some_and(|last| line.replaces(last)) {
                lines.pop();
            }
            // Behind all that the backend has.
            let (number, at) = (u64::MAX / 2 + lines.len() as u64, Timestamp::from_millis(1));
            lines.push(ProgressLine::new(number, at, report.attempt, line.clone()));
        }
        if self.is(Mutant::ProgressUnfenced) { Ok(()) } else { answer }
    }

    pub(super) async fn broken_progress(
        &self,
        id: &ResultId,
        above: u64,
        wait: Duration,
    ) -> Result<Vec<ProgressLine>> {
        self.supports(Capability::Results)?;
        let number = if self.is(Mutant::ProgressesCollide) { 0 } else { id.number };
        let wait = if self.is(Mutant::ProgressWaitForgotten) { Duration::ZERO } else { wait };
        let id = ResultId::new(id.place.clone(), number);
        let known = self.memo().progress.get(&number).cloned().unwrap_or_default();
        let own = self.inner.log().progress(&id, above, if known.is_empty() { wait } else { Duration::ZERO });
        let own = own.await?;
        Ok(match self.sabotage {
            Mutant::ProgressUnbounded => known.into_iter().filter(|line| line.number > above).collect(),
            Mutant::ProgressNeverLeaves if own.is_empty() => {
                known.into_iter().filter(|line| line.number > above).collect()
            }
            Mutant::ProgressUnfenced => own.into_iter().chain(known).collect(),
            _ => own,
        })
    }
}
