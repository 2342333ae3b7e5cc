#![doc = include_str!("../README.md")]

// In reading order: names, the message, decisions, the roles.
pub mod error;
pub mod id;
pub mod keys;
pub mod name;
mod partition;
pub mod timestamp;
pub mod topic;

mod message;
pub mod outcome;
pub mod partitioner;
pub mod policy;

mod decisions;

mod roles;

pub mod backend;
pub mod capability;
mod observe;
pub mod panics;
// For the crates of this workspace.
#[doc(hidden)]
pub mod sorted;
#[cfg(test)]
mod tests;
pub mod upkeep;
mod user_code;

pub use decisions::{
    assignment, continuity, error_groups, fingerprint, limits, pages, rates, retention, running, suspension,
};
pub use message::{codec, dedup, delivered, envelope, history, progress, results, trace, wire};
pub use observe::{event, health, span};
pub use roles::{
    audit, batches, cancels, catalog, dead_letters, idempotency, inspect, leases, locks, log, members,
    permits, recurring, schedule, shared, steps, tasks,
};

pub use assignment::Assignor;
pub use audit::Audit;
pub use backend::Backend;
pub use batches::{BatchEvent, BatchEventKind, BatchId, BatchMember, Batches, MemberEnd};
pub use cancels::{CancelMark, Cancels, WorkPlace};
pub use capability::{Capabilities, Capability};
pub use catalog::{Catalog, Start};
pub use codec::Codec;
pub use continuity::Continuity;
pub use dead_letters::{Claim, DeadLetter, DeadLetterAction, DeadLetterRetention, DeadLetters, Reason};
pub use delivered::Delivered;
pub use envelope::{Envelope, Headers, Limits};
pub use error::{BoxError, Error, ErrorKind, Result};
pub use error_groups::{ErrorGroup, ErrorGroups, ErrorTimes};
pub use event::{Event, Observer};
pub use fingerprint::Fingerprint;
pub use health::{Health, HealthCheck};
pub use history::History;
pub use id::MessageId;
pub use idempotency::Idempotency;
pub use inspect::Inspect;
pub use leases::{Lease, Leases, Resource};
pub use limits::{LimitBound, LimitKey, LimitPattern, LimitRules};
pub use locks::Locks;
pub use log::{Appender, Log, Reader, Settlement};
pub use members::Members;
pub use message::durability::Durability;
pub use name::{GroupName, LimitName, LockName, MemberId, Namespace, QueueName, TopicName};
pub use outcome::{BatchOutcome, Check, Converted, IntoBatchOutcome, IntoCheck, IntoOutcome, Outcome};
pub use packing::{PackCompression, Packing};
pub use partitioner::Partitioner;
pub use permits::Permits;
pub use policy::{DeadLetterPolicy, RetryPolicy};
pub use progress::ProgressLine;
pub use rates::Rate;
pub use recurring::Recurring;
pub use results::{MessageResult, Reply, ResultId};
pub use schedule::{Due, OnConflict, Place, Schedule, ScheduleId, Shard};
pub use shared::{Shared, SharedMember, SharedReader};
pub use steps::{Signalled, Steps, WorkId};
pub use tasks::{QueueChange, QueueSpec, Tasks};
pub use timestamp::Timestamp;
pub use topic::packing;
pub use topic::{Partition, Retention, Topic, TopicChange, TopicPartition, TopicSpec};
pub use trace::TraceContext;
pub use upkeep::{RebalanceListener, Upkeep};
