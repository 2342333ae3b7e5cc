//! Poison candidates: messages that were pending at several ends of their partition's owners, one of which may be why.
//!
//! An owner that ends without giving its lease back may have been killed by a message, by an operator or by the machine.
//! One such end makes nobody a candidate. What was pending at two ends in a row is a candidate: it is handled as
//! usual, as many at once as are allowed, but that it begins is noted before. When a third owner ends, only what it had
//! begun and not settled can be why: each of those is handled with no other candidate beside it in this process, after
//! that was noted, too. Whoever is found noted so by the next owner is the culprit, and is given up as soon as owners have
//! ended over it as often as is allowed.
//!
//! With it the ends before are explained: what else had begun then is handled as usual again.
//!
//! A note counts only if its owner did end: an owner that lost its lease to a cut or a pause withdraws its end when it
//! returns ([`Leases::withdraw_end`](millstream_core::Leases::withdraw_end)).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use millstream_core::Settlement;
use millstream_core::event::Event;
use millstream_core::log::{Entry, Note, Receipt};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::PollSemaphore;

use crate::consumer::handler::{Said, Verdict};
use crate::consumer::partition::dispatch::Dispatch;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::key_queues::{KeyQueue, Ticket};
use crate::consumer::partition::dispatch::limits::Limiter;
use crate::consumer::partition::handle::PartitionHandle;

/// At how many ends in a row a message must have been pending to be a candidate.
const ENDS: usize = 2;
/// How often it was handed out by then: once to each owner that ended, and once to this one. Lost answers add to it, and
/// so it can make candidates of innocents: these are noted, and lose nothing.
const DELIVERIES: u32 = 3;
/// How many of those who noted a message last are known by name: more do not fit into a note.
const NOTERS: usize = 3;

/// Whether an entry that was pending when its owner was granted the lease is a candidate.
pub(in crate::consumer) fn is_candidate(entry: &Entry, ends: usize) -> bool {
    ends >= ENDS && entry.deliveries >= DELIVERIES
}

/// A message that may be why processes end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::consumer) struct Candidate {
    pub(in crate::consumer) plan: Plan,
    /// At how many ends it was noted as begun.
    noted: u32,
    /// Who noted it so and ended, oldest first: as many as are known by name.
    by: Vec<String>,
}

/// What to do with a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Plan {
    /// Note that it begins, then handle it beside others.
    Note,
    /// The same, with no other candidate beside it: the last one that noted it has ended.
    Alone,
    /// Give it up: so many owners have ended while it was pending.
    GiveUp(u32),
}

impl Candidate {
    /// Of an entry that was pending when its owner was granted the lease, after so many of these ends; if it is one.
    pub(in crate::consumer) fn of_owner(
        entry: &Entry,
        count: usize,
        ends: &[u64],
        limit: u32,
    ) -> Option<Self> {
        let ended = |noter: &str| noter.parse().is_ok_and(|epoch| ends.contains(&epoch));
        is_candidate(entry, count).then(|| Self::new(entry.note.as_ref(), ended, limit))
    }

    /// From what owners before noted. `ended` says which of those have ended; `limit` is how many processes may end over
    /// one message.
    pub(in crate::consumer) fn new(note: Option<&Note>, ended: impl Fn(&str) -> bool, limit: u32) -> Self {
        let suspicions = note.map_or(0, |note| note.suspicions);
        let noters = note.filter(|_| suspicions > 0).map(|note| note.by.split(',').collect::<Vec<_>>());
        let (by, lived): (Vec<_>, Vec<_>) =
            noters.unwrap_or_default().into_iter().partition(|noter| ended(noter));
        // Of those whose names did not fit into the note, nobody has returned for a long time.
        let noted = suspicions.saturating_sub(u32::try_from(lived.len()).unwrap_or(u32::MAX));
        let ends = noted.saturating_add(ENDS as u32);
        // Noted once, it began beside others; from the second time on it was the only one.
        let plan = match noted {
            0 => Plan::Note,
            1 => Plan::Alone,
            _ if ends > limit => Plan::GiveUp(ends),
            _ => Plan::Alone,
        };
        Self { plan, noted, by: by.into_iter().map(str::to_owned).collect() }
    }

    /// The newest lease under which it began and that ended; 0 if there is none.
    fn newest(&self) -> u64 {
        self.by.iter().filter_map(|noter| noter.parse().ok()).max().unwrap_or(0)
    }

    /// Another message is known to be why those who noted this one have ended: it begins as if none had.
    fn exonerate(&mut self) {
        if self.plan == Plan::Alone {
            (self.plan, self.noted) = (Plan::Note, 0);
            self.by.clear();
        }
    }

    /// The note that it begins, for a process or lease of this name.
    pub(in crate::consumer) fn begins(&self, me: &str, job: &Job) -> Note {
        let mut by: Vec<&str> = self.by.iter().map(String::as_str).chain([me]).collect();
        by.drain(..by.len().saturating_sub(NOTERS));
        let error = job.last_error().unwrap_or_default().to_owned();
        let (attempt, history) = (job.attempt, job.history().clone());
        let suspicions = self.noted.saturating_add(1);
        Note { attempt, error, history, suspicions, by: by.join(","), ..Note::default() }
    }
}

type Picked = (Ticket, Box<Job>);

/// A candidate that waits until it can be handled alone.
struct Waiting {
    receipt: Receipt,
    lane: KeyQueue,
    /// The newest lease under which it began and that ended.
    newest: u64,
}

/// The candidates of one partition.
pub(in crate::consumer) struct Poison {
    /// Under which name this owner notes: the epoch of its lease.
    me: String,
    /// Notes that candidates begin are on their way to the log. They count as running: so no more are noted than may run.
    noting: HashMap<Receipt, Picked>,
    /// Noted, and to be handled next.
    noted: VecDeque<Picked>,
    /// Those that are to be handled with no other candidate beside them. Their queues wait; others go on.
    alone: VecDeque<Waiting>,
    /// The one of them whose turn it is.
    trying: Option<(Receipt, OwnedSemaphorePermit)>,
    /// Our place in the queue for that: one in the process.
    turns: PollSemaphore,
}

impl Poison {
    pub(in crate::consumer) fn new(epoch: u64, turns: PollSemaphore) -> Self {
        let (noting, noted, alone) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        Self { me: epoch.to_string(), noting, noted, alone, trying: None, turns }
    }

    /// Whether there is nothing to do.
    pub(in crate::consumer) fn is_idle(&self) -> bool {
        self.noting.is_empty() && self.noted.is_empty() && self.alone.is_empty()
    }

    /// The next one that is noted and can be handled.
    pub(in crate::consumer) fn next(&mut self) -> Option<Picked> {
        self.noted.pop_front()
    }

    /// A note is written. False if it is none of ours.
    pub(in crate::consumer) fn written(&mut self, receipt: Receipt) -> bool {
        let Some(picked) = self.noting.remove(&receipt) else { return false };
        self.noted.push_back(picked);
        true
    }

    /// Waits until the next one can be handled alone, or need not be any more, and gives back its lane.
    pub(in crate::consumer) async fn turn(&mut self, limiter: &Limiter) -> KeyQueue {
        loop {
            // Made before the look, so that what is explained in between is not missed.
            let more_explained = limiter.more_explained();
            let Some(next) = self.alone.front() else { return std::future::pending().await };
            if limiter.is_explained(next.newest)
                && let Some(next) = self.alone.pop_front()
            {
                return next.lane;
            }
            let tried = self.trying.is_some();
            // The place in the queue is kept when this is dropped and asked again.
            let turns = &mut self.turns;
            let permit = tokio::select! {
                biased;
                () = more_explained => continue,
                permit = std::future::poll_fn(|cx| turns.poll_acquire(cx)), if !tried => permit,
            };
            // It is never closed.
            if let (Some(permit), Some(next)) = (permit, self.alone.pop_front()) {
                self.trying = Some((next.receipt, permit));
                return next.lane;
            }
        }
    }

    /// This message is settled, or waits in its place.
    pub(in crate::consumer) fn done(&mut self, receipt: Receipt) {
        if self.trying.as_ref().is_some_and(|(trying, _)| *trying == receipt) {
            self.trying = None;
        }
    }
}

impl Dispatch {
    /// Passes what can start at once. A candidate comes up again when that is noted, or when it is its turn; or it is given
    /// up.
    pub(in crate::consumer) fn screen(&mut self, (ticket, mut job): Picked) -> Option<Picked> {
        let (is_message, receipt, limiter) = (job.is_message(), job.receipt, &self.links.context.limiter);
        let Some(candidate) = job.candidate.as_deref_mut().filter(|_| is_message) else {
            return Some((ticket, job));
        };
        let newest = candidate.newest();
        if limiter.is_explained(newest) {
            candidate.exonerate();
        }
        match candidate.plan {
            Plan::GiveUp(crashes) => {
                job.said = Some(Said::Own(Verdict::Crashed(crashes)));
                let PartitionHandle { topic_partition, group, .. } = &*self.owned;
                let origin = job.origin;
                tracing::warn!(%topic_partition, %group, %origin, crashes, "given up: processes ended over it");
                let event = Event::Crashed { topic_partition, group, origin, crashes };
                self.links.context.observer.observe(&event);
                limiter.explain(self.owned.epoch);
                self.finish(&mut vec![(ticket, job)], Duration::ZERO);
                return None;
            }
            Plan::Alone if self.poison.trying.as_ref().is_none_or(|(trying, _)| *trying != receipt) => {
                if let Some(lane) = self.queues.block(ticket, job) {
                    self.poison.alone.push_back(Waiting { receipt, lane, newest });
                }
                return None;
            }
            Plan::Note | Plan::Alone => {}
        }
        let note = job.candidate.as_deref().map(|candidate| candidate.begins(&self.poison.me, &job))?;
        self.poison.noting.insert(receipt, (ticket, job));
        self.settle(receipt, Settlement::Hold(note));
        self.settlement_buffer.flush();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(suspicions: u32, by: &str) -> Note {
        Note { suspicions, by: by.into(), ..Note::default() }
    }

    #[test]
    fn the_limit_counts_processes_and_only_those_that_ended() {
        let ended = |noter: &str| noter.starts_with('e');
        let cases = [
            (None, 3, Plan::Note),
            (Some(note(0, "")), 3, Plan::Note),
            (Some(note(0, "e1")), 3, Plan::Note),
            (Some(note(1, "e1")), 3, Plan::Alone),
            (Some(note(1, "living")), 3, Plan::Note),
            (Some(note(2, "e1,e2")), 3, Plan::GiveUp(4)),
            (Some(note(2, "e1,living")), 3, Plan::Alone),
            (Some(note(2, "e1,e2")), 2, Plan::GiveUp(4)),
            (Some(note(2, "e1,e2")), 4, Plan::Alone),
            (Some(note(3, "e1,e2,e3")), 4, Plan::GiveUp(5)),
            (Some(note(4, "e2,e3,e4")), 5, Plan::GiveUp(6)),
            (Some(note(4, "e2,e3,living")), 5, Plan::Alone),
            (Some(note(u32::MAX, "e1,e2")), 3, Plan::GiveUp(u32::MAX)),
        ];
        for (note, limit, plan) in cases {
            assert_eq!(Candidate::new(note.as_ref(), ended, limit).plan, plan, "{note:?} {limit}");
        }
    }
}
