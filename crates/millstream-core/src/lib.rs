#![doc = include_str!("../README.md")]

// In reading order: the vocabulary, then the wire, then decisions, then the roles.
pub mod error;
pub mod name;

pub mod id;
pub mod topic;

pub mod codec;
pub mod envelope;
pub mod history;
pub mod keys;
pub mod wire;

pub mod assignment;
pub mod outcome;
pub mod partitioner;
pub mod policy;

pub mod audit;
pub mod catalog;
pub mod continuity;
pub mod dead_letters;
pub mod inspect;
pub mod leases;
pub mod log;
pub mod members;
pub mod pages;
pub mod recurring;
pub mod schedule;
pub mod shared;
pub mod tasks;

pub mod backend;
pub mod event;
pub mod health;
pub mod panics;
pub mod suspension;
pub mod trace;
pub mod upkeep;

pub use assignment::Assignor;
pub use audit::Audit;
pub use backend::Backend;
pub use catalog::{Catalog, Start};
pub use codec::Codec;
pub use continuity::Continuity;
pub use dead_letters::{Claim, DeadLetter, DeadLetterAction, DeadLetters, Reason};
pub use envelope::{Envelope, Headers, Limits};
pub use error::{BoxError, Error, ErrorKind, Result};
pub use event::{Event, Observer};
pub use health::{Health, HealthCheck};
pub use history::History;
pub use id::MessageId;
pub use inspect::Inspect;
pub use leases::{Lease, Leases, Resource};
pub use log::{Appender, Log, Reader, Settlement};
pub use members::Members;
pub use name::{GroupName, MemberId, Namespace, QueueName, TopicName};
pub use outcome::{IntoOutcome, Outcome};
pub use partitioner::Partitioner;
pub use policy::{DeadLetterPolicy, RetryPolicy};
pub use recurring::Recurring;
pub use schedule::{Due, OnConflict, Place, Schedule, ScheduleId, Shard};
pub use shared::{Shared, SharedMember, SharedReader};
pub use tasks::{QueueSpec, Tasks};
pub use topic::{Partition, Retention, Topic, TopicChange, TopicPartition, TopicSpec};
pub use trace::TraceContext;
pub use upkeep::Upkeep;
