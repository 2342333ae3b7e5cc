//! Mistakes of the role of steps.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::cancels::WorkPlace;
use millstream_core::log::{ProgressRight, Settlement};
use millstream_core::steps::{STEPS_HEADER, Signalled, StepKind, StepRecord, StepWait, Steps, WorkId};
use millstream_core::wire::{self, Fields};
use millstream_core::{ErrorKind, Result, Timestamp};

use super::{Broken, Mutant};

/// State that mistakes of this role need.
#[derive(Default)]
pub(super) struct StepMemo {
    /// What was read last, unless it was nothing.
    read: HashMap<WorkId, Vec<StepRecord>>,
    /// The last step of each kind and name.
    last: HashMap<(StepKind, String), StepRecord>,
    /// Waits that are noted, by id and name.
    waits: HashSet<(String, String)>,
}

#[async_trait]
impl Steps for Broken {
    async fn read(&self, id: &WorkId) -> Result<(Timestamp, Vec<StepRecord>)> {
        let steps = self.inner.steps()?;
        let (mut now, mut records) = steps.read(id).await?;
        match (self.sabotage, &id.place) {
            (Mutant::StepsOfAllGroups, WorkPlace::Group(tp, _)) => {
                for group in self.inner.catalog().groups(&tp.topic).await? {
                    let other = WorkId::new(WorkPlace::Group(tp.clone(), group), &id.id);
                    records.extend(steps.read(&other).await?.1);
                }
            }
            (Mutant::StepsOfAllMessages, place) => {
                let others: Vec<_> =
                    self.memo().steps.read.keys().filter(|it| it.place == *place).cloned().collect();
                for other in others.iter().filter(|other| *other != id) {
                    records.extend(steps.read(other).await?.1);
                }
            }
            (Mutant::StepsTimeMadeUp, _) => now = Timestamp::from_millis(1),
            (Mutant::StepTimesMadeUp, _) => records.iter_mut().for_each(|it| it.at = now),
            (Mutant::StepKindsConfused, _) => {
                let mut seen = HashSet::new();
                records.retain(|it| seen.insert(it.name.clone()));
            }
            _ => {}
        }
        let memo = &mut self.memo().steps;
        match self.sabotage {
            Mutant::StepsLastCounts => {
                for record in &mut records {
                    let last = memo.last.get(&(record.kind, record.name.clone()));
                    *record = last.unwrap_or(record).clone();
                }
            }
            Mutant::StepWaitUnfenced => {
                for (_, name) in memo.waits.iter().filter(|(of, _)| *of == id.id) {
                    if !records.iter().any(|it| it.kind == StepKind::Wait && it.name == *name) {
                        records.push(StepRecord::new(StepKind::Wait, now, name.clone(), Bytes::new()));
                    }
                }
            }
            Mutant::StepsNeverLeave if records.is_empty() => {
                records = memo.read.get(id).cloned().unwrap_or_default();
            }
            _ => {}
        }
        if !records.is_empty() {
            memo.read.insert(id.clone(), records.clone());
        }
        Ok((now, records))
    }

    async fn store(&self, right: &ProgressRight, id: &str, records: &[StepRecord]) -> Result<()> {
        if self.is(Mutant::StepsForgotten) {
            return Ok(());
        }
        for record in records {
            self.memo().steps.last.insert((record.kind, record.name.clone()), record.clone());
        }
        let steps = self.inner.steps()?;
        let stored = steps.store(right, id, records).await;
        let Err(error) = &stored else { return stored };
        match (self.sabotage, error.kind()) {
            (Mutant::StepsFenceIgnored, ErrorKind::Fenced)
            | (Mutant::StepsUnbounded, ErrorKind::TooLarge) => Ok(()),
            (Mutant::StepsPartlyStored, ErrorKind::TooLarge) => {
                for record in records {
                    steps.store(right, id, std::slice::from_ref(record)).await?;
                }
                stored
            }
            _ => stored,
        }
    }

    async fn signal(&self, id: &WorkId, name: &str, value: Bytes) -> Result<Signalled> {
        let steps = self.inner.steps()?;
        let value = if self.is(Mutant::SignalLosesValue) { Bytes::new() } else { value };
        match (self.sabotage, &id.place) {
            (Mutant::SignalForgotten, _) => return Ok(Signalled::Stored),
            (Mutant::SignalHitsAllGroups, WorkPlace::Group(tp, of)) => {
                for group in self.inner.catalog().groups(&tp.topic).await?.into_iter().filter(|it| it != of) {
                    let other = WorkId::new(WorkPlace::Group(tp.clone(), group), &id.id);
                    steps.signal(&other, name, value.clone()).await?;
                }
            }
            _ => {}
        }
        let signalled = steps.signal(id, name, value).await;
        match (self.sabotage, &signalled) {
            (Mutant::SignalNameUnchecked, Err(error)) if error.kind() == ErrorKind::InvalidName => {
                Ok(Signalled::Stored)
            }
            (Mutant::SignalGroupUnchecked, Err(error)) if error.kind() == ErrorKind::GroupMissing => {
                Ok(Signalled::Gone)
            }
            (Mutant::StepsUnbounded, Err(error)) if error.kind() == ErrorKind::TooLarge => {
                Ok(Signalled::Stored)
            }
            (Mutant::SignalRepeated, Ok(Signalled::Known))
            | (Mutant::SignalLateStored, Ok(Signalled::Late))
            | (Mutant::SignalGoneStored, Ok(Signalled::Gone))
            | (Mutant::SignalWakesInSilence, Ok(Signalled::Woken)) => Ok(Signalled::Stored),
            (Mutant::SignalAlwaysWakes, Ok(Signalled::Stored)) => Ok(Signalled::Woken),
            _ => signalled,
        }
    }
}

impl Broken {
    /// Spoils what a settlement does with steps, and with results that batches keep.
    pub(super) fn spoil_steps(&self, settlement: &mut Settlement) {
        match settlement {
            Settlement::Retry { origin, wait, .. } => self.spoil_wait(origin, wait),
            Settlement::AckWith(stored) | Settlement::DeadLetter { result: Some(stored), .. } => {
                if self.is(Mutant::StepsOutliveAck) {
                    stored.demand.steps = None;
                }
                if let (Mutant::BatchKeepsEachResult, Some(member)) =
                    (self.sabotage, &mut stored.demand.member)
                {
                    member.keeps_result = true;
                }
            }
            _ => {}
        }
    }

    /// Spoils the wait for which the message or task with this id is handed back.
    pub(super) fn spoil_wait(&self, id: &impl ToString, wait: &mut Option<Box<StepWait>>) {
        let Some(waits) = wait else { return };
        let is_new = self.memo().steps.waits.insert((id.to_string(), waits.name.clone()));
        match self.sabotage {
            Mutant::StepSignalMissed => waits.signal = false,
            Mutant::StepSleepSignalled => waits.signal = true,
            Mutant::StepWaitForgotten => *wait = None,
            Mutant::StepWaitRestarts if !is_new => *wait = None,
            _ => {}
        }
    }

    /// Spoils the steps in the body of what is dead.
    pub(super) fn spoil_dead_steps(&self, body: &mut Fields) {
        let name = format!("{}{STEPS_HEADER}", wire::HEADER);
        match self.sabotage {
            Mutant::DeadLetterLosesSteps => body.retain(|(field, _)| *field != name),
            Mutant::DeadLetterKeepsOneStep => {
                for (_, value) in body.iter_mut().filter(|(field, _)| *field == name) {
                    let last = StepRecord::read(value).ok().and_then(|records| records.last().cloned());
                    *value = last.map(|last| StepRecord::write(&[last]).into()).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
}
