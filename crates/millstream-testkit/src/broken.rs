//! Backends with one classic mistake each: what the suite is there to find.
//!
//! A suite that nothing fails proves nothing. [`Broken`] stands around a good backend and spoils one thing.
//! The test `every_case_can_fail` runs every case against every [`Mutant`].

mod audit;
mod catalog;
mod dead_letters;
mod inspect;
mod leases;
mod log;
mod members;
mod mutant;
mod notes;
mod reader;
mod recurring;
mod schedule;
mod shared;
mod tasks;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use mutant::Mutant;

use millstream_core::leases::{Lease, Token};
use millstream_core::log::{Entry, Note, Receipt};
use millstream_core::members::{Assignment, HeartbeatReply, Member};
use millstream_core::wire::Fields;
use millstream_core::{
    Backend, DeadLetter, GroupName, MemberId, MessageId, Resource, TopicName, TopicPartition,
};
use tokio::time::Instant;

/// A backend with one mistake.
#[derive(Clone)]
pub struct Broken {
    inner: Backend,
    sabotage: Mutant,
    memo: Arc<Mutex<Memo>>,
}

/// What a mistake has to remember.
#[derive(Default)]
struct Memo {
    /// Counts whatever is counted.
    count: u64,
    /// What was appended: for those who drop or repeat it.
    appended: HashMap<TopicPartition, Vec<(MessageId, Fields)>>,
    /// The last grant: for those who do not look at the token.
    granted: HashMap<Resource, Lease>,
    /// Leases that were released here and not there.
    released: HashSet<Resource>,
    /// Who was handed an entry first.
    taken: HashMap<(TopicPartition, MessageId), GroupName>,
    /// Entries up to here are trimmed.
    trimmed: HashMap<TopicPartition, MessageId>,
    /// Where a group starts again, at its next fetch.
    rewound: HashMap<(TopicPartition, GroupName), MessageId>,
    /// What was promoted once.
    promoted: HashMap<(TopicPartition, GroupName), HashSet<Receipt>>,
    /// Groups that were created or have dead letters.
    groups: HashSet<(TopicPartition, GroupName)>,
    /// Dead letters that were replayed and are still shown.
    replayed: Vec<DeadLetter>,
    /// Who noted what, last or first.
    notes: HashMap<(TopicPartition, GroupName, Receipt), (Token, Note)>,
    /// What a seek left pending.
    left: HashMap<(TopicPartition, GroupName), Vec<Entry>>,
    /// Groups whose retries are not shown any more.
    without_retries: HashSet<(TopicPartition, GroupName)>,
    /// Groups of topics that were deleted, which come back.
    haunted: HashMap<TopicName, Vec<GroupName>>,
    /// Names of topics, and of topics with groups, that were ever deleted.
    deleted: HashSet<String>,
    /// Groups that were ever paused.
    paused: HashSet<(TopicName, GroupName)>,
    /// Groups that are not on a new partition.
    missing: HashSet<(TopicPartition, GroupName)>,
    /// The first heartbeat of each member that did not leave.
    members: HashMap<(TopicName, GroupName, MemberId), (Member, Instant)>,
    /// The first answer in each group.
    pulses: HashMap<(TopicName, GroupName), HeartbeatReply>,
    /// What was published last.
    published: HashMap<(TopicName, GroupName), Assignment>,
    schedule: schedule::Memo,
    tasks: tasks::Memo,
}

impl Broken {
    /// `backend` with this mistake. It has to see everything that is done to the backend.
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

    /// The lease of whoever holds the resource, if this is what is broken; else `lease`.
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
        let local = broken.inner.local;
        Self { local, ..Self::new(broken) }
    }
}
