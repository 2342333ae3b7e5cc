//! Builder of histories.
//!
//! Each line is one millisecond after the one before it. A history begins at one second, in the calm phase.

use crate::chaos::record::{End, Fate, Handling, Line, Message, Outcome, Phase, Place, Rest, Scope, What};

/// Time between two lines.
const STEP_US: u64 = 1_000;
/// Time of the true clock at the time 0 of the history.
pub(super) const EPOCH_MS: u64 = 1_700_000_000_000;
/// Process of the test itself.
pub(super) const RUNNER: u32 = 1;
/// Process of the store.
pub(super) const STORE: u32 = 2;

/// A place with owned partitions.
pub(super) fn topic() -> Place {
    Place { name: "orders".to_owned(), group: "billing".to_owned() }
}

/// A delay queue.
pub(super) fn queue() -> Place {
    Place { name: "later".to_owned(), group: String::new() }
}

/// A topic whose effects happen once for each message.
pub(super) fn once() -> Place {
    Place { name: "payments-once".to_owned(), group: "billing".to_owned() }
}

/// A message to the topic, with the key 7.
pub(super) fn message(number: u64) -> Message {
    Message {
        number,
        to: topic().name,
        producer: "producer-1".to_owned(),
        key: Some(7),
        due_ms: 0,
        fate: Fate::Ack,
        safe: false,
    }
}

/// A first attempt at the topic, in partition 0.
pub(super) fn handling(number: u64, epoch: u64) -> Handling {
    Handling {
        place: topic(),
        number,
        partition: 0,
        origin: format!("{number}-0"),
        attempt: 1,
        crashes: 0,
        epoch,
    }
}

/// History under construction.
#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) lines: Vec<Line>,
    now_us: u64,
    faults: u32,
}

impl History {
    /// A history in the calm phase, of a producer (10) and workers (20, 21).
    pub(super) fn new() -> Self {
        let mut it = Self { lines: Vec::new(), now_us: 1_000_000, faults: 0 };
        it.runs(10, "producer-1", "producer").runs(20, "worker-1", "worker").runs(21, "worker-2", "worker");
        it.phase(Phase::Calm)
    }

    /// The same, in the phase of faults.
    pub(super) fn with_faults() -> Self {
        Self::new().phase(Phase::Faults)
    }

    pub(super) fn push(&mut self, pid: u32, what: What) -> &mut Self {
        self.lines.push(Line { at_us: self.now_us, pid, what });
        self.now_us += STEP_US;
        self
    }

    pub(super) fn phase(mut self, phase: Phase) -> Self {
        self.push(RUNNER, What::Phase(phase));
        self
    }

    pub(super) fn runs(&mut self, pid: u32, name: &str, role: &str) -> &mut Self {
        self.push(pid, What::Runs { name: name.to_owned(), role: role.to_owned() })
    }

    pub(super) fn wait(&mut self, ms: u64) -> &mut Self {
        self.now_us += ms * 1_000;
        self
    }

    /// The true time in milliseconds.
    pub(super) fn wall_ms(&self) -> u64 {
        EPOCH_MS + self.now_us / 1_000
    }

    pub(super) fn sending(&mut self, message: Message) -> &mut Self {
        self.push(10, What::Sending(message))
    }

    pub(super) fn sent(&mut self, number: u64, outcome: Outcome) -> &mut Self {
        self.push(10, What::Sent { number, outcome })
    }

    /// A message that is sent and confirmed, in partition 0.
    pub(super) fn send(&mut self, message: Message) -> &mut Self {
        let (number, is_delayed) = (message.number, message.due_ms > 0);
        let id = if is_delayed { String::new() } else { format!("{number}-0") };
        self.sending(message).sent(number, Outcome::Stored { partition: 0, id })
    }

    pub(super) fn begin(&mut self, pid: u32, handling: &Handling) -> &mut Self {
        self.push(pid, What::Begun { handling: handling.clone(), intact: true, early_ms: 0 })
    }

    pub(super) fn effect(&mut self, handling: &Handling, accepted: bool) -> &mut Self {
        self.push(STORE, What::Effect { handling: handling.clone(), accepted })
    }

    pub(super) fn end(&mut self, pid: u32, handling: &Handling, end: End) -> &mut Self {
        self.push(pid, What::Ended { handling: handling.clone(), end })
    }

    /// A message that is handled, with its effect.
    pub(super) fn handle(&mut self, pid: u32, handling: &Handling) -> &mut Self {
        self.begin(pid, handling).effect(handling, true).end(pid, handling, End::Acked)
    }

    /// A grant of partition 0 of the topic.
    pub(super) fn assign(&mut self, pid: u32, epoch: u64) -> &mut Self {
        self.push(pid, What::Assigned { place: topic(), partition: 0, epoch })
    }

    /// The end of a grant.
    pub(super) fn unassign(&mut self, pid: u32, epoch: u64, lost: bool) -> &mut Self {
        self.push(pid, What::Unassigned { place: topic(), partition: 0, epoch, lost })
    }

    /// A fault begins.
    pub(super) fn fault(&mut self, scope: Scope) -> &mut Self {
        self.faults += 1;
        self.push(RUNNER, What::Fault { fault: self.faults, kind: "test".to_owned(), scope })
    }

    /// The last fault ends.
    pub(super) fn fault_ends(&mut self) -> &mut Self {
        self.push(RUNNER, What::FaultEnded(self.faults))
    }

    /// A process is killed.
    pub(super) fn kill(&mut self, pid: u32) -> &mut Self {
        self.fault(Scope::Process(pid)).push(pid, What::Gone { orderly: false }).fault_ends()
    }

    /// The end of the run: nothing is left at the place but dead letters.
    pub(super) fn finish(&self, place: Place, dead: &[(u64, &str)]) -> Vec<Line> {
        let dead = dead.iter().map(|(number, reason)| (Some(*number), (*reason).to_owned())).collect();
        self.finish_with(place, Rest { dead, ..Rest::default() })
    }

    /// The lines, and that nothing is left at the place.
    pub(super) fn finish_lines(&self, place: Place) -> Vec<Line> {
        let mut it = self.clone();
        it.push(RUNNER, What::Left { place, rest: Rest::default() });
        it.lines
    }

    /// The end of the run, with this at the place. Every process that lives has worked last.
    pub(super) fn finish_with(&self, place: Place, rest: Rest) -> Vec<Line> {
        let mut it = self.clone().phase(Phase::Healed);
        for pid in [10, 20, 21] {
            let is_gone = |line: &Line| line.pid == pid && matches!(line.what, What::Gone { .. });
            if !it.lines.iter().any(is_gone) {
                it.push(pid, What::Audit { findings: Vec::new() });
            }
        }
        it = it.phase(Phase::Draining).phase(Phase::Ended);
        it.push(RUNNER, What::Left { place, rest });
        it.lines
    }
}
