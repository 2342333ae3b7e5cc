//! Settings of a consumer.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::assignment::Balanced;
use millstream_core::error::{Problems, Result};
use millstream_core::policy::{Exponential, Keep};
use millstream_core::retention::{REPLAYS_WITHIN, Remembered};
use millstream_core::{
    Assignor, Backend, Capability, DeadLetterPolicy, Limits, MemberId, Partition, RebalanceListener,
    RetryPolicy, Start, TopicSpec,
};
use millstream_engine::limits::LimitSet;
use millstream_engine::{Fairness, Idempotent, Priorities};

/// Shortest [`max_wait`](ConsumerConfig::max_wait): a server waits for whole milliseconds, and a reader that waits for less
/// sends one request after the other.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);
/// Longest [`lease_ttl`](ConsumerConfig::lease_ttl): a day. Leases are renewed, so that a longer one only makes others wait
/// after a crash.
pub(in crate::consumer) const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3_600);
/// Longest [`rejoin_timeout`](ConsumerConfig::rejoin_timeout): 30 days.
const LONGEST_REJOIN: Duration = Duration::from_secs(30 * 24 * 3_600);

/// How many messages of one partition are handled at once, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Concurrency {
    /// One after the other, in log order. The default.
    #[default]
    Serial,
    /// Up to this many at once. Messages with the same key are handled one after the other, in order. Messages without a
    /// key have no order.
    PerKey(usize),
    /// Up to this many at once, in no order.
    Unordered(usize),
}

impl Concurrency {
    pub(in crate::consumer) fn at_once(self) -> usize {
        match self {
            Self::Serial => 1,
            Self::PerKey(at_once) | Self::Unordered(at_once) => at_once,
        }
    }
}

/// Whether each partition has one owner in its group, or all members work on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// One owner at a time. It keeps the order, and its lease fences all others. The default.
    #[default]
    Exclusive,
    /// All members read all partitions, without order. Suits groups with more members than partitions, and slow handlers.
    /// Requires [`Concurrency::Unordered`]. All members of a group must use the same setting.
    ///
    /// Each message is claimed by one member, which extends its claim three times per
    /// [`lease_ttl`](ConsumerConfig::lease_ttl). If it does not do so for a whole `lease_ttl`, other members take the
    /// message over. There is no fencing token for a store of your own ([`Delivery::epoch`](crate::Delivery::epoch) is
    /// 0).
    Shared,
}

/// Treatment of later messages while a failed one waits for its next attempt: non-blocking retries with
/// [`Skip`](Self::Skip), blocking ones with the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryOrder {
    /// Later messages are handled while the failed one waits. Default.
    #[default]
    Skip,
    /// Later messages with the same key wait behind it, also across restarts and takeovers; others are handled meanwhile.
    BlockKey,
    /// All messages of its partition wait behind it. Requires [`Concurrency::Serial`].
    BlockPartition,
}

/// Settings of a consumer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConsumerConfig {
    /// Name that is displayed as the owner of a partition; a unique part is appended. It has no other effect. Default:
    /// `consumer`.
    pub label: String,
    /// Position at which a new group starts reading. Default: [`Start::Earliest`].
    pub start: Start,
    /// How long a partition stays owned without a renewal, and therefore how long its messages wait when its owner dies.
    /// The lease is renewed three times in this period. Default: 10 s; 100 ms to a day. Without effect over a
    /// [backend](millstream_core::Backend::is_lasting) that ends with the process, as `memory://`.
    pub lease_ttl: Duration,
    /// Maximum number of messages of one partition that are read and not yet settled. With [`Sharing::Shared`] the
    /// maximum of this consumer over all partitions; other members do not get these messages. With [`fairness`](Self::fairness) or
    /// [`priorities`](Self::priorities) what waits does not count, in a partition that is owned. Default: 512.
    pub prefetch: usize,
    /// Maximum time that one request waits for messages. Waiting costs nothing; a shorter time costs more commands. If
    /// the connection dies silently meanwhile, TCP detects it within half a minute. Default: 60 s; 10 ms to an hour.
    pub max_wait: Duration,
    /// How many messages of one partition are handled at once; with [`Sharing::Shared`], of all partitions together.
    /// Default: [`Concurrency::Serial`].
    pub concurrency: Concurrency,
    /// Whether each partition has one owner, or all members work on it. Default: [`Sharing::Exclusive`].
    pub sharing: Sharing,
    /// Limits across processes.
    pub(in crate::consumer) across: LimitSet,
    /// Fairness between the tenants of a partition. Default: the message that was read first is next.
    pub fairness: Option<Fairness>,
    /// The lanes of the messages of a partition; with fairness, of each tenant. Default: the message that was read first is next.
    pub priorities: Option<Priorities>,
    /// Maximum number of handlers that run at once in this consumer, over all partitions and topics. `None` means that
    /// only the limits of the partitions apply. Partitions take turns. Default: `None`.
    pub max_handlers: Option<usize>,
    /// Treatment of later messages while a failed one waits. Default: [`RetryOrder::Skip`].
    pub retry_order: RetryOrder,
    /// Maximum number of messages of one partition that wait in place: behind failed ones (with [`RetryOrder::BlockKey`]), or for
    /// [limits](crate::ConsumerBuilder::limit). They do not count towards [`prefetch`](Self::prefetch). When the maximum is reached, or 64 MiB of payloads,
    /// nothing more of the partition is read until some of them can proceed. With [`fairness`](Self::fairness) or
    /// [`priorities`](Self::priorities) their [`read_ahead`](Fairness::read_ahead) counts in its place. Default: 10,000.
    pub max_blocked: usize,
    /// Maximum run time of a handler. One that takes longer is dropped, which is a failed attempt
    /// ([`FailureKind::Timeout`](millstream_core::policy::FailureKind::Timeout)). Default: no limit.
    pub handler_timeout: Option<Duration>,
    /// How many processes may die while handling one message. With the next one it becomes a dead letter with the reason
    /// `crashed`, but not before the fourth death, because until then the message that caused the deaths is not known.
    /// Default: 3, at least 2.
    pub crash_limit: u32,
    /// Name of this instance that stays the same after a restart. An instance with a name keeps its partitions over a
    /// restart that is shorter than [`rejoin_timeout`](Self::rejoin_timeout). Default: a new name for each start.
    pub member_id: Option<MemberId>,
    /// Makes each instance a [group of its own](millstream_core::GroupName::of_instance), so that every instance gets every message. The group is
    /// removed when its instance has been gone for this time; at least three times [`lease_ttl`](Self::lease_ttl). Default: the
    /// instances share one group.
    pub instance_expiry: Option<Duration>,
    /// How long the partitions of an instance with a [`member_id`](Self::member_id) are kept for it while it is away.
    /// Default: 45 s, as in Kafka; at least [`lease_ttl`](Self::lease_ttl), and at most 30 days.
    pub rejoin_timeout: Duration,
    /// Maximum number of partitions of a topic that this instance takes. Default: no limit.
    pub max_partitions: Option<u32>,
    /// Partitions that this instance takes in any case. Default: none.
    pub pinned: Vec<Partition>,
    /// Strategy that assigns partitions to members. All instances of a group should use the same one. Default:
    /// [`Balanced`].
    pub assignor: Arc<dyn Assignor>,
    /// Time limit of a shutdown. Handlers have four fifths of it to end (all but the last 5 s of a long one). The rest, at least
    /// 1 s, is for settling their messages. Default: 25 s, which fits into the 30 s that Kubernetes allows.
    pub shutdown_timeout: Duration,
    /// Maximum size of a message; larger ones become dead letters.
    pub limits: Limits,
    /// Policy that decides when a failed message comes back. Default: [`Exponential`], 10 attempts.
    pub retry: Arc<dyn RetryPolicy>,
    /// Whether the operation of each message is done once. Default: `None`, which handles each message that comes.
    pub idempotent: Option<Idempotent>,
    /// Whether the group also stores the [results](millstream_core::results) of messages that failed, or were handled without a reply. A handler
    /// whose return type is a [`Reply`](millstream_core::Reply) does so in any case. Default: no: a reply that a handler returns is stored, and nothing else.
    pub replies: bool,
    /// Policy that decides whether a message that is given up is kept. Default: [`Keep`].
    pub dead_letters: Arc<dyn DeadLetterPolicy>,
    /// Hooks that are awaited when partitions come and go. Not with [`Sharing::Shared`]. Default: none.
    pub on_rebalance: Option<Arc<dyn RebalanceListener>>,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            label: "consumer".into(),
            start: Start::default(),
            lease_ttl: Duration::from_secs(10),
            prefetch: 512,
            max_wait: Duration::from_secs(60),
            concurrency: Concurrency::default(),
            sharing: Sharing::default(),
            across: LimitSet::default(),
            fairness: None,
            priorities: None,
            max_handlers: None,
            retry_order: RetryOrder::default(),
            max_blocked: 10_000,
            handler_timeout: None,
            crash_limit: 3,
            member_id: None,
            instance_expiry: None,
            rejoin_timeout: Duration::from_secs(45),
            max_partitions: None,
            pinned: Vec::new(),
            assignor: Arc::new(Balanced),
            shutdown_timeout: Duration::from_secs(25),
            limits: Limits::default(),
            retry: Arc::new(Exponential::default()),
            idempotent: None,
            replies: false,
            dead_letters: Arc::new(Keep),
            on_rebalance: None,
        }
    }
}

impl ConsumerConfig {
    /// Returns how many messages of a partition may be read and wait, if they are not handled in the order in which they are read.
    pub(in crate::consumer) fn read_ahead(&self) -> Option<usize> {
        let fairness = self.fairness.as_ref().map(Fairness::most_read);
        fairness.max(self.priorities.as_ref().map(Priorities::most_read))
    }

    pub(in crate::consumer) fn check(&self, problems: &mut Problems) {
        self.across.check(problems);
        if let Some(fairness) = &self.fairness {
            fairness.check(problems);
        }
        if let Some(priorities) = &self.priorities {
            priorities.check(problems);
        }
        let whole = self.concurrency == Concurrency::Serial && self.retry_order != RetryOrder::BlockKey;
        problems.require(!whole || self.read_ahead().is_none(), || {
            "fair_by and priorities go with concurrency PerKey or Unordered, or with retry_order BlockKey: Serial keeps the order of the partition".into()
        });
        if let Err(why) = self.retry.check() {
            problems.require(false, || format!("retry: {why}"));
        }
        problems.require(self.lease_ttl >= Duration::from_millis(100), || {
            format!("lease_ttl is {:?}, at least 100ms are needed to renew it in time", self.lease_ttl)
        });
        problems.require(self.lease_ttl <= LONGEST_LEASE, || {
            format!("lease_ttl is {:?}, at most a day is allowed", self.lease_ttl)
        });
        problems.require((1..=10_000).contains(&self.prefetch), || {
            format!("prefetch is {}, 1 to 10000 are allowed", self.prefetch)
        });
        let unordered = matches!(self.concurrency, Concurrency::Unordered(_));
        problems.require(unordered || self.sharing != Sharing::Shared, || {
            "sharing Shared goes with concurrency Unordered(n) only: there is no order to keep".into()
        });
        problems.require(self.on_rebalance.is_none() || self.sharing != Sharing::Shared, || {
            "a rebalance listener goes with sharing Exclusive only: no partition comes or goes".into()
        });
        let (Concurrency::PerKey(at_once) | Concurrency::Unordered(at_once)) = self.concurrency else {
            self.check_rest(problems);
            return;
        };
        problems.require((1..=10_000).contains(&at_once), || {
            format!("concurrency is {at_once}, 1 to 10000 are allowed")
        });
        problems.require(self.retry_order != RetryOrder::BlockPartition, || {
            "retry_order BlockPartition goes with concurrency Serial only".into()
        });
        let ordered = matches!(self.concurrency, Concurrency::PerKey(_));
        problems.require(ordered || self.retry_order != RetryOrder::BlockKey, || {
            "retry_order BlockKey does not go with concurrency Unordered: there is no order to keep".into()
        });
        self.check_rest(problems);
    }

    fn check_rest(&self, problems: &mut Problems) {
        problems
            .require(self.max_handlers != Some(0), || "max_handlers is 0: nothing would be handled".into());
        problems.require(self.max_blocked >= 1, || "max_blocked is 0: nothing would be read".into());
        problems.require(self.handler_timeout != Some(Duration::ZERO), || {
            "handler_timeout is zero: every handler would fail".into()
        });
        problems.require(self.crash_limit >= 2, || {
            format!("crash_limit is {}, at least 2 are needed to know the culprit", self.crash_limit)
        });
        problems
            .require(self.max_partitions != Some(0), || "max_partitions is 0: nothing would be read".into());
        problems.require(self.rejoin_timeout >= self.lease_ttl, || {
            format!(
                "rejoin_timeout is {:?}, shorter than lease_ttl {:?}",
                self.rejoin_timeout, self.lease_ttl
            )
        });
        problems.require(self.rejoin_timeout <= LONGEST_REJOIN, || {
            format!("rejoin_timeout is {:?}, at most 30 days are allowed", self.rejoin_timeout)
        });
        if let Some(expiry) = self.instance_expiry {
            problems.require(expiry >= 3 * self.lease_ttl, || {
                format!(
                    "instance_expiry is {expiry:?}, shorter than three times lease_ttl {:?}",
                    self.lease_ttl
                )
            });
        }
        problems.require(self.max_wait >= SHORTEST_WAIT, || {
            format!(
                "max_wait is {:?}, at least {SHORTEST_WAIT:?} are needed: less is a busy loop",
                self.max_wait
            )
        });
        problems.require(self.max_wait <= Duration::from_secs(3600), || {
            format!("max_wait is {:?}, at most an hour is allowed", self.max_wait)
        });
        problems.require(self.label.len() <= 128 && !self.label.chars().any(char::is_control), || {
            "label is longer than 128 bytes or has control characters".into()
        });
    }
}

/// Checks what the consumer needs for the settings of the stored topic, which may differ from those in the program.
pub(in crate::consumer) fn check_stored(
    backend: &Backend,
    config: &ConsumerConfig,
    topic: &TopicSpec,
    sends: &[(String, Remembered)],
) -> Result<()> {
    if !topic.dead_letter_retention.is_keep() {
        backend.require(Capability::DeadLetters)?;
        backend.require(Capability::TrimDeadLetters)?;
    }
    let mut problems = Problems::new("consumer");
    for (what, remembered) in sends {
        remembered.check(what, Some(&*config.retry), std::iter::once(topic), &mut problems);
        if remembered.assumes_replays(topic) {
            tracing::warn!(topic = %topic.name, what, retention = ?remembered.retention, assumed = ?REPLAYS_WITHIN,
                "the topic keeps dead letters without a limit of time: what is sent for one that is replayed after the window \
                 is sent twice. Limit their age (dead_letter_retention), or state replays_within");
        }
    }
    let Some(idempotent) = &config.idempotent else { return problems.finish() };
    idempotent.check(&*config.retry, std::iter::once(topic), &mut problems);
    problems.finish()?;
    idempotent.warn_if_assumed(topic);
    Ok(())
}
