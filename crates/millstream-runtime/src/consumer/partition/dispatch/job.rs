//! A message on its way through a partition: read, passed to the handler, judged.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::log::{Entry, Note, Receipt};
use millstream_core::schedule::Due;
use millstream_core::wire::{self, Malformed};
use millstream_core::{Envelope, History, Limits, MessageId, Settlement, Timestamp};
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::handler::{Handler, Input, Said, Verdict};
use crate::consumer::partition::dispatch::decide::Attempt;
use crate::consumer::partition::handle::PartitionHandle;
use crate::consumer::partition::poison::Candidate;
use crate::consumer::partition::server_clock::ServerClock;
use crate::delivery::{AttemptHistory, DeliveryMetadata};

/// A message on its way through a partition.
pub(in crate::consumer) struct Job {
    pub(in crate::consumer) receipt: Receipt,
    pub(in crate::consumer) origin: MessageId,
    pub(in crate::consumer) attempt: u32,
    /// Errors of earlier attempts, if any failed.
    pub(in crate::consumer) past: Option<Arc<AttemptHistory>>,
    /// Remaining wait until the next attempt, according to the note.
    pub(in crate::consumer) left: Duration,
    /// Set if it may be the reason why owners ended.
    pub(in crate::consumer) candidate: Option<Box<Candidate>>,
    /// The verdict, once there is one.
    pub(in crate::consumer) said: Option<Said>,
    /// How long the handler took.
    pub(in crate::consumer) elapsed: Duration,
    read: Instant,
    deliveries: u32,
    envelope: Result<Envelope, Malformed>,
}

impl Job {
    /// Creates the job of an entry that was read at the time `read`.
    pub(in crate::consumer) fn new(
        entry: Entry,
        limits: &Limits,
        candidate: Option<Candidate>,
        read: Instant,
    ) -> Self {
        let decoded = wire::decode_owned(entry.receipt, entry.fields, limits);
        let mut job = Self {
            receipt: entry.receipt,
            origin: decoded.origin,
            attempt: decoded.attempt,
            past: AttemptHistory::of(decoded.error, decoded.history),
            left: Duration::ZERO,
            candidate: candidate.map(Box::new),
            said: None,
            elapsed: Duration::ZERO,
            read,
            deliveries: entry.deliveries,
            envelope: decoded.envelope,
        };
        // The entry has the state at the time it was appended; the note has what happened since.
        if let Some(note) = entry.note
            && note.attempt > 0
        {
            job.note(&note);
            job.left = note.left();
        }
        job
    }

    /// Returns a settlement that parks the message for the rest of its wait.
    pub(in crate::consumer) fn parks(self) -> Settlement {
        let Self { origin, attempt, left, .. } = self;
        let due = Due::In(left);
        let (error, history) = (self.last_error().unwrap_or_default().to_owned(), self.history().clone());
        Settlement::Retry { due, attempt, origin, error, history }
    }

    /// Returns the error of the last attempt.
    pub(in crate::consumer) fn last_error(&self) -> Option<&str> {
        AttemptHistory::last_error(self.past.as_ref())
    }

    /// Returns the errors of earlier attempts.
    pub(in crate::consumer) fn history(&self) -> &History {
        AttemptHistory::history(self.past.as_ref())
    }

    /// Returns the server's time in milliseconds since 1970. If its clock is not known, a lower bound: the time of the
    /// entry's id plus the time since it was read.
    fn now(&self, clock: Option<u64>) -> u64 {
        let in_hand = || u64::try_from(self.read.elapsed().as_millis()).unwrap_or(u64::MAX);
        clock.unwrap_or_else(|| self.receipt.id.ms.saturating_add(in_hand()))
    }

    /// Returns the attempt for [`decide`](super::decide::decide).
    pub(in crate::consumer) fn attempt<'a>(
        &'a self,
        clock: Option<&ServerClock>,
        in_place: Option<&'a str>,
    ) -> Attempt<'a> {
        let now = clock.and_then(ServerClock::now);
        let elapsed =
            self.history().since().map_or(0, |since| self.now(now).saturating_sub(since.as_millis()));
        Attempt {
            number: self.attempt,
            origin: self.origin,
            last_error: self.last_error(),
            history: self.history(),
            elapsed: Duration::from_millis(elapsed),
            now,
            entropy: fastrand::u64(..),
            in_place,
        }
    }

    /// Updates the job for a wait in place, with the next attempt of this note. Returns how long it waits.
    pub(in crate::consumer) fn holds(&mut self, note: &Note, clock: &ServerClock) -> Duration {
        let now = Timestamp::from_millis(self.now(clock.now()));
        self.note(note);
        // The same as the server does when it writes the note.
        let past = Arc::make_mut(self.past.get_or_insert_default());
        past.history.add(now, note.attempt.saturating_sub(1), &note.error);
        self.candidate = None;
        match note.due {
            Due::In(after) => after,
            Due::At(at) => at.saturating_duration_since(now),
        }
    }

    /// Sets attempt, error and history from a note.
    fn note(&mut self, note: &Note) {
        self.attempt = note.attempt;
        let error = Some(note.error.clone()).filter(|error| !error.is_empty());
        self.past = AttemptHistory::of(error, note.history.clone());
    }

    pub(in crate::consumer) fn key(&self) -> Option<&Bytes> {
        self.envelope.as_ref().ok()?.key.as_ref()
    }

    /// Whether it is a well-formed message that a handler can get.
    pub(in crate::consumer) fn is_message(&self) -> bool {
        self.envelope.is_ok()
    }

    /// Returns the message for the handler. `None` if the entry is malformed: then the verdict is set. With `keep` the
    /// message is cloned, because it may wait in place for another attempt.
    pub(in crate::consumer) fn input(&mut self, owned: Arc<PartitionHandle>, keep: bool) -> Option<Input> {
        let envelope = match &mut self.envelope {
            Ok(envelope) if keep => envelope.clone(),
            Ok(envelope) => std::mem::take(envelope),
            Err(why) => {
                self.said = Some(Said::Own(Verdict::Malformed(why.clone())));
                return None;
            }
        };
        let Envelope { key, headers, payload } = envelope;
        let about = DeliveryMetadata {
            owned,
            id: self.receipt.id,
            origin: self.origin,
            attempt: self.attempt,
            deliveries: self.deliveries,
            past: self.past.clone(),
            key,
            headers,
        };
        Some(Input { about, payload })
    }
}

/// Passes jobs to the handler, one by one or as a batch. Jobs that the handler did not handle have no verdict.
pub(in crate::consumer) async fn handle<T>(
    context: &Subscription,
    units: &mut [T],
    part: impl Fn(&mut T) -> (Arc<PartitionHandle>, &mut Job),
    keep: bool,
) {
    let timeout = context.config.handler_timeout;
    let _running = context.status.handler();
    match &context.handler {
        Handler::Each(call) => {
            for unit in units {
                let (owned, job) = part(unit);
                if let Some(input) = job.input(owned, keep) {
                    job.said = call.one(input, timeout).await.map(Said::Own);
                }
            }
        }
        Handler::Batch(_, call) => {
            let parts = units.iter_mut().map(&part);
            let inputs: Vec<_> = parts.filter_map(|(owned, job)| job.input(owned, keep)).collect();
            if inputs.is_empty() {
                return;
            }
            let mut said = call(inputs, timeout).await.into_iter();
            for job in units.iter_mut().map(|unit| part(unit).1).filter(|job| job.said.is_none()) {
                job.said = said.next();
            }
        }
    }
}
