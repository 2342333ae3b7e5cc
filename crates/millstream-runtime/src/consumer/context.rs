//! What all loops of one consumer share, and what those of one topic share.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::panics::{Careful, Policies};
use millstream_core::{
    Backend, Continuity, GroupName, MemberId, Observer, TopicName, TopicPartition, TopicSpec, Upkeep,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::consumer::events::EventSink;
use crate::consumer::partition::dispatch::limits::Limiter;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::pauses::Pauses;
use crate::consumer::status::Status;
use crate::consumer::{ConsumerConfig, handler::Handler};
use crate::report::Counts;
use millstream_loops::ControlThread;
use millstream_loops::LeaseClock;
use millstream_loops::{LoopMonitor, Loops, Scope};

/// The shortest time that an answer gets, unless leases are shorter than four times that.
const LEAST_PATIENCE: Duration = Duration::from_millis(350);

/// What all loops of one consumer share.
pub(in crate::consumer) struct Context {
    pub(in crate::consumer) backend: Backend,
    pub(in crate::consumer) group: GroupName,
    pub(in crate::consumer) config: ConsumerConfig,
    pub(in crate::consumer) observer: Arc<dyn Observer>,
    /// The observer again, for those who listen.
    pub(in crate::consumer) event_sink: Arc<EventSink>,
    pub(in crate::consumer) status: Arc<Status>,
    pub(in crate::consumer) loops: Loops,
    pub(in crate::consumer) pauses: Pauses,
    pub(in crate::consumer) counts: Counts,
    /// What all partitions share.
    pub(in crate::consumer) limiter: Limiter,
    /// Where renewals and heartbeats run.
    pub(in crate::consumer) control: ControlThread,
    /// What deadlines of leases are counted by.
    pub(in crate::consumer) lease_clock: Arc<LeaseClock>,
    /// Our name in the group, and what people see as the owner of a partition.
    pub(in crate::consumer) member: MemberId,
    /// Unique to this start.
    pub(in crate::consumer) incarnation: String,
    /// Leave the group, end what has started.
    pub(in crate::consumer) stop: CancellationToken,
    /// The time for ending is over: give up handlers.
    pub(in crate::consumer) kill: CancellationToken,
    /// How long handlers get to end, if somebody has said so when it was shut down.
    shutdown_within: OnceLock<Duration>,
    /// Everything has ended.
    pub(in crate::consumer) ended: CancellationToken,
    /// Why it ended by itself.
    cause: OnceLock<Error>,
}

impl Context {
    pub(in crate::consumer) fn new(
        backend: Backend,
        group: GroupName,
        config: ConsumerConfig,
        observer: Arc<dyn Observer>,
    ) -> Result<Self> {
        // In one process nobody else makes names, and simulations repeat themselves with the same seed.
        let unique = if backend.local { Uuid::from_u128(fastrand::u128(..)) } else { Uuid::new_v4() };
        let incarnation = unique.simple().to_string();
        let member = match &config.member_id {
            Some(id) => id.clone(),
            None => member_id(&config.label, &incarnation)?,
        };
        let event_sink = Arc::new(EventSink::new(Careful::over(observer)));
        Ok(Self {
            control: ControlThread::of(&backend),
            lease_clock: LeaseClock::of(&backend),
            limiter: Limiter::new(config.max_handlers),
            backend,
            group,
            config,
            observer: event_sink.clone(),
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

    /// The policies, with their fallbacks.
    pub(in crate::consumer) fn policies(&self) -> Policies<'_> {
        let (retry, dead_letters) = (&*self.config.retry, &*self.config.dead_letters);
        Policies { retry, dead_letters, observer: &*self.observer }
    }

    /// How often leases are renewed and heartbeats sent.
    pub(in crate::consumer) fn period(&self) -> Duration {
        self.config.lease_ttl / 3
    }

    /// How long to wait for an answer on the way to a lease.
    pub(in crate::consumer) fn patience(&self) -> Duration {
        self.config.lease_ttl / 4
    }

    /// How long to wait for an answer that says that we live: after it another one is tried.
    ///
    /// With the [pause](Self::retry_pause) it comes to well under a sixth of a ttl, if that is a few seconds or more: then
    /// who was heard last a third of a ttl before an outage of up to half a ttl is heard again before the ttl is over. A
    /// server that is a few hundred milliseconds away needs them in any case.
    pub(in crate::consumer) fn beat_patience(&self) -> Duration {
        (self.config.lease_ttl / 10).max(LEAST_PATIENCE).min(self.patience())
    }

    /// How long to pause after a request failed that says that we live, and would pause for `pause` elsewhere.
    pub(in crate::consumer) fn retry_pause(&self, error: &Error, pause: Duration) -> Duration {
        pause.min(if error.is_transient() { self.config.lease_ttl / 30 } else { self.period() })
    }

    /// How long handlers get to end.
    pub(in crate::consumer) fn shutdown_timeout(&self) -> Duration {
        *self.shutdown_within.get().unwrap_or(&self.config.shutdown_timeout)
    }

    /// Leave the group, end what has started, within this time. What was said first counts.
    pub(in crate::consumer) fn stop_within(&self, time: Duration) {
        let _ = self.shutdown_within.set(time);
        self.stop.cancel();
    }

    /// Gives handlers up that did not end within `patience`.
    pub(in crate::consumer) fn give_up(&self, patience: Duration) {
        if self.shutdown_timeout().is_zero() {
            // It was asked for: no time was to be given.
            tracing::debug!("handlers that run are given up");
        } else {
            tracing::warn!(?patience, "handlers did not end in time and are given up");
        }
        self.kill.cancel();
    }

    /// Why it ended by itself, if it did.
    pub(in crate::consumer) fn cause(&self) -> Option<&Error> {
        self.cause.get()
    }

    /// Another process has our member id: everything ends here.
    pub(in crate::consumer) fn fence(&self) {
        let why = format!("another process consumes in group {} as member {}", self.group, self.member);
        let _ = self.cause.set(Error::new(ErrorKind::Fenced, why));
        self.stop.cancel();
    }

    /// What we work on was deleted on purpose: everything ends here, and nothing is created again.
    pub(in crate::consumer) fn deleted(&self, topic: &TopicName, error: &Error) {
        // Several loops meet it. If it was being shut down, it did not end by itself.
        if self.stop.is_cancelled() || self.cause.set(error.duplicate()).is_err() {
            return;
        }
        let group = &self.group;
        tracing::error!(%topic, %group, %error, "what is consumed here was deleted: this consumer stops");
        self.observer.observe(&Event::Deleted { topic, group, error });
        self.stop.cancel();
    }

    /// An error if it ended by itself.
    pub(in crate::consumer) fn check(&self) -> Result<()> {
        self.cause().map_or(Ok(()), |cause| Err(cause.duplicate()))
    }
}

/// A name that nobody else has: what names may not contain is replaced, and what is too long cut.
fn member_id(label: &str, incarnation: &str) -> Result<MemberId> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let room = millstream_core::name::MAX_NAME_LEN - incarnation.len() - 1;
    let label: String = label.chars().map(|c| if allowed(c) { c } else { '_' }).take(room).collect();
    MemberId::new(format!("{label}-{incarnation}"))
}

/// What the loops of one topic share.
pub(in crate::consumer) struct Subscription {
    pub(in crate::consumer) context: Arc<Context>,
    pub(in crate::consumer) topic: TopicSpec,
    pub(in crate::consumer) handler: Handler,
    pub(in crate::consumer) upkeep: Vec<Arc<dyn Upkeep>>,
    /// Rung when the group has changed: somebody came or went, or is to own something else.
    pub(in crate::consumer) changed: Notify,
    /// Since when heartbeats have been answered without a gap.
    heard: Mutex<Continuity>,
}

impl Subscription {
    pub(in crate::consumer) fn new(
        context: Arc<Context>,
        topic: TopicSpec,
        handler: Handler,
        upkeep: Vec<Arc<dyn Upkeep>>,
    ) -> Self {
        let heard = Mutex::new(Continuity::new(context.config.lease_ttl));
        Self { context, topic, handler, upkeep, changed: Notify::new(), heard }
    }
}

impl Subscription {
    /// A heartbeat was answered by this server, at this time by its clock.
    pub(in crate::consumer) fn answered(&self, server: &str, now: u64) {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).advance(server, now);
    }

    /// Since when heartbeats have been answered without a gap: what requests carry that take something over.
    pub(in crate::consumer) fn heard(&self) -> Continuity {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What one partition has in hand, when it has nothing.
    pub(in crate::consumer) fn in_flight(&self) -> Arc<InFlight> {
        let config = &self.config;
        Arc::new(InFlight::new(config.prefetch, config.concurrency.at_once(), config.max_blocked))
    }

    /// Monitor of a loop for the topic.
    pub(in crate::consumer) fn monitor(&self, operation: &'static str) -> LoopMonitor {
        self.loops.monitor(operation, Scope::Topic(self.topic.name.clone()))
    }

    /// Monitor of a loop for one partition.
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
