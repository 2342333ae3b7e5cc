//! A message on its way through a partition: read, handed to the handler, judged.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::log::{Entry, Note, Receipt};
use millstream_core::schedule::Due;
use millstream_core::wire::{self, Malformed};
use millstream_core::{Envelope, History, Limits, MessageId, Settlement};
use tokio::time::Instant;

use super::clock::Clock;
use super::context::Subscription;
use super::decide::Attempt;
use super::handler::{Handler, Input, Said, Verdict};
use super::owned::Owned;
use super::poison::Candidate;
use crate::delivery::{About, Past};

/// A message on its way through a partition.
pub(super) struct Job {
    pub(super) receipt: Receipt,
    pub(super) origin: MessageId,
    pub(super) attempt: u32,
    /// What came of the attempts before, if any did fail.
    pub(super) past: Option<Arc<Past>>,
    /// How long its next attempt has to wait, by what was noted.
    pub(super) left: Duration,
    /// Set if it may be why owners ended.
    pub(super) candidate: Option<Box<Candidate>>,
    /// What came of it.
    pub(super) said: Option<Said>,
    read: Instant,
    deliveries: u32,
    envelope: Result<Envelope, Malformed>,
}

impl Job {
    /// It was read at this time.
    pub(super) fn new(entry: Entry, limits: &Limits, candidate: Option<Candidate>, read: Instant) -> Self {
        let decoded = wire::decode_owned(entry.receipt, entry.fields, limits);
        let mut job = Self {
            receipt: entry.receipt,
            origin: decoded.origin,
            attempt: decoded.attempt,
            past: Past::of(decoded.error, decoded.history),
            left: Duration::ZERO,
            candidate: candidate.map(Box::new),
            said: None,
            read,
            deliveries: entry.deliveries,
            envelope: decoded.envelope,
        };
        // The entry says what was so when it was appended, the note what has happened since.
        if let Some(note) = entry.note
            && note.attempt > 0
        {
            job.note(&note);
            job.left = note.left();
        }
        job
    }

    /// It waits elsewhere for what is left of its wait.
    pub(super) fn parks(self) -> Settlement {
        let Self { origin, attempt, left, .. } = self;
        let due = Due::In(left);
        let (error, history) = (self.last_error().unwrap_or_default().to_owned(), self.history().clone());
        Settlement::Retry { due, attempt, origin, error, history }
    }

    /// What the last attempt failed with.
    pub(super) fn last_error(&self) -> Option<&str> {
        Past::last_error(self.past.as_ref())
    }

    /// What the attempts before failed with.
    pub(super) fn history(&self) -> &History {
        Past::history(self.past.as_ref())
    }

    /// The server's time, in milliseconds since 1970. If its clock is not known: at least this.
    fn now(&self, clock: Option<u64>) -> u64 {
        let in_hand = || u64::try_from(self.read.elapsed().as_millis()).unwrap_or(u64::MAX);
        clock.unwrap_or_else(|| self.receipt.id.ms.saturating_add(in_hand()))
    }

    /// The attempt that was made, for who judges it.
    pub(super) fn attempt<'a>(&'a self, clock: Option<&Clock>, in_place: Option<&'a str>) -> Attempt<'a> {
        let now = clock.and_then(Clock::now);
        let elapsed = self.history().since().map_or(0, |since| self.now(now).saturating_sub(since));
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

    /// It waits in its place for its next attempt, which is the one of this note. Gives back for how long.
    pub(super) fn holds(&mut self, note: &Note, clock: &Clock) -> Duration {
        let now = self.now(clock.now());
        self.note(note);
        // As the server does it.
        let past = Arc::make_mut(self.past.get_or_insert_default());
        past.history.add(now, note.attempt.saturating_sub(1), &note.error);
        self.candidate = None;
        match note.due {
            Due::In(after) => after,
            Due::At(at) => Duration::from_millis(at.saturating_sub(now)),
        }
    }

    /// Its next attempt is the one of this note.
    fn note(&mut self, note: &Note) {
        self.attempt = note.attempt;
        let error = Some(note.error.clone()).filter(|error| !error.is_empty());
        self.past = Past::of(error, note.history.clone());
    }

    pub(super) fn key(&self) -> Option<&Bytes> {
        self.envelope.as_ref().ok()?.key.as_ref()
    }

    /// Whether it is a message that a handler can be given.
    pub(super) fn is_message(&self) -> bool {
        self.envelope.is_ok()
    }

    /// The message for the handler; what is none is judged instead. It is kept for another attempt if it may wait for
    /// that in its place.
    pub(super) fn input(&mut self, owned: Arc<Owned>, keep: bool) -> Option<Input> {
        let envelope = match &mut self.envelope {
            Ok(envelope) if keep => envelope.clone(),
            Ok(envelope) => std::mem::take(envelope),
            Err(why) => {
                self.said = Some(Said::Own(Verdict::Malformed(why.clone())));
                return None;
            }
        };
        let Envelope { key, headers, payload } = envelope;
        let about = About {
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

/// Hands jobs to the handler, each or as a batch. What it did not want to handle is left without a verdict.
pub(super) async fn handle<T>(
    context: &Subscription,
    units: &mut [T],
    part: impl Fn(&mut T) -> (Arc<Owned>, &mut Job),
    keep: bool,
) {
    let timeout = context.config.handler_timeout;
    let _running = context.board.handler();
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
