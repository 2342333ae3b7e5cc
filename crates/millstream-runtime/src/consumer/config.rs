//! How a consumer works.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::assignment::Balanced;
use millstream_core::error::Problems;
use millstream_core::policy::{Exponential, Keep};
use millstream_core::{Assignor, DeadLetterPolicy, Limits, MemberId, Partition, RetryPolicy, Start};

/// How many messages of one partition are handled at once, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Concurrency {
    /// One after the other, in the order of the log. The default.
    #[default]
    Serial,
    /// Up to this many at once; messages of one key one after the other, in order. Messages without a key have no
    /// order.
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

/// Whether a partition has one owner in its group, or all members work on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// One owner at a time: it keeps order, and its lease fences all others. The default.
    #[default]
    Exclusive,
    /// All members read all partitions, without order: for more members than partitions, and for handlers that take
    /// long. Goes with [`Concurrency::Unordered`] only. All members of a group must say the same.
    ///
    /// Each message is in the hands of one member, which says so every third of
    /// [`lease_ttl`](ConsumerConfig::lease_ttl); when it is not heard of for that long, others take over. There is no
    /// fence that a store of your own could look at ([`Delivery::epoch`](crate::Delivery::epoch) is 0).
    Shared,
}

/// What later messages do while a failed one waits for its next attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryOrder {
    /// They overtake it. The default: one message that fails keeps nobody waiting.
    #[default]
    Skip,
    /// Those with its key wait behind it, also across restarts and takeovers; the others overtake.
    BlockKey,
    /// All messages of its partition wait behind it. Goes with [`Concurrency::Serial`] only.
    BlockPartition,
}

/// How a consumer works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConsumerConfig {
    /// What people see as the owner of a partition; a unique part is added. It decides nothing. Default:
    /// `consumer`.
    pub label: String,
    /// Where a group that does not exist yet starts reading. Default: [`Start::Earliest`].
    pub start: Start,
    /// How long a partition stays owned without a renewal, and so how long its messages wait when its owner
    /// dies. It is renewed three times as often. Default: 10 s.
    pub lease_ttl: Duration,
    /// The most messages of one partition that are read and not settled yet; with [`Sharing::Shared`] the most of this
    /// consumer, which others then do not get. Default: 512.
    pub prefetch: usize,
    /// The longest wait for messages in one request. It costs nothing to wait; shorter ones cost commands. A connection
    /// that dies without a word meanwhile is found out by TCP within half a minute. Default: 60 s.
    pub max_wait: Duration,
    /// How many messages of one partition are handled at once; with [`Sharing::Shared`], of all together. Default:
    /// [`Concurrency::Serial`].
    pub concurrency: Concurrency,
    /// Whether a partition has one owner or is everybody's. Default: [`Sharing::Exclusive`].
    pub sharing: Sharing,
    /// The most handlers that run at once in this consumer, over all partitions and topics; `None` means no limit but
    /// those of the partitions. Partitions take turns. Default: `None`.
    pub max_handlers: Option<usize>,
    /// What later messages do while a failed one waits. Default: [`RetryOrder::Skip`].
    pub retry_order: RetryOrder,
    /// The most messages of one partition that wait in their place behind others that failed (with
    /// [`RetryOrder::BlockKey`]). They do not count as read ahead; when they are as many as this, nothing more of the
    /// partition is read until some can go on. Default: 10,000.
    pub max_blocked: usize,
    /// How long a handler may take. One that takes longer is dropped, and that is a failed attempt
    /// ([`FailureKind::Timeout`](millstream_core::policy::FailureKind::Timeout)). Default: any time.
    pub handler_timeout: Option<Duration>,
    /// How many processes may die over one message: with the next one it becomes a dead letter with the reason `crashed`,
    /// but not before the fourth, since until then it is not known which message it was. Default: 3, at least 2.
    pub crash_limit: u32,
    /// A name for this instance that is the same after a restart. Who has one keeps its partitions over a restart
    /// that is shorter than [`rejoin_timeout`](Self::rejoin_timeout). Default: a new name for each start.
    pub member_id: Option<MemberId>,
    /// How long the partitions of an instance with a [`member_id`](Self::member_id) are kept for it while it is away.
    /// Default: 45 s, as in Kafka.
    pub rejoin_timeout: Duration,
    /// The most partitions of a topic that this instance takes. Default: any number.
    pub max_partitions: Option<u32>,
    /// Partitions that this instance takes in any case. Default: none.
    pub pinned: Vec<Partition>,
    /// Who gets which partition. All instances of a group should have the same. Default: [`Balanced`].
    pub assignor: Arc<dyn Assignor>,
    /// How long handlers may take to end when the consumer is shut down. Default: 30 s, as in Kubernetes.
    pub shutdown_timeout: Duration,
    /// How large a message may be; larger ones become dead letters.
    pub limits: Limits,
    /// When a failed message comes back. Default: [`Exponential`], 10 attempts.
    pub retry: Arc<dyn RetryPolicy>,
    /// Whether a message that is given up is kept. Default: [`Keep`].
    pub dead_letters: Arc<dyn DeadLetterPolicy>,
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
            max_handlers: None,
            retry_order: RetryOrder::default(),
            max_blocked: 10_000,
            handler_timeout: None,
            crash_limit: 3,
            member_id: None,
            rejoin_timeout: Duration::from_secs(45),
            max_partitions: None,
            pinned: Vec::new(),
            assignor: Arc::new(Balanced),
            shutdown_timeout: Duration::from_secs(30),
            limits: Limits::default(),
            retry: Arc::new(Exponential::default()),
            dead_letters: Arc::new(Keep),
        }
    }
}

impl ConsumerConfig {
    pub(in crate::consumer) fn check(&self, problems: &mut Problems) {
        if let Err(why) = self.retry.check() {
            problems.require(false, || format!("retry: {why}"));
        }
        problems.require(self.lease_ttl >= Duration::from_millis(100), || {
            format!("lease_ttl is {:?}, at least 100ms are needed to renew it in time", self.lease_ttl)
        });
        problems.require((1..=10_000).contains(&self.prefetch), || {
            format!("prefetch is {}, 1 to 10000 are allowed", self.prefetch)
        });
        let unordered = matches!(self.concurrency, Concurrency::Unordered(_));
        problems.require(unordered || self.sharing != Sharing::Shared, || {
            "sharing Shared goes with concurrency Unordered(n) only: there is no order to keep".into()
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
        problems.require(!self.max_wait.is_zero(), || "max_wait is zero: that is a busy loop".into());
        problems.require(self.max_wait <= Duration::from_secs(3600), || {
            format!("max_wait is {:?}, at most an hour is allowed", self.max_wait)
        });
        problems.require(self.label.len() <= 128 && !self.label.chars().any(char::is_control), || {
            "label is longer than 128 bytes or has control characters".into()
        });
    }
}
