//! What handlers have done of the messages of a group, or of the tasks of a shard.

use std::collections::HashMap;

use bytes::Bytes;
use millstream_core::steps::{MAX_STEPS, STEPS_HEADER, Signalled, StepKind, StepRecord, StepWait, too_large};
use millstream_core::wire::{self, Fields};
use millstream_core::{Result, Timestamp};

/// Steps by the id of the message's entry in the log, or of the task.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepTable(HashMap<String, Vec<StepRecord>>);

impl StepTable {
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// Returns the records of a message or task, of several of one kind and name the first.
    pub(crate) fn get(&self, id: &str) -> Result<Vec<StepRecord>> {
        StepRecord::read(&self.written(id).into())
    }

    /// Returns the form in which they go into a header.
    fn written(&self, id: &str) -> Vec<u8> {
        self.0.get(id).map(|records| StepRecord::write(records)).unwrap_or_default()
    }

    /// Returns the time of the first record of a kind and name.
    fn time_of(&self, id: &str, kind: StepKind, name: &str) -> Option<Timestamp> {
        self.first(id, kind, name).map(|it| it.at)
    }

    fn first(&self, id: &str, kind: StepKind, name: &str) -> Option<&StepRecord> {
        self.0.get(id)?.iter().find(|it| it.kind == kind && it.name == name)
    }

    /// Adds records, unless there would be too much.
    pub(crate) fn add(&mut self, id: &str, records: &[StepRecord]) -> Result<()> {
        // What stands at the end was stored by an earlier call, whose answer was lost.
        if self.0.get(id).is_some_and(|known| known.ends_with(records)) || records.is_empty() {
            return Ok(());
        }
        if self.written(id).len() + StepRecord::write(records).len() > MAX_STEPS {
            return Err(too_large());
        }
        self.0.entry(id.to_owned()).or_default().extend_from_slice(records);
        Ok(())
    }

    /// Stores a signal. If the message or task `is_parked` and waits for it, the caller makes it due.
    pub(crate) fn signal(
        &mut self,
        id: &str,
        (name, value): (&str, Bytes),
        is_parked: bool,
        now: Timestamp,
    ) -> Result<Signalled> {
        let wait = self.first(id, StepKind::Wait, name);
        let (ends, is_awaited) = (wait.map(|it| it.at), wait.is_some_and(StepRecord::ends_by_signal));
        if self.time_of(id, StepKind::Signal, name).is_some() {
            return Ok(Signalled::Known);
        }
        if ends.is_some_and(|ends| ends <= now) {
            return Ok(Signalled::Late);
        }
        let signal = StepRecord::new(StepKind::Signal, now, name, value);
        if signal.is_of_members() {
            // It is small, and is stored however much there is.
            self.0.entry(id.to_owned()).or_default().push(signal);
        } else {
            self.add(id, &[signal])?;
        }
        Ok(if is_awaited && is_parked { Signalled::Woken } else { Signalled::Stored })
    }

    /// Notes a wait unless it is noted, and returns when what waits is due.
    pub(crate) fn wait_until(
        &mut self,
        id: &str,
        wait: &StepWait,
        due: Timestamp,
        now: Timestamp,
    ) -> Timestamp {
        let ends = self.time_of(id, StepKind::Wait, &wait.name).unwrap_or_else(|| {
            // However much there is: a message that could not be parked would come again at once.
            let noted = StepRecord::of_wait(wait, due);
            self.0.entry(id.to_owned()).or_default().push(noted);
            due
        });
        let is_signalled = wait.signal && self.time_of(id, StepKind::Signal, &wait.name).is_some();
        if is_signalled { now } else { ends }
    }

    /// Moves the steps to the header of a dead letter, behind those that are there.
    pub(crate) fn bury(&mut self, id: &str, body: &mut Fields) {
        let written = self.written(id);
        if self.0.remove(id).is_none() {
            return;
        }
        let name = format!("{}{STEPS_HEADER}", wire::HEADER);
        match body.iter_mut().find(|(field, _)| *field == name) {
            Some((_, value)) if contains(&written, value) => *value = written.into(),
            Some((_, value)) => *value = [&value[..], &written].concat().into(),
            None => body.push((name.into(), written.into())),
        }
    }

    pub(crate) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }
}

/// Whether all of the second stands in the first: it was stored again since.
fn contains(all: &[u8], part: &[u8]) -> bool {
    part.is_empty() || all.windows(part.len()).any(|some| some == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn steps_have_a_bound_which_the_note_of_a_wait_may_exceed() {
        let mut steps = StepTable::default();
        let record = |bytes| StepRecord::new(StepKind::Done, at(1), "a", vec![0; bytes]);
        let lead = StepRecord::write(&[record(100_000)]).len() - 100_000;
        let exact = record(MAX_STEPS - lead);
        assert!(steps.add("1", &[exact.clone(), record(0)]).is_err());
        assert!(!steps.contains("1"), "nothing was stored");
        steps.add("1", &[exact]).expect("as much as there may be");
        assert!(steps.add("1", &[record(0)]).is_err());
        assert!(steps.signal("1", ("b", Bytes::new()), true, at(1)).is_err());
        assert_eq!(steps.wait_until("1", &StepWait::sleep("c"), at(9), at(1)), at(9));
        assert_eq!(steps.wait_until("1", &StepWait::sleep("c"), at(10), at(1)), at(9));
    }

    #[test]
    fn a_header_has_what_was_there_and_what_came_since() {
        let mut steps = StepTable::default();
        let record = |name: &str| StepRecord::new(StepKind::Done, at(1), name, "x");
        let mut body = vec![("p".into(), "payload".into())];
        steps.bury("1", &mut body);
        assert_eq!(body.len(), 1, "without steps");
        for name in ["first", "second"] {
            steps.add("1", &[record(name)]).expect("stored");
            steps.bury("1", &mut body);
            assert!(!steps.contains("1"), "they are in the header");
        }
        let both = StepRecord::write(&[record("first"), record("second")]);
        assert_eq!(body[1..], [("h:millstream-steps".into(), both.into())]);
    }
}
