//! State shared by all loops of one consumer, and by the loops of one topic.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::panics::{Careful, Policies};
use millstream_core::span::Tracing;
use millstream_core::{
    Backend, Capability, Continuity, GroupName, MemberId, Observer, Timestamp, TopicName, TopicPartition,
    TopicSpec, Upkeep,
};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::consumer::config::LONGEST_LEASE;
use crate::consumer::events::EventSink;
use crate::consumer::partition::dispatch::limits::Limiter;
use crate::consumer::partition::dispatch::running::RunningPartitions;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::pauses::Pauses;
use crate::consumer::status::Status;
use crate::consumer::{Concurrency, ConsumerConfig, RetryOrder, Sharing};
use crate::report::Counts;
use millstream_engine::batches::NoteForwarder;
use millstream_engine::decide::Answering;
use millstream_engine::handler::ErasedHandler;
use millstream_engine::limits::PermitPool;
use millstream_engine::markers::{Guarding, MarkerTable};
use millstream_engine::{Answers, ControlThread, Keeper, LeaseClock, LoopMonitor, Loops, Scope};

/// Shortest and longest part of a shutdown for the last settlements and for releasing partitions.
const LAST_SETTLEMENTS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// State shared by all loops of one consumer.
pub(in crate::consumer) struct Context {
    pub(in crate::consumer) backend: Backend,
    pub(in crate::consumer) group: GroupName,
    pub(in crate::consumer) config: ConsumerConfig,
    pub(in crate::consumer) observer: Arc<dyn Observer>,
    /// The same observer, for subscriptions to events.
    pub(in crate::consumer) event_sink: Arc<EventSink>,
    /// Its tracer, if it has one.
    pub(in crate::consumer) tracing: Option<Tracing>,
    pub(in crate::consumer) status: Arc<Status>,
    pub(in crate::consumer) loops: Loops,
    pub(in crate::consumer) pauses: Pauses,
    pub(in crate::consumer) counts: Counts,
    /// Whether the backend keeps results of messages, and notes for batches.
    pub(in crate::consumer) keeps: (bool, bool),
    /// Whether its handlers have asked for steps.
    pub(in crate::consumer) has_steps: AtomicBool,
    /// Takes the notes of members of batches to these.
    pub(in crate::consumer) notes: Option<NoteForwarder>,
    /// Whether a policy needs messages that failed.
    pub(in crate::consumer) policies_need_message: bool,
    /// Limits shared by all partitions.
    pub(in crate::consumer) limiter: Limiter,
    /// Limits across processes, and what this consumer has of their units, if it has such limits.
    pub(in crate::consumer) permits: Option<Arc<PermitPool>>,
    /// Thread for renewals and heartbeats.
    pub(in crate::consumer) control: ControlThread,
    /// Ttl of leases and memberships: that of the settings, or a day where they end with the process.
    pub(in crate::consumer) lease_ttl: Duration,
    /// Clock for the deadlines of leases.
    pub(in crate::consumer) lease_clock: Arc<LeaseClock>,
    /// Our name in the group, which is displayed as the owner of a partition.
    pub(in crate::consumer) member: MemberId,
    /// Unique to this start.
    pub(in crate::consumer) incarnation: String,
    /// Cancelled to leave the group: handlers that have started may end.
    pub(in crate::consumer) stop: CancellationToken,
    /// Cancelled when the shutdown timeout is over: handlers are given up.
    pub(in crate::consumer) kill: CancellationToken,
    /// Shutdown timeout that was passed at the shutdown, if any.
    shutdown_within: OnceLock<Duration>,
    /// Cancelled when everything has ended.
    pub(in crate::consumer) ended: CancellationToken,
    /// The error for which it ended by itself.
    cause: OnceLock<Error>,
}

impl Context {
    pub(in crate::consumer) fn new(
        backend: Backend,
        group: GroupName,
        config: ConsumerConfig,
        observer: Arc<dyn Observer>,
    ) -> Result<Self> {
        let incarnation = unique_name(&backend);
        let member = match &config.member_id {
            Some(id) => id.clone(),
            None => member_id(&config.label, &incarnation)?,
        };
        let of_instances = config.member_id.is_some() || config.instance_expiry.is_some();
        let lasts = backend.is_lasting() && config.sharing == Sharing::Exclusive && !of_instances;
        let lease_ttl = if lasts { LONGEST_LEASE } else { config.lease_ttl };
        let lease_clock = LeaseClock::of(&backend);
        let keeper = Keeper::new(lease_ttl, lease_clock.clone());
        // Its name in the group, for people, and unique to this start.
        let name = match member.as_str().ends_with(&incarnation) {
            true => member.to_string(),
            false => format!("{member}-{incarnation}"),
        };
        let permits = PermitPool::of(&backend, &name, keeper, &config.across, "heartbeat")?;
        let event_sink = Arc::new(EventSink::new(Careful::over(observer)));
        let observer: Arc<dyn Observer> = event_sink.clone();
        Ok(Self {
            control: ControlThread::of(&backend),
            lease_ttl,
            lease_clock,
            permits,
            limiter: Limiter::new(config.max_handlers),
            policies_need_message: Policies {
                retry: &*config.retry,
                dead_letters: &*config.dead_letters,
                observer: &*event_sink,
            }
            .need_message(),
            notes: NoteForwarder::of(&backend, &observer),
            has_steps: AtomicBool::new(false),
            keeps: (backend.supports(Capability::Results), backend.supports(Capability::Batches)),
            backend,
            group,
            config,
            tracing: Tracing::of(&observer),
            observer,
            event_sink,
            status: Arc::default(),
            loops: Loops::default(),
            pauses: Pauses::new(),
            counts: Counts::default(),
            member,
            incarnation,
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            shutdown_within: OnceLock::new(),
            ended: CancellationToken::new(),
            cause: OnceLock::new(),
        })
    }

    /// Returns the policies with their fallbacks.
    pub(in crate::consumer) fn policies(&self) -> Policies<'_> {
        let (retry, dead_letters) = (&*self.config.retry, &*self.config.dead_letters);
        Policies { retry, dead_letters, observer: &*self.observer }
    }

    /// Returns the period of renewals and heartbeats.
    pub(in crate::consumer) fn period(&self) -> Duration {
        self.lease_ttl / 3
    }

    /// Returns the maximum time that one request waits for messages. A backend in the process loses no wake-up.
    pub(in crate::consumer) fn max_wait(&self) -> Duration {
        if self.backend.is_lasting() { LONGEST_LEASE } else { self.config.max_wait }
    }

    /// Returns the time limit for requests about leases and membership.
    pub(in crate::consumer) fn request_timeout(&self) -> Duration {
        self.config.lease_ttl / 4
    }

    /// Returns the rhythm of all that ends after the ttl of the settings.
    pub(in crate::consumer) fn keeper(&self) -> Keeper {
        Keeper::new(self.config.lease_ttl, self.lease_clock.clone())
    }

    /// Returns what a guard of operations needs to know of the consumer.
    pub(in crate::consumer) fn guarding(&self, topic: &TopicName, markers: MarkerTable) -> Guarding {
        Guarding {
            backend: self.backend.clone(),
            scope: (topic.clone(), self.group.clone()),
            ttl: self.config.lease_ttl,
            is_ordered: !matches!(self.config.concurrency, Concurrency::Unordered(_)),
            monitor: self.loops.monitor("idempotency", Scope::Topic(topic.clone())),
            observer: self.observer.clone(),
            markers,
        }
    }

    fn shutdown_timeout(&self) -> Duration {
        *self.shutdown_within.get().unwrap_or(&self.config.shutdown_timeout)
    }

    /// Returns the part of a shutdown that is reserved for the last settlements and for releasing partitions.
    pub(in crate::consumer) fn last_settlements(&self) -> Duration {
        (self.shutdown_timeout() / 5).clamp(LAST_SETTLEMENTS.0, LAST_SETTLEMENTS.1)
    }

    /// Returns how long handlers may take to end: all of a shutdown but the last part.
    pub(in crate::consumer) fn handlers_timeout(&self) -> Duration {
        let timeout = self.shutdown_timeout();
        timeout - (timeout / 5).min(LAST_SETTLEMENTS.1)
    }

    /// Counts messages that are read and not settled when their partition is given up.
    pub(in crate::consumer) fn hand_back(&self, messages: usize) {
        Counts::add(&self.counts.handed_back, messages);
        if self.kill.is_cancelled() {
            Counts::add(&self.counts.unsettled, messages);
        }
    }

    /// Leaves the group; the shutdown may take this time. The first call counts.
    pub(in crate::consumer) fn stop_within(&self, time: Duration) {
        let _ = self.shutdown_within.set(time);
        self.stop.cancel();
    }

    /// Gives up handlers that did not end within `timeout`.
    pub(in crate::consumer) fn give_up(&self, timeout: Duration) {
        if self.shutdown_timeout().is_zero() {
            // The caller asked for it: the timeout was zero.
            tracing::debug!("running handlers are aborted");
        } else {
            let handlers = self.status.running();
            tracing::warn!(?timeout, handlers, "the shutdown takes too long: running handlers are aborted");
        }
        self.kill.cancel();
    }

    /// Returns why the consumer ended by itself, if it did.
    pub(in crate::consumer) fn cause(&self) -> Option<&Error> {
        self.cause.get()
    }

    /// Ends the consumer: another process has our member id.
    pub(in crate::consumer) fn fence(&self) {
        let why = format!("another process consumes in group {} as member {}", self.group, self.member);
        let _ = self.cause.set(Error::new(ErrorKind::Fenced, why));
        self.stop.cancel();
    }

    /// Ends the consumer: its topic or group was deleted on purpose, and nothing is created again.
    pub(in crate::consumer) fn deleted(&self, topic: &TopicName, error: &Error) {
        // Several loops get this error. If the consumer was being shut down, it did not end by itself.
        if self.stop.is_cancelled() || self.cause.set(error.clone()).is_err() {
            return;
        }
        let group = &self.group;
        tracing::error!(%topic, %group, %error, "the topic or the group was deleted: this consumer stops");
        self.observer.observe(&Event::Deleted { topic, group, error });
        self.stop.cancel();
    }

    /// Returns an error if the consumer ended by itself.
    pub(in crate::consumer) fn check(&self) -> Result<()> {
        self.cause().map_or(Ok(()), |cause| Err(cause.clone()))
    }
}

/// Returns a unique word.
pub(in crate::consumer) fn unique_name(backend: &Backend) -> String {
    // With a backend in this process nobody else makes names, and simulations repeat themselves with the same seed.
    let unique = if backend.is_in_process() { Uuid::from_u128(fastrand::u128(..)) } else { Uuid::new_v4() };
    unique.simple().to_string()
}

/// Returns a unique name: characters that names may not contain are replaced, and a long label is cut.
fn member_id(label: &str, incarnation: &str) -> Result<MemberId> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let room = millstream_core::name::MAX_NAME_LEN - incarnation.len() - 1;
    let label: String = label.chars().map(|c| if allowed(c) { c } else { '_' }).take(room).collect();
    MemberId::new(format!("{label}-{incarnation}"))
}

/// State shared by the loops of one topic.
pub(in crate::consumer) struct Subscription {
    pub(in crate::consumer) context: Arc<Context>,
    pub(in crate::consumer) topic: TopicSpec,
    pub(in crate::consumer) handler: ErasedHandler,
    /// Whether results of messages are stored for which the handler returned no reply.
    pub(in crate::consumer) replies: bool,
    pub(in crate::consumer) upkeep: Vec<Arc<dyn Upkeep>>,
    /// Notified when the group has changed: members joined or left, or the assignment is another one.
    pub(in crate::consumer) changed: Notify,
    /// What is in handlers.
    pub(in crate::consumer) running: RunningPartitions,
    /// Since when heartbeats have been answered without a gap.
    answers: Answers,
}

impl Subscription {
    pub(in crate::consumer) fn new(
        context: Arc<Context>,
        topic: TopicSpec,
        handler: ErasedHandler,
        upkeep: Vec<Arc<dyn Upkeep>>,
    ) -> Self {
        let answers = Answers::new(context.lease_ttl);
        let (changed, running) = (Notify::new(), RunningPartitions::default());
        let replies = context.config.replies || handler.replies();
        Self { context, topic, handler, replies, upkeep, changed, running, answers }
    }
}

impl Subscription {
    /// Returns what is stored for whoever sent a message.
    pub(in crate::consumer) fn answering(&self) -> Answering {
        let steps = self.has_steps.load(Ordering::Relaxed);
        Answering { kept: self.keeps, replies: self.replies, limit: self.config.limits.payload, steps }
    }

    /// Records that this server answered a heartbeat, sent at `asked`, at this time of its clock.
    pub(in crate::consumer) fn answered(&self, asked: Instant, server: &str, now: Timestamp) {
        self.answers.record_answer(asked, server, now);
    }

    /// Returns since when heartbeats have been answered without a gap. Requests that take something over carry this.
    pub(in crate::consumer) fn continuity(&self) -> Continuity {
        self.answers.continuity()
    }

    /// Whether a message may start again after it was passed to the handler, so that a copy has to be kept: it failed and
    /// waits in its place, was not handled because its lease was uncertain, or its units of limits were lost. A policy may need the message, too.
    pub(in crate::consumer) fn keeps_messages(&self) -> bool {
        let again = self.config.retry_order != RetryOrder::Skip || self.permits.is_some();
        again || self.handler.declines() || self.policies_need_message
    }

    /// Returns a new, empty in-flight set.
    pub(in crate::consumer) fn in_flight(&self) -> InFlight {
        let config = &self.config;
        let most = config.read_ahead().unwrap_or(config.max_blocked);
        InFlight::new(config.prefetch, config.concurrency.at_once(), most)
    }

    /// Returns the monitor of a loop for the topic.
    pub(in crate::consumer) fn monitor(&self, operation: &'static str) -> LoopMonitor {
        self.loops.monitor(operation, Scope::Topic(self.topic.name.clone()))
    }

    /// Returns the monitor of a loop for one partition.
    pub(in crate::consumer) fn monitor_of(
        &self,
        operation: &'static str,
        topic_partition: &TopicPartition,
    ) -> LoopMonitor {
        self.loops.monitor(operation, Scope::Partition(topic_partition.clone()))
    }
}

impl Deref for Subscription {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_label_makes_a_name() {
        let incarnation = Uuid::nil().simple().to_string();
        for (label, name) in [("billing 1/ü", "billing_1__-"), ("", "-"), ("a.b-c_D9", "a.b-c_D9-")] {
            assert_eq!(
                member_id(label, &incarnation).expect("a name").as_str(),
                format!("{name}{incarnation}")
            );
        }
        let long = member_id(&"ü".repeat(500), &incarnation).expect("a name");
        assert_eq!(long.as_str().len(), 128);
        assert!(long.as_str().ends_with(&incarnation));
    }
}
