#![doc = include_str!("../README.md")]

mod millstream;
mod signals;
#[cfg(test)]
mod tests;

pub use millstream::{Builder, Millstream};

#[cfg(feature = "admin")]
pub use millstream_admin::{DeadLetterQueue, SeekPreview};
pub use millstream_core::catalog::PartitionStats;
pub use millstream_core::history::{Failed, History};
pub use millstream_core::policy::{
    ByError, Delays, Discard, Exponential, Fixed, Jitter, Keep, Never, Within,
};
pub use millstream_core::{
    BatchEvent, BatchEventKind, BatchId, Check, Codec, DeadLetter, DeadLetterPolicy, DeadLetterRetention,
    Durability, Envelope, Error, ErrorKind, Event, GroupName, Headers, IntoCheck, IntoOutcome, LimitKey,
    Limits, MessageId, MessageResult, Namespace, Observer, Outcome, PackCompression, Packing, Partition,
    Partitioner, ProgressLine, Rate, Reason, Reply, Result, ResultId, Retention, RetryPolicy, Start,
    Timestamp, Topic, TopicChange, TopicName, TopicPartition, TopicSpec, WorkId, WorkPlace, steps::Signalled,
};
pub use millstream_runtime::{
    Batch, BatchBuilder, BatchConfig, BatchOutcome, Breaker, CallError, Called, CancelReason, Concurrency,
    Consumer, ConsumerBuilder, ConsumerConfig, ConsumerEvent, ConsumerState, DeadLetterConfig,
    DeadLetterConsumer, DeadLetterConsumerBuilder, DeadLetterOutcome, DeadLetterReport, Delayed,
    DelayedMessage, DelayedMessages, DelayedRecord, Delivery, Events, Fairness, FanIn, FanOut, Follow,
    Followed, Health, Idempotent, IdempotentCalls, IntoBatchOutcome, IntoDeadLetterOutcome, Letter, Limit,
    LoopFailure, LoopHealth, OnFull, OpenBatch, PRIORITY_HEADER, Priorities, Producer, ProducerBuilder,
    ProducerConfig, Pulled, Puller, QualifiedRecord, QualifiedSend, Record, Report, Request, RequestError,
    Requested, ResultFuture, RetryOrder, Router, SendDelayed, SendFuture, Sent, Sharing, StepError, Steps,
    TYPE_HEADER, TopicHealth, WhileRunning,
};

#[cfg(feature = "tls")]
pub use millstream_redis::TlsConfig;
#[cfg(feature = "redis")]
pub use millstream_redis::{Access, Credentials, CredentialsProvider, PasswordFile, acl};

/// The underlying crates, for extensions of Millstream. Their items may change in a minor release.
pub mod crates {
    pub use millstream_core as core;
    pub use millstream_delay as delay;
    #[cfg(feature = "lock")]
    pub use millstream_lock as lock;
    pub use millstream_memory as memory;
    #[cfg(feature = "metrics")]
    pub use millstream_metrics as metrics;
    #[cfg(feature = "redis")]
    pub use millstream_redis as redis;
    pub use millstream_runtime as runtime;
    #[cfg(feature = "sql")]
    pub use millstream_sql as sql;
}

/// Inspection and operations. [`Millstream::admin`] returns the handle.
#[cfg(feature = "admin")]
pub mod admin {
    pub use millstream_admin::*;
    pub use millstream_core::LockName;
    pub use millstream_core::audit::{Fault, Finding, Loss, Remedy, Scope};
    pub use millstream_core::catalog::GroupState;
    pub use millstream_core::inspect::{Ownership, Pending, Range, Server, Stored, Stream, Structure, Usage};
    pub use millstream_core::limits::{LimitBound, LimitPattern, LimitRules, PermitKey};
    pub use millstream_core::locks::{LockCursor, LockPage, LockState};
    pub use millstream_core::permits::{OpenBreaker, PermitHolder, PermitPage, PermitState, RateState};
}

/// Batches of messages that are counted together. [`Millstream::batch`] creates one.
pub mod batch {
    pub use millstream_core::batches::*;
    pub use millstream_runtime::{BatchBuilder, BatchItem, OpenBatch};
}

/// Delay queues, which need no topics, and recurring messages. [`Millstream::delay_queue`] opens one.
pub mod delay {
    pub use millstream_core::schedule::{Due, OnConflict, Placed, ScheduleId, Shard, Waiting};
    pub use millstream_core::tasks::{DeadTask, QueueChange, QueueSpec, TaskCounts};
    pub use millstream_delay::*;
}

/// Locks on named resources, leader election, and locks over several servers. [`Millstream::lock`] and
/// [`Millstream::leader`] begin one.
#[cfg(feature = "lock")]
pub mod lock {
    pub use millstream_core::LockName;
    pub use millstream_core::leases::Holder;
    pub use millstream_lock::*;
}

/// Metrics and health. [`Metrics`](metrics::Metrics) is passed to [`Builder::metrics`] and serves them over HTTP.
#[cfg(feature = "metrics")]
pub mod metrics {
    pub use millstream_metrics::*;
}

/// SQL databases: the [`Inbox`](sql::Inbox), whose handlers get a transaction that commits effect and marker together, and
/// markers in a database ([`SqlIdempotency`](sql::SqlIdempotency)); an outbox, whose rows a relay sends. [`Millstream::outbox`] begins one.
#[cfg(feature = "sql")]
pub mod sql {
    pub use millstream_core::idempotency::Operation;
    pub use millstream_sql::*;
}

/// Arguments of handlers: state and parts of the message.
pub mod extract {
    pub use millstream_runtime::extract::*;
}

/// Layers: code around handlers, and between the codec of a producer and the server.
pub mod layer {
    #[cfg(feature = "zstd")]
    pub use millstream_payload::Compression;
    #[cfg(feature = "claim-check")]
    pub use millstream_payload::{
        ClaimCheck, DirectoryStore, InvalidReference, PayloadReference, PayloadStore,
    };
    #[cfg(feature = "encryption")]
    pub use millstream_payload::{Encryption, InvalidKey};
    pub use millstream_runtime::{Answer, AsyncProducerLayer, Layer, Next, ProducerLayer, Timeout, Trace};
}

/// [CloudEvents](https://cloudevents.io): events with attributes that other systems know.
#[cfg(feature = "cloudevents")]
pub mod cloudevents {
    pub use millstream_payload::{AttributeValue, CloudEvent, CloudEvents, InvalidEvent};
}

/// Codecs, which convert payloads between values and bytes: those that are there. [`Topic::with_codec`] takes one.
pub mod codec {
    pub use millstream_core::codec::{Json, Raw};
    pub use millstream_core::{BoxError, Codec};
    #[cfg(feature = "messagepack")]
    pub use millstream_payload::MessagePack;
    #[cfg(feature = "protobuf")]
    pub use millstream_payload::Protobuf;
}

/// For the tests of handlers: deliveries that nobody sent.
pub mod test {
    pub use millstream_runtime::test::*;
}

/// Policies of failed messages: what a [`RetryPolicy`] and a [`DeadLetterPolicy`] are asked, and what they answer.
pub mod policy {
    pub use millstream_core::policy::{
        Decision, Failure, FailureKind, GivenUp, MessageRetry, Notes, PerMessage, RETRY_HEADER, Verdict,
    };
}

/// Background work for owned partitions: [`ConsumerBuilder::upkeep`] adds one of your own.
pub mod upkeep {
    pub use millstream_core::leases::Lease;
    pub use millstream_core::upkeep::{RebalanceListener, Sleep, Trigger, Upkeep};
}

/// Assignment of partitions to members: [`ConsumerBuilder::assignor`] sets a strategy of your own.
pub mod assignment {
    pub use millstream_core::MemberId;
    pub use millstream_core::assignment::{Assignment, Assignor, Balanced, Member};
}

/// Partitioners: they choose the partition of a message.
pub mod partitioner {
    pub use millstream_core::partitioner::{ByKey, Consistent, Partitioner, RoundRobin, murmur2};
}
