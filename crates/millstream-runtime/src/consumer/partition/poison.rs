//! Poison candidates: messages that were pending when several owners of their partition ended. One of them may be the cause.
//!
//! An owner that ends without releasing its lease may have been killed by a message, by an operator or by the machine.
//! After one such end no message is a candidate. A message that was pending at two ends in a row is a candidate: it is
//! handled as usual, with the usual concurrency, but a note is written before it begins. When a third owner ends, only a
//! message that had begun and was not settled can be the cause. Each of those is noted again and handled with no other
//! candidate beside it in this process. A message that the next owner finds noted in this way is the culprit. It is given
//! up as soon as the number of owners that ended over it exceeds the limit.
//!
//! The culprit also explains the earlier ends: the other messages that had begun then are handled as usual again.
//!
//! A note counts only if its owner did end: an owner that lost its lease to a network cut or a pause withdraws its end
//! when it returns ([`Leases::withdraw_end`](millstream_core::Leases::withdraw_end)).

use std::collections::{HashMap, VecDeque};

use millstream_core::log::{Entry, Note, Receipt};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::PollSemaphore;

use crate::consumer::context::Context;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::key_queues::{KeyQueue, Ticket};
use crate::consumer::partition::dispatch::limits::{Limiter, Permits};
use crate::consumer::partition::leases::WorkerLease;

/// Number of consecutive ends at which a message must have been pending to be a candidate.
const ENDS: usize = 2;
/// Number of deliveries by then: one to each owner that ended, and one to this owner. Lost replies add to it, so innocent
/// messages can become candidates. These are only noted, which does no harm.
const DELIVERIES: u32 = 3;
/// Number of names of the latest noters that a note keeps. More do not fit into it.
const NOTERS: usize = 3;

/// Whether an entry that was pending when its owner was granted the lease is a candidate.
pub(in crate::consumer) fn is_candidate(entry: &Entry, ends: usize) -> bool {
    ends >= ENDS && entry.deliveries >= DELIVERIES
}

/// A message that may be the reason why processes end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::consumer) struct Candidate {
    pub(in crate::consumer) plan: Plan,
    /// Number of ends at which it was noted as begun.
    noted: u32,
    /// Noters that have ended, oldest first, as far as their names are known.
    by: Vec<String>,
}

/// Treatment of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Plan {
    /// Write a note, then handle it beside others.
    Note,
    /// Write a note, then handle it with no other candidate beside it: the last owner that noted it has ended.
    Alone,
    /// Give it up: the number of owners that ended while it was pending.
    GiveUp(u32),
}

impl Candidate {
    /// Returns the candidate for an entry that was pending when its owner was granted the lease, after the owners of these
    /// epochs had ended. `None` if it is no candidate.
    pub(in crate::consumer) fn of_owner(entry: &Entry, ends: &[u64], limit: u32) -> Option<Self> {
        let ended = |noter: &str| noter.parse().is_ok_and(|epoch| ends.contains(&epoch));
        is_candidate(entry, ends.len()).then(|| Self::new(entry.note.as_ref(), ended, limit))
    }

    /// Returns the candidate for an entry that was claimed from a member that is dead or was cut off. `living` are the
    /// incarnations of the members that are alive. `None` if it is no candidate.
    pub(in crate::consumer) fn of_member(entry: &Entry, living: &[String], limit: u32) -> Option<Self> {
        let ended = |noter: &str| living.iter().all(|incarnation| incarnation != noter);
        // Each claim adds a delivery. With this many, the entry was pending at two ends or more.
        is_candidate(entry, usize::MAX).then(|| Self::new(entry.note.as_ref(), ended, limit))
    }

    /// Creates a candidate from the note of earlier owners. `ended` tells whether a noter has ended; `limit` is the
    /// number of processes that may end over one message.
    pub(in crate::consumer) fn new(note: Option<&Note>, ended: impl Fn(&str) -> bool, limit: u32) -> Self {
        let suspicions = note.map_or(0, |note| note.suspicions);
        let noters = note.filter(|_| suspicions > 0).map(|note| note.by.split(',').collect::<Vec<_>>());
        let (by, lived): (Vec<_>, Vec<_>) =
            noters.unwrap_or_default().into_iter().partition(|noter| ended(noter));
        // Noters whose names no longer fit into the note count as ended: none of them has returned for a long time.
        let noted = suspicions.saturating_sub(u32::try_from(lived.len()).unwrap_or(u32::MAX));
        let ends = noted.saturating_add(ENDS as u32);
        // Noted once, it began beside others; from the second note on it was the only candidate.
        let plan = match noted {
            0 => Plan::Note,
            1 => Plan::Alone,
            _ if ends > limit => Plan::GiveUp(ends),
            _ => Plan::Alone,
        };
        Self { plan, noted, by: by.into_iter().map(str::to_owned).collect() }
    }

    /// Returns the newest epoch of a lease under which it began and that ended; 0 if there is none.
    pub(in crate::consumer) fn newest(&self) -> u64 {
        self.by.iter().filter_map(|noter| noter.parse().ok()).max().unwrap_or(0)
    }

    /// Resets the suspicion: another message is known to have ended the owners that noted this one.
    pub(in crate::consumer) fn exonerate(&mut self) {
        if self.plan == Plan::Alone {
            (self.plan, self.noted) = (Plan::Note, 0);
            self.by.clear();
        }
    }

    /// Returns the note that it begins, in the name `me` of a process or lease.
    pub(in crate::consumer) fn begins(&self, me: &str, job: &Job) -> Note {
        let mut by: Vec<&str> = self.by.iter().map(String::as_str).chain([me]).collect();
        // Keeps the newest names only.
        by.drain(..by.len().saturating_sub(NOTERS));
        let error = job.last_error().unwrap_or_default().to_owned();
        let (attempt, history) = (job.attempt, job.history().clone());
        let suspicions = self.noted.saturating_add(1);
        Note { attempt, error, history, suspicions, by: by.join(","), ..Note::default() }
    }
}

/// A candidate that is about to begin: its place in the queues, and the permits with which its handler starts.
pub(in crate::consumer) struct Noted {
    pub(in crate::consumer) ticket: Ticket,
    pub(in crate::consumer) job: Box<Job>,
    /// `None` if they were given up: it has to wait for others.
    pub(in crate::consumer) permits: Option<Permits>,
}

/// A candidate that waits until it can be handled alone.
struct Waiting {
    receipt: Receipt,
    queue: KeyQueue,
    /// The newest epoch of a lease under which it began and that ended.
    newest: u64,
}

/// The candidates of one partition.
pub(in crate::consumer) struct Poison {
    /// Name under which this owner writes notes: the epoch of its lease, or its incarnation in shared mode.
    me: String,
    /// Candidates whose note is being written, by receipt and serial number. Each has the permits to run, so no more are noted
    /// than may run.
    noting: HashMap<(Receipt, u64), Noted>,
    /// Candidates whose note is written; they are handled next.
    noted: VecDeque<Noted>,
    /// Candidates to be handled with no other candidate beside them. Their key queues are blocked; others go on.
    alone: VecDeque<Waiting>,
    /// The candidate that is being handled alone, with its permit.
    trying: Option<(Receipt, OwnedSemaphorePermit)>,
    /// Our position in the queue for the permit. There is one permit per consumer.
    turns: PollSemaphore,
}

impl Poison {
    pub(in crate::consumer) fn new(context: &Context, lease: &WorkerLease) -> Self {
        let me = lease.epoch().map_or_else(|| context.incarnation.clone(), |epoch| epoch.to_string());
        let turns = PollSemaphore::new(context.limiter.candidates().clone());
        let (noting, noted, alone) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        Self { me, noting, noted, alone, trying: None, turns }
    }

    /// Whether this message is the one that is being handled alone.
    pub(in crate::consumer) fn tries(&self, receipt: Receipt) -> bool {
        self.trying.as_ref().is_some_and(|(trying, _)| *trying == receipt)
    }

    /// Whether this message can be handled alone at once, since no other waits for that.
    pub(in crate::consumer) fn tries_at_once(&mut self, receipt: Receipt) -> bool {
        if self.trying.is_none() && self.alone.is_empty() {
            let permit = self.turns.clone_inner().try_acquire_owned().ok();
            self.trying = permit.map(|permit| (receipt, permit));
        }
        self.tries(receipt)
    }

    /// Adds a candidate that waits until it can be handled alone. `newest` is the newest epoch under which it began.
    pub(in crate::consumer) fn waits(&mut self, receipt: Receipt, queue: KeyQueue, newest: u64) {
        self.alone.push_back(Waiting { receipt, queue, newest });
    }

    /// Keeps a candidate until its note is written, and returns the note.
    pub(in crate::consumer) fn notes(&mut self, noted: Noted) -> Option<Note> {
        let job = &noted.job;
        let note = job.candidate.as_deref().map(|candidate| candidate.begins(&self.me, job))?;
        self.noting.insert((job.receipt, job.serial), noted);
        Some(note)
    }

    /// Returns the next candidate whose note is written.
    pub(in crate::consumer) fn next(&mut self) -> Option<Noted> {
        self.noted.pop_front()
    }

    /// Whether there are candidates whose note is written.
    pub(in crate::consumer) fn has_noted(&self) -> bool {
        !self.noted.is_empty()
    }

    /// Records that a note is written. False if it does not belong to a candidate.
    pub(in crate::consumer) fn written(&mut self, receipt: Receipt, serial: u64) -> bool {
        let Some(mut noted) = self.noting.remove(&(receipt, serial)) else { return false };
        noted.job.is_noted = true;
        self.noted.push_back(noted);
        true
    }

    /// Gives up the position in the queue for the permit, and the permits of candidates that have not begun: none is to start.
    pub(in crate::consumer) fn leave(&mut self) {
        self.noting.values_mut().chain(&mut self.noted).for_each(|noted| noted.permits = None);
        // A clone has no position.
        self.turns = self.turns.clone();
    }

    /// Returns the candidates whose note is being written, or is written. They do not begin any more.
    pub(in crate::consumer) fn drain(&mut self) -> Vec<Noted> {
        self.noting.drain().map(|(_, noted)| noted).chain(self.noted.drain(..)).collect()
    }

    /// Waits until the next candidate can be handled alone, or need not be alone any more, and returns its key queue.
    pub(in crate::consumer) async fn turn(&mut self, limiter: &Limiter) -> KeyQueue {
        loop {
            // Created before the check, so that a notification in between is not missed.
            let more_explained = limiter.more_explained();
            let Some(next) = self.alone.front() else { return std::future::pending().await };
            if limiter.is_explained(next.newest)
                && let Some(next) = self.alone.pop_front()
            {
                return next.queue;
            }
            // While one is handled alone, no further permit is requested.
            let tried = self.trying.is_some();
            // The position in the semaphore's queue is kept when this future is dropped and created again.
            let turns = &mut self.turns;
            let permit = tokio::select! {
                biased;
                () = more_explained => continue,
                permit = std::future::poll_fn(|cx| turns.poll_acquire(cx)), if !tried => permit,
            };
            // The semaphore is never closed.
            if let (Some(permit), Some(next)) = (permit, self.alone.pop_front()) {
                self.trying = Some((next.receipt, permit));
                return next.queue;
            }
        }
    }

    /// Records that this message is settled, or waits in place.
    pub(in crate::consumer) fn done(&mut self, receipt: Receipt) {
        if self.tries(receipt) {
            self.trying = None;
        }
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
