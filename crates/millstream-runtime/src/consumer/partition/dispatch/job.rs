//! A message on its way through a partition: read, passed to the handler, judged.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::batches::{BatchId, Demand};
use millstream_core::event::{Cause, Event, Handled, MessageBytes};
use millstream_core::log::{Entry, Note, Receipt};
use millstream_core::results::StoredResult;
use millstream_core::schedule::Due;
use millstream_core::wire::{self, Fields, Malformed};
use millstream_core::{
    Envelope, GroupName, History, Limits, MessageId, Settlement, Timestamp, TopicPartition,
};
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::partition::dispatch::Unit;
use crate::consumer::partition::dispatch::asks::Asked;
use crate::consumer::partition::dispatch::running::RunningUnits;
use crate::consumer::partition::poison::Candidate;
use crate::consumer::partition::server_clock::ServerClock;
use millstream_engine::decide::{CurrentAttempt, Ending, decide, stored};
use millstream_engine::delivery::DeliveryScope;
use millstream_engine::delivery::{AttemptHistory, DeliveryMetadata};
use millstream_engine::handler::{ErasedHandler, Input, Said, Verdict};
use millstream_engine::limits::Permit;
use millstream_engine::requests::{Reports, end_all};

/// A message on its way through a partition.
pub(in crate::consumer) struct Job {
    pub(in crate::consumer) receipt: Receipt,
    /// In shared mode, the serial number of the lease of its entry.
    pub(in crate::consumer) serial: u64,
    pub(in crate::consumer) origin: MessageId,
    pub(in crate::consumer) attempt: u32,
    /// Errors of earlier attempts, if any failed.
    pub(in crate::consumer) past: Option<Arc<AttemptHistory>>,
    /// Remaining wait until the next attempt, according to the note.
    pub(in crate::consumer) left: Duration,
    /// Set if it may be the reason why owners ended.
    pub(in crate::consumer) candidate: Option<Box<Candidate>>,
    /// Whether the note that it begins is written.
    pub(in crate::consumer) is_noted: bool,
    /// Handle of its delivery. Set when it starts.
    pub(in crate::consumer) scope: Option<Arc<DeliveryScope>>,
    /// Units of limits that it has while its handler runs.
    pub(in crate::consumer) permit: Option<Permit>,
    /// What it needs of limits, while it has no body.
    pub(in crate::consumer) asks: Option<Box<[Asked]>>,
    /// What its handler says of its work, while it runs.
    reports: Option<Reports>,
    /// The verdict, once there is one.
    pub(in crate::consumer) said: Option<Said>,
    /// How long the handler took.
    pub(in crate::consumer) elapsed: Duration,
    /// Its part of that: messages of a batch share the time.
    pub(in crate::consumer) share: Option<Duration>,
    read: Instant,
    deliveries: u32,
    /// Set if the message demands something to be stored.
    demand: Option<Box<Demand>>,
    envelope: Result<Envelope, Malformed>,
    /// Whether its payload and headers were dropped, and have to be read again before it starts.
    is_bare: bool,
    /// Whether they were dropped at some time.
    was_bare: bool,
}

impl Job {
    /// Creates the job of an entry that was read at the time `read`.
    pub(in crate::consumer) fn new(
        entry: Entry,
        serial: u64,
        limits: &Limits,
        candidate: Option<Candidate>,
        read: Instant,
    ) -> Self {
        let decoded = wire::decode_owned(entry.receipt, entry.fields, limits);
        let headers = decoded.envelope.as_ref().ok().map(|message| &message.headers);
        let mut job = Self {
            receipt: entry.receipt,
            serial,
            origin: decoded.origin,
            attempt: decoded.attempt,
            past: AttemptHistory::of(decoded.error, decoded.history),
            left: Duration::ZERO,
            candidate: candidate.map(Box::new),
            is_noted: false,
            scope: None,
            permit: None,
            asks: None,
            reports: None,
            said: None,
            elapsed: Duration::ZERO,
            share: None,
            read,
            deliveries: entry.deliveries,
            demand: headers.and_then(Demand::of).map(Box::new),
            envelope: decoded.envelope,
            is_bare: false,
            was_bare: false,
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
    pub(in crate::consumer) fn parks(&self) -> Settlement {
        let Self { origin, attempt, left, .. } = *self;
        let due = Due::In(left);
        let (error, history) = (self.last_error().unwrap_or_default().to_owned(), self.history().clone());
        Settlement::Retry { due, attempt, origin, error, history, wait: None }
    }

    /// Returns the batch of which it is a member.
    pub(in crate::consumer) fn batch(&self) -> Option<&BatchId> {
        Some(&self.demand.as_ref()?.member.as_ref()?.batch)
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
        let since_read = || u64::try_from(self.read.elapsed().as_millis()).unwrap_or(u64::MAX);
        clock.unwrap_or_else(|| self.receipt.id.ms.saturating_add(since_read()))
    }

    fn attempt<'a>(
        &'a self,
        clock: &ServerClock,
        topic_partition: &'a TopicPartition,
        message: Option<&'a Envelope>,
    ) -> CurrentAttempt<'a> {
        let now = clock.now();
        let elapsed =
            self.history().since().map_or(0, |since| self.now(now).saturating_sub(since.as_millis()));
        CurrentAttempt {
            number: self.attempt,
            last_error: self.last_error(),
            history: self.history(),
            elapsed: Duration::from_millis(elapsed),
            now,
            entropy: fastrand::u64(..),
            place: (topic_partition.topic.as_str(), topic_partition.partition.0),
            message,
        }
    }

    /// Decides what becomes of the message, counts it and emits the event. `in_place`: a failed message waits in its place.
    pub(in crate::consumer) fn conclude(
        &self,
        context: &Subscription,
        topic_partition: &TopicPartition,
        verdict: &Verdict,
        clock: &ServerClock,
        in_place: bool,
    ) -> (Settlement, Handled) {
        let message = self.envelope.as_ref().ok().filter(|_| context.policies_need_message);
        let attempt = || self.attempt(clock, topic_partition, message);
        let decided = decide(verdict, attempt, &context.policies());
        let (handled, cause, error) = (decided.handled, verdict.cause(), decided.told(verdict));
        if handled != Handled::Acked {
            // Acknowledgements are counted once for all messages that ended together.
            context.counts.handled(handled);
        }
        if let Some(cause) = cause {
            self.log_failure(&context.group, topic_partition, handled, cause, error);
        }
        context.observer.observe(&Event::Handled {
            topic_partition,
            group: &context.group,
            attempt: self.attempt,
            handled,
            elapsed: self.elapsed,
            origin: self.origin,
            source: self.receipt.source,
            cause,
            error,
            key: self.key().map(|key| MessageBytes::new(key)),
        });
        let result = self.result(context, verdict, &decided.ending);
        (self.settlement(decided.ending, result, in_place.then_some(&*context.incarnation)), handled)
    }

    /// Returns the result to store with the settlement, if the message asks for it and this group has one.
    fn result(
        &self,
        context: &Subscription,
        verdict: &Verdict,
        ending: &Ending,
    ) -> Option<Box<StoredResult>> {
        let answering = context.answering();
        let demand = self.demand.as_ref().map(|demand| demand.in_group(&context.group));
        let demand = match demand {
            _ if answering.steps => {
                Demand { steps: Some(self.origin.to_string().into()), ..demand.unwrap_or_default() }
            }
            demand => demand?,
        };
        stored(demand, verdict, ending, self.attempt, &answering)
    }

    /// Returns the settlement of the message. `by`: it waits in its place, and this is who notes it.
    fn settlement(&self, ending: Ending, result: Option<Box<StoredResult>>, by: Option<&str>) -> Settlement {
        let origin = self.origin;
        match (ending, by) {
            (Ending::Done | Ending::Dropped(_), _) => result.map_or(Settlement::Ack, Settlement::AckWith),
            (Ending::Again { due, attempt, error, history, wait }, None) => {
                Settlement::Retry { due, attempt, origin, error, history, wait }
            }
            // The handler returned, so the message did not end the process: suspicions start again at 0.
            (Ending::Again { due, attempt, error, history, wait: _ }, Some(by)) => {
                Settlement::Hold(Note { attempt, due, suspicions: 0, by: by.to_owned(), error, history })
            }
            (Ending::Dead { reason, attempts, error, history }, _) => {
                Settlement::DeadLetter { reason, attempts, origin, error, history, result }
            }
        }
    }

    /// Logs a failed attempt. Of the message itself only its id is named.
    fn log_failure(
        &self,
        group: &GroupName,
        topic_partition: &TopicPartition,
        handled: Handled,
        cause: Cause,
        error: Option<&str>,
    ) {
        let (origin, attempt, cause) = (self.origin, self.attempt, cause.as_str());
        match handled {
            Handled::Retried => {
                tracing::info!(%topic_partition, %group, %origin, attempt, cause, error, "an attempt failed: the message is retried");
            }
            Handled::Discarded => {
                tracing::warn!(%topic_partition, %group, %origin, attempt, cause, error, "the message is given up and dropped");
            }
            _ => {
                tracing::warn!(%topic_partition, %group, %origin, attempt, cause, error, "the message is a dead letter now");
            }
        }
    }

    /// Gives up the message: this number of processes ended while handling it.
    pub(in crate::consumer) fn give_up(
        &mut self,
        context: &Subscription,
        topic_partition: &TopicPartition,
        crashes: u32,
    ) {
        self.said = Some(Said::Own(Verdict::Crashed(crashes)));
        let (origin, group) = (self.origin, &context.group);
        context.observer.observe(&Event::Crashed { topic_partition, group, origin, crashes });
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

    /// Whether a note must be written before it begins. A malformed entry never reaches the handler, so it cannot be the reason
    /// why processes end.
    pub(in crate::consumer) fn needs_note(&self) -> bool {
        self.candidate.is_some() && self.is_message() && !self.is_noted
    }

    /// Returns the message, if it is a well-formed one.
    pub(in crate::consumer) fn message(&self) -> Option<&Envelope> {
        self.envelope.as_ref().ok()
    }

    /// Whether it was handed out before, and not settled: somebody else may have begun it.
    pub(in crate::consumer) fn was_handed_out(&self) -> bool {
        self.deliveries > 1
    }

    /// Returns the bytes of its payload.
    pub(in crate::consumer) fn size(&self) -> usize {
        self.message().map_or(0, |message| message.payload.len())
    }

    /// Drops its payload and headers.
    pub(in crate::consumer) fn drop_body(&mut self) {
        if let Ok(message) = &mut self.envelope {
            // A copy: what was read with it is freed.
            let key = message.key.as_ref().map(|key| Bytes::copy_from_slice(key));
            *message = Envelope { key, ..Envelope::default() };
            (self.is_bare, self.was_bare) = (true, true);
        }
    }

    /// Drops them once more, if they were read again: while it waits, they do not count.
    pub(in crate::consumer) fn drop_body_again(&mut self) {
        if self.was_bare {
            self.drop_body();
        }
    }

    /// Whether its payload and headers are missing.
    pub(in crate::consumer) fn is_bare(&self) -> bool {
        self.is_bare
    }

    /// Gives it its payload and headers back, from the fields of its entry. False if these are no message.
    pub(in crate::consumer) fn restore(&mut self, fields: Fields, limits: &Limits) -> bool {
        let envelope = wire::decode_owned(self.receipt, fields, limits).envelope;
        self.is_bare = envelope.is_err();
        if !self.is_bare {
            self.envelope = envelope;
        }
        !self.is_bare
    }

    /// Whether it is a well-formed message that a handler can get.
    pub(in crate::consumer) fn is_message(&self) -> bool {
        self.envelope.is_ok()
    }

    /// Returns the message for the handler. `None` if the entry is malformed, or if it was cancelled: then the verdict is set. With `keep` the
    /// message is cloned, because it may [start again](Subscription::keeps_messages).
    pub(in crate::consumer) fn input(&mut self, context: &Subscription, keep: bool) -> Option<Input> {
        let envelope = match &mut self.envelope {
            Ok(envelope) => envelope,
            Err(why) => {
                self.said = Some(Said::Own(Verdict::Malformed(why.clone())));
                return None;
            }
        };
        let scope = self.scope.take()?;
        if scope.is_asked(&self.origin, &envelope.headers) {
            self.said = Some(Said::Own(Verdict::Cancelled(false)));
            return None;
        }
        let envelope = if keep {
            envelope.clone()
        } else {
            // Observers get the key with the result.
            let key = envelope.key.clone();
            std::mem::replace(envelope, Envelope { key, ..Envelope::default() })
        };
        let Envelope { key, headers, payload } = envelope;
        // A group that does not reply says nothing either: nobody waits for it.
        let demand = self.demand.as_deref().filter(|_| context.replies);
        let request = demand.and_then(|demand| demand.result);
        self.reports = request.and_then(|request| scope.reports(request, self.attempt));
        let about = DeliveryMetadata {
            reports: self.reports.clone(),
            scope,
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
pub(in crate::consumer) async fn handle(
    context: &Subscription,
    shown: &Arc<RunningUnits>,
    unit: &mut Unit,
    keep: bool,
) {
    let started = Instant::now();
    let shown = shown.begin(unit, None);
    handle_all(context, unit, keep).await;
    drop(shown);
    let elapsed = started.elapsed();
    let share = elapsed / u32::try_from(unit.len()).unwrap_or(u32::MAX).max(1);
    unit.iter_mut().for_each(|(_, job)| (job.elapsed, job.share) = (elapsed, Some(share)));
    // Outside of the handler's time and of all layers, which may drop it.
    let reports: Vec<_> = unit.iter_mut().filter_map(|(_, job)| job.reports.take()).collect();
    end_all(reports).await;
}

async fn handle_all(context: &Subscription, unit: &mut Unit, keep: bool) {
    let timeout = context.config.handler_timeout;
    let _running = context.status.handler();
    match &context.handler {
        ErasedHandler::Each(call) => {
            for (_, job) in unit {
                if let Some(input) = job.input(context, keep) {
                    job.said = call.one(input, timeout).await.into_verdict().map(Said::Own);
                }
            }
        }
        ErasedHandler::Batch(_, call) => {
            let inputs: Vec<_> = unit.iter_mut().filter_map(|(_, job)| job.input(context, keep)).collect();
            if inputs.is_empty() {
                return;
            }
            let mut said = call(inputs, timeout).await.into_iter();
            for (_, job) in unit.iter_mut().filter(|(_, job)| job.said.is_none()) {
                job.said = said.next();
            }
        }
    }
}
