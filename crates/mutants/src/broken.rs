//! A backend with one mistake: a file for each role, and the state that mistakes need.

mod batches;
mod catalog;
mod dead_letters;
mod idempotency;
mod leases;
mod locks;
mod log;
mod looking;
mod members;
mod notes;
mod permits;
mod reader;
mod recurring;
mod schedule;
mod shared;
mod steps;
mod tasks;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::idempotency::{Marker, Operation};
use millstream_core::leases::{Lease, Token};
use millstream_core::log::{Entry, Note, Receipt};
use millstream_core::members::{Assignment, HeartbeatReply, Member};
use millstream_core::packing::DictionaryName;
use millstream_core::progress::ProgressLine;
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::wire::Fields;
use millstream_core::{
    Backend, Capability, DeadLetter, GroupName, MemberId, MessageId, Resource, Result, TopicName,
    TopicPartition,
};
use tokio::time::Instant;

use crate::mutant::Mutant;

/// A backend with one mistake.
#[derive(Clone)]
pub struct Broken {
    inner: Backend,
    sabotage: Mutant,
    memo: Arc<Mutex<Memo>>,
}

/// State that mistakes need.
#[derive(Default)]
struct Memo {
    /// A counter, shared by all mistakes that count.
    count: u64,
    /// Appended entries, for mistakes that drop or repeat them.
    appended: HashMap<TopicPartition, Vec<(MessageId, Fields)>>,
    /// The last grant of each resource, for mistakes that ignore the token.
    granted: HashMap<Resource, Lease>,
    /// Marks that were forgotten, although they are answered.
    forgotten: HashSet<String>,
    /// Leases that were released here and not in the backend.
    released: HashSet<Resource>,
    /// The first group that received each entry.
    taken: HashMap<(TopicPartition, MessageId), GroupName>,
    /// The id up to which entries are trimmed.
    trimmed: HashMap<TopicPartition, MessageId>,
    /// Partitions of which a client had the turn to trim.
    turns: HashSet<TopicPartition>,
    /// The position at which a group starts again with its next fetch.
    rewound: HashMap<(TopicPartition, GroupName), MessageId>,
    /// Entries that were promoted once.
    promoted: HashMap<(TopicPartition, GroupName), HashSet<Receipt>>,
    /// Groups that were created or have dead letters.
    groups: HashSet<(TopicPartition, GroupName)>,
    /// Dead letters that were replayed and are still listed.
    replayed: Vec<DeadLetter>,
    /// The last or first note of each entry, with the token of its author.
    notes: HashMap<(TopicPartition, GroupName, Receipt), (Token, Note)>,
    /// Entries that a seek left pending.
    left: HashMap<(TopicPartition, GroupName), Vec<Entry>>,
    /// Groups whose retries are no longer listed.
    without_retries: HashSet<(TopicPartition, GroupName)>,
    /// Groups of deleted topics, which reappear.
    haunted: HashMap<TopicName, Vec<GroupName>>,
    /// Names of topics, and of topics with groups, that were ever deleted.
    deleted: HashSet<String>,
    /// Topic and name of the dictionary that was stored last.
    dictionary: Option<(TopicName, DictionaryName)>,
    /// Groups that were ever paused.
    paused: HashSet<(TopicName, GroupName)>,
    /// Groups that are missing on a new partition.
    missing: HashSet<(TopicPartition, GroupName)>,
    /// The first heartbeat of each member that did not leave.
    members: HashMap<(TopicName, GroupName, MemberId), (Member, Instant)>,
    /// The first reply in each group.
    pulses: HashMap<(TopicName, GroupName), HeartbeatReply>,
    /// The last published assignment.
    published: HashMap<(TopicName, GroupName), Assignment>,
    batches: batches::BatchMemo,
    locks: locks::LockMemo,
    permits: permits::PermitMemo,
    steps: steps::StepMemo,
    schedule: schedule::ScheduleMemo,
    tasks: tasks::TaskMemo,
    message_results: HashMap<ResultId, MessageResult>,
    /// Lines of progress by the number of the request.
    progress: HashMap<u128, Vec<ProgressLine>>,
    /// The last marker of each operation.
    markers: HashMap<Operation, Marker>,
    /// The result of the last completion of each operation.
    results: HashMap<Operation, Vec<u8>>,
}

impl Mutant {
    /// Returns the operations that are claimed and answer that they are unsupported.
    #[must_use]
    pub fn unsupported(self) -> Option<Capability> {
        Some(match self {
            Self::SeekUnsupported => Capability::Seek,
            Self::LengthsUnsupported => Capability::Lengths,
            Self::DedupUnsupported => Capability::Dedup,
            Self::UniqueUnsupported => Capability::Unique,
            Self::ResultsUnsupported => Capability::Results,
            Self::UnleasedTrimUnsupported => Capability::UnleasedTrim,
            Self::DurabilityUnsupported => Capability::Durability,
            Self::TrimDeadLettersUnsupported => Capability::TrimDeadLetters,
            Self::TrimDeadTasksUnsupported => Capability::TrimDeadTasks,
            Self::PauseQueueUnsupported => Capability::PauseQueue,
            Self::DeleteQueueUnsupported => Capability::DeleteQueue,
            Self::FindTasksUnsupported => Capability::FindTasks,
            Self::RescheduleUnsupported => Capability::Reschedule,
            Self::ListScheduledUnsupported => Capability::ListScheduled,
            Self::PromoteDelayedUnsupported => Capability::PromoteDelayed,
            Self::SettleRetriesUnsupported => Capability::SettleRetries,
            Self::RestoreUnsupported => Capability::Restore,
            Self::ExpandUnsupported => Capability::Expand,
            Self::AlterTopicUnsupported => Capability::AlterTopic,
            Self::DictionariesUnsupported => Capability::Dictionaries,
            Self::CountUnsupported => Capability::Count,
            Self::PauseUnsupported => Capability::Pause,
            Self::StatsUnsupported => Capability::Stats,
            Self::PinsUnsupported => Capability::Pins,
            Self::ShardsUnsupported => Capability::Tasks,
            _ => return None,
        })
    }
}

impl Broken {
    /// Wraps `backend` with this mistake. It has to see every call to the backend.
    #[must_use]
    pub fn new(backend: impl Into<Backend>, sabotage: Mutant) -> Self {
        Self { inner: backend.into(), sabotage, memo: Arc::default() }
    }

    fn memo(&self) -> MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, sabotage: Mutant) -> bool {
        self.sabotage == sabotage
    }

    /// Fails if this mistake makes these operations unsupported.
    fn supports(&self, capability: Capability) -> Result<()> {
        if self.sabotage.unsupported() == Some(capability) { Err(capability.missing()) } else { Ok(()) }
    }

    /// Returns the lease of the current holder of the resource if this mistake is active; otherwise `lease`.
    fn unfenced(&self, sabotage: Mutant, lease: &Lease) -> Lease {
        let granted = self.is(sabotage).then(|| self.memo().granted.get(&lease.resource).cloned()).flatten();
        granted.unwrap_or_else(|| lease.clone())
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Broken").field(&self.sabotage).finish()
    }
}

impl From<Broken> for Backend {
    fn from(broken: Broken) -> Self {
        broken.inner.clone().wrapped(broken)
    }
}
