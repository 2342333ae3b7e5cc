//! The whole state of the backend, behind one lock.

pub(crate) mod dedup_ids;
pub(crate) mod letter_claims;
pub(crate) mod lock;
pub(crate) mod markers;
pub(crate) mod permits;
mod rights;
pub(crate) mod unique_ids;

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::audit::{Loss, Scope};
use millstream_core::leases::{Lease, Token};
use millstream_core::locks::LockRevision;
use millstream_core::name::QueueName;
use millstream_core::packing::DictionaryName;
use millstream_core::schedule::{Place, Shard as ShardName};
use millstream_core::sorted::{SortedMap, SortedSet, sort_by};
use millstream_core::tasks::QueueSpec;
use millstream_core::wire::Fields;
use millstream_core::{
    Error, ErrorKind, GroupName, History, LockName, MessageId, Packing, Resource, Result, Timestamp,
    TopicName, TopicPartition, TopicSpec,
};
use tokio::sync::Notify;

use self::dedup_ids::DedupIds;
use self::letter_claims::LetterClaims;
use self::lock::Lock;
use self::markers::Markers;
use self::permits::PermitTable;
use self::unique_ids::UniqueIds;
use crate::batches::BatchTable;
use crate::clock::Now;
use crate::marks::Marks;
use crate::membership::Membership;
use crate::packs;
use crate::results::Results;

use crate::shard::Shard;
use crate::steps::StepTable;
use crate::stream::{Cursor, Stream};
use crate::timetable::Timetable;

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) topics: SortedMap<TopicName, TopicSpec>,
    /// Dictionaries of topics.
    pub(crate) dictionaries: SortedMap<TopicName, SortedMap<DictionaryName, Bytes>>,
    pub(crate) topic_groups: SortedMap<TopicName, SortedSet<GroupName>>,
    /// Deleted topics, as long as the deletion is remembered.
    pub(crate) deleted_topics: SortedMap<TopicName, DeletedTopic>,
    /// Deleted groups, until the deletion is forgotten.
    pub(crate) deleted_groups: SortedMap<(TopicName, GroupName), Now>,
    /// Groups that are paused as a whole, and the start of the pause.
    pub(crate) paused_groups: SortedMap<(TopicName, GroupName), Timestamp>,
    /// Records of what was lost, by the scope of the audit that found it.
    pub(crate) losses: SortedMap<Scope, Loss>,
    pub(crate) fences: HashMap<Resource, Fence>,
    partitions: HashMap<TopicPartition, Partition>,
    pub(crate) memberships: SortedMap<TopicName, SortedMap<GroupName, Membership>>,
    pub(crate) queues: SortedMap<QueueName, QueueSpec>,
    shards: SortedMap<ShardName, Shard>,
    pub(crate) markers: Markers,
    pub(crate) permits: PermitTable,
    /// Counter of events after which readers start over.
    restarts: u64,
    /// Counter of restarts and fail-overs: each one makes it another server.
    lives: u64,
    /// Counter of task claims.
    pub(crate) tokens: u64,
    pub(crate) locks: HashMap<LockName, Lock>,
    /// The highest epoch of all locks.
    pub(crate) lock_epoch: u64,
    /// Counter of changes of locks.
    pub(crate) lock_revision: u64,
    /// Notified at each of them.
    pub(crate) lock_changes: Arc<Notify>,
}

/// Record of a deleted topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeletedTopic {
    /// Time of the deletion, in milliseconds since 1970.
    pub(crate) at: u64,
    /// Time until which the deletion is remembered.
    pub(crate) until: Now,
}

/// One partition of one topic. It is created at its first use, like a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partition {
    pub(crate) log: Stream,
    pub(crate) groups: HashMap<GroupName, Group>,
    /// Notifies waiting readers and promoters: of new entries, of a lease with a new owner, and of an earlier due time.
    pub(crate) wake: Arc<Notify>,
    /// Messages that were scheduled for all groups.
    pub(crate) timetable: Timetable,
    /// Ids of entries that were appended with a dedup id.
    pub(crate) dedup: DedupIds,
    /// Ids of entries that were appended with a unique id.
    pub(crate) unique: UniqueIds,
    /// Number of times that a message was scheduled that is due before all waiting ones.
    pub(crate) heads: u64,
    /// Results of messages that asked for them.
    pub(crate) results: Results,
    /// Batches whose messages go to this log.
    pub(crate) batches: BatchTable,
    /// Time of the last trim in turn.
    pub(crate) trimmed: Option<Timestamp>,
}

/// State of a group in one partition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// Position of the group in the log; `None` if the group does not exist there (not yet, or destroyed).
    pub(crate) cursor: Option<Cursor>,
    pub(crate) retry: Stream,
    pub(crate) retry_cursor: Cursor,
    /// Restart number: a reader that saw another one starts over.
    pub(crate) restart: u64,
    pub(crate) parked: Parked,
    /// Entries in the form of `wire::dead_letter`.
    pub(crate) dead: Stream,
    /// Claims and imports of the dead letters.
    pub(crate) letter_claims: LetterClaims,
    /// Messages that were cancelled.
    pub(crate) marks: Marks,
    /// What handlers have done of messages.
    pub(crate) steps: StepTable,
}

/// Parked retries: one item per origin, so that a message is parked only once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parked {
    /// Due times, with their origins.
    due: BTreeSet<(Timestamp, MessageId)>,
    items: HashMap<MessageId, (Timestamp, Option<Item>)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) attempt: u32,
    pub(crate) error: String,
    pub(crate) history: History,
    pub(crate) body: Fields,
}

impl Item {
    /// Returns the retry of a message of which only the log is left.
    pub(crate) fn of_log(body: Fields) -> Self {
        Self { attempt: 2, error: String::new(), history: History::default(), body }
    }
}

/// Last grant of a resource. It outlives the lease, so that no epoch is used twice.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    pub(crate) owner: String,
    pub(crate) nonce: String,
    pub(crate) epoch: u64,
    /// Token of the lease; `None` after its release.
    pub(crate) token: Option<Token>,
    /// Epochs of earlier owners that never released the resource; after a release, those that are still to be passed to
    /// the next owner.
    pub(crate) ends: Vec<u64>,
    pub(crate) expires: Now,
    pub(crate) ttl: Duration,
}

impl State {
    /// Fails unless `lease` is the last grant of its resource. An expired lease passes: as long as the resource was not
    /// granted again, no other owner can be harmed.
    pub(crate) fn check(&self, lease: &Lease) -> Result<()> {
        let token = self.fences.get(&lease.resource).and_then(|fence| fence.token.as_ref());
        if token == Some(&lease.token) { Ok(()) } else { Err(lease.fenced()) }
    }

    /// Calls [`check`](Self::check), and returns the partition and group of the lease.
    pub(crate) fn owned<'a>(&'a mut self, lease: &'a Lease) -> Result<(&'a mut Partition, &'a GroupName)> {
        let (topic_partition, group) = lease.partition()?;
        self.check(lease)?;
        Ok((self.partition(topic_partition), group))
    }

    pub(crate) fn topic(&self, name: &TopicName) -> Result<&TopicSpec> {
        let unknown = || Error::new(ErrorKind::NotFound, format!("topic {name} does not exist")).at(name);
        self.topics.get(name).ok_or_else(unknown)
    }

    /// Fails while the deletion of the group is remembered.
    pub(crate) fn not_deleted(&self, topic: &TopicName, group: &GroupName, now: Now) -> Result<()> {
        if self.deleted_groups.get(&(topic.clone(), group.clone())).is_none_or(|until| *until <= now) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Deleted, format!("group {group} of topic {topic} was deleted")).at(topic))
    }

    pub(crate) fn partition(&mut self, topic_partition: &TopicPartition) -> &mut Partition {
        // Looked up first: `entry` would clone the name every time.
        if !self.partitions.contains_key(topic_partition) {
            self.partitions.insert(topic_partition.clone(), Partition::default());
        }
        self.partitions.get_mut(topic_partition).expect("it was just put there")
    }

    /// Returns the group's state in a partition, if it was ever used there.
    pub(crate) fn group(&mut self, tp: &TopicPartition, group: &GroupName) -> Option<&mut Group> {
        self.partitions.get_mut(tp)?.groups.get_mut(group)
    }

    pub(crate) fn membership(&mut self, topic: &TopicName, group: &GroupName) -> &mut Membership {
        self.memberships.get_or_default(topic.clone()).get_or_default(group.clone())
    }

    pub(crate) fn peek_membership(&self, topic: &TopicName, group: &GroupName) -> Option<&Membership> {
        self.memberships.get(topic)?.get(group)
    }

    pub(crate) fn shard(&mut self, name: &ShardName) -> &mut Shard {
        self.shards.get_or_default(name.clone())
    }

    pub(crate) fn results(&mut self, place: &Place) -> &mut Results {
        match place {
            Place::Partition(topic_partition) => &mut self.partition(topic_partition).results,
            Place::Shard(shard) => &mut self.shard(shard).results,
        }
    }

    /// Deletes a queue with all of its shards. Returns whether it existed.
    pub(crate) fn delete_queue(&mut self, name: &QueueName) -> bool {
        self.shards.retain(|shard, _| shard.queue != *name);
        self.queues.remove(name).is_some()
    }

    pub(crate) fn peek_shard(&self, name: &ShardName) -> Option<&Shard> {
        self.shards.get(name)
    }

    /// Returns a shard, created if it is missing, and the counter of claims.
    pub(crate) fn shard_and_tokens(&mut self, name: &ShardName) -> (&mut Shard, &mut u64) {
        (self.shards.get_or_default(name.clone()), &mut self.tokens)
    }

    pub(crate) fn peek_timetable(&self, place: &Place) -> Option<&Timetable> {
        match place {
            Place::Partition(topic_partition) => Some(&self.peek(topic_partition)?.timetable),
            Place::Shard(shard) => Some(&self.peek_shard(shard)?.timetable),
        }
    }

    /// Changes the timetable of a place. If its head is earlier afterwards, those that wait for it are notified.
    pub(crate) fn change<T>(&mut self, place: &Place, change: impl FnOnce(&mut Timetable) -> T) -> T {
        match place {
            Place::Partition(topic_partition) => self.partition(topic_partition).change(change),
            Place::Shard(shard) => self.shard(shard).change(change),
        }
    }

    /// Returns the id of this server: another one after a restart or fail-over.
    pub(crate) fn server(&self) -> String {
        format!("memory-{}", self.lives)
    }

    /// Returns a restart number that no reader has seen.
    pub(crate) fn restart(&mut self) -> u64 {
        self.restarts += 1;
        self.restarts
    }

    /// Replaces this state by an earlier one. All waiting callers look again, and all readers start over. With
    /// `reissue`, the ids of entries that are lost by this are used again.
    pub(crate) fn replace(&mut self, earlier: Self, reissue: bool) {
        let before = std::mem::replace(self, earlier);
        (self.restarts, self.tokens) = (before.restarts, before.tokens);
        self.lives = before.lives + 1;
        (self.lock_revision, self.lock_changes) = (before.lock_revision, before.lock_changes);
        self.lock_changes.notify_waiters();
        (self.permits.revision, self.permits.wake) = (before.permits.revision, before.permits.wake);
        self.permits.wake.notify_waiters();
        let restart = self.restart();
        for group in self.partitions.values_mut().flat_map(|partition| partition.groups.values_mut()) {
            group.restart = restart;
        }
        // In a fixed order, since waiting callers are woken in this order. Partitions that were created since are empty
        // again, but keep their waiters, which must be notified of new entries.
        let mut partitions: Vec<_> = before.partitions.into_iter().collect();
        sort_by(&mut partitions, |(a, _), (b, _)| a.cmp(b));
        for (topic_partition, later) in partitions {
            let partition = self.partition(&topic_partition);
            partition.log.reissue(reissue.then_some(&later.log));
            for (name, group) in &mut partition.groups {
                let later = later.groups.get(name).map(|group| &group.retry);
                group.retry.reissue(later.filter(|_| reissue));
            }
            let mut marks: Vec<_> = partition.groups.iter().map(|(name, it)| (name, &it.marks)).collect();
            sort_by(&mut marks, |(a, _), (b, _)| a.cmp(b));
            marks.into_iter().for_each(|(_, marks)| marks.wake());
            let Partition { wake, heads, .. } = later;
            (partition.wake, partition.heads) = (wake.clone(), heads + 1);
            wake.notify_waiters();
        }
        for (shard, Shard { calls, .. }) in before.shards {
            self.shard(&shard).calls = calls.clone();
            calls.notify_waiters();
        }
        for (topic, groups) in before.memberships {
            for (group, Membership { wake, .. }) in groups {
                self.membership(&topic, &group).wake = wake.clone();
                wake.notify_waiters();
            }
        }
    }

    /// Removes all state of a topic. Waiting callers look again, and find nothing.
    pub(crate) fn forget_topic(&mut self, name: &TopicName) {
        let of_topic = |resource: &Resource| match resource {
            Resource::Partition { topic_partition, .. } => topic_partition.topic == *name,
            #[allow(unreachable_patterns, reason = "resources other than partitions are to come")]
            _ => false,
        };
        self.fences.retain(|resource, _| !of_topic(resource));
        for tp in self.topics.get(name).into_iter().flat_map(TopicSpec::iter) {
            if let Some(partition) = self.partitions.remove(&tp) {
                partition.wake.notify_waiters();
            }
        }
        self.partitions.retain(|topic_partition, _| topic_partition.topic != *name);
        for membership in self.memberships.remove(name).into_iter().flat_map(SortedMap::into_values) {
            membership.wake.notify_waiters();
        }
        self.deleted_groups.retain(|(topic, _), _| topic != name);
        self.paused_groups.retain(|(topic, _), _| topic != name);
        self.losses.retain(|scope, _| match scope {
            Scope::Topic(topic) => topic != name,
            Scope::Partition(tp) | Scope::Group(tp, _) => tp.topic != *name,
            Scope::Queue(_) | Scope::Shard(_) => true,
        });
        self.topic_groups.remove(name);
        self.dictionaries.remove(name);
        self.topics.remove(name);
    }

    /// Removes all state of a group. Returns false if it was on no log, and not registered.
    pub(crate) fn forget_group(&mut self, topic: &TopicSpec, name: &GroupName) -> bool {
        let mut known = self.topic_groups.get_mut(&topic.name).is_some_and(|groups| groups.remove(name));
        for tp in topic.iter() {
            if let Some(partition) = self.partitions.get_mut(&tp) {
                let group = partition.groups.remove(name);
                known |= group.is_some_and(|group| group.cursor.is_some());
                partition.wake.notify_waiters();
            }
            self.fences.remove(&Resource::partition(tp, name.clone()));
        }
        let groups = self.memberships.get_mut(&topic.name);
        if let Some(membership) = groups.and_then(|groups| groups.remove(name)) {
            membership.wake.notify_waiters();
        }
        self.paused_groups.remove(&(topic.name.clone(), name.clone()));
        self.losses.retain(
            |scope, _| !matches!(scope, Scope::Group(tp, group) if tp.topic == topic.name && group == name),
        );
        known
    }

    pub(crate) fn peek(&self, topic_partition: &TopicPartition) -> Option<&Partition> {
        self.partitions.get(topic_partition)
    }
}

impl Partition {
    pub(crate) fn append(&mut self, now: Timestamp, fields: &Fields) -> Result<MessageId> {
        // Redis cannot store such an entry either, and the embedded default must not allow more than Redis.
        if fields.is_empty() {
            return Err(Error::new(ErrorKind::Encode, "an entry needs at least one field"));
        }
        Ok(self.log.append(now, fields.clone()))
    }

    /// Records which of these messages, which were appended at a time, are packs.
    pub(crate) fn pack(&mut self, packing: Option<Packing>, appended: &[Result<MessageId>]) {
        if packing.is_none() {
            return;
        }
        let ids: Vec<_> = appended.iter().flatten().copied().collect();
        let mut rest = &ids[..];
        for (length, is_pack) in packs::portions(packing, ids.len()) {
            let (portion, others) = rest.split_at(length);
            if is_pack {
                self.log.packs.add(portion);
            }
            rest = others;
        }
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut Timetable) -> T) -> T {
        let before = self.timetable.head();
        let done = change(&mut self.timetable);
        if self.timetable.is_ahead_of(before) {
            self.heads += 1;
            self.wake.notify_waiters();
        }
        done
    }

    pub(crate) fn group(&mut self, name: &GroupName) -> &mut Group {
        if !self.groups.contains_key(name) {
            self.groups.insert(name.clone(), Group::default());
        }
        self.groups.get_mut(name).expect("it was just put there")
    }
}

impl Parked {
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    pub(crate) fn park(&mut self, origin: MessageId, due: Timestamp, item: Item) {
        if let Some((before, _)) = self.items.insert(origin, (due, Some(item))) {
            self.due.remove(&(before, origin));
        }
        self.due.insert((due, origin));
    }

    pub(crate) fn contains(&self, origin: MessageId) -> bool {
        self.items.contains_key(&origin)
    }

    /// Returns the first due time.
    pub(crate) fn head(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Removes and returns the head if it is due; without an item if an operator deleted that.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Option<(MessageId, Option<Item>)> {
        self.head().filter(|due| *due <= now)?;
        let (_, origin) = self.due.pop_first()?;
        let (_, item) = self.items.remove(&origin)?;
        Some((origin, item))
    }

    /// Makes a parked message due now, unless it is due already. Returns false if it is not parked.
    pub(crate) fn release(&mut self, origin: MessageId, now: Timestamp) -> bool {
        let Some((due, _)) = self.items.get_mut(&origin) else { return false };
        self.due.remove(&(*due, origin));
        *due = (*due).min(now);
        self.due.insert((*due, origin));
        true
    }

    /// Removes and returns a parked message; without an item if an operator deleted that.
    pub(crate) fn take(&mut self, origin: MessageId) -> Option<Option<Item>> {
        let (due, item) = self.items.remove(&origin)?;
        self.due.remove(&(due, origin));
        Some(item)
    }

    /// Returns up to `limit` parked messages behind a due time and origin.
    pub(crate) fn page(
        &self,
        after: Option<(Timestamp, MessageId)>,
        limit: usize,
    ) -> impl Iterator<Item = (Timestamp, MessageId, Option<&Item>)> {
        let above = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = self.due.range((above, Bound::Unbounded)).take(limit);
        page.map(|(due, origin)| (*due, *origin, self.items.get(origin).and_then(|(_, item)| item.as_ref())))
    }

    /// Removes a parked message whose body is lost. Returns false if it does not exist, or has a body.
    pub(crate) fn take_lost(&mut self, origin: MessageId) -> bool {
        let Some((due, None)) = self.items.get(&origin) else { return false };
        self.due.remove(&(*due, origin));
        self.items.remove(&origin);
        true
    }

    /// Restores the body of a parked message that lost it.
    pub(crate) fn mend(&mut self, origin: MessageId, item: Item) -> bool {
        match self.items.get_mut(&origin) {
            Some((_, body @ None)) => {
                *body = Some(item);
                true
            }
            _ => false,
        }
    }

    /// Drops a parked message except for its id. Returns false if there is none.
    pub(crate) fn lose(&mut self, origin: MessageId) -> bool {
        self.items.get_mut(&origin).and_then(|(_, item)| item.take()).is_some()
    }
}

impl State {
    /// Records a change of a lock, and notifies those that wait for one.
    pub(crate) fn lock_changed(&mut self, name: &LockName, called: Option<String>) {
        self.lock_revision += 1;
        let change = LockRevision(MessageId::new(self.lock_revision, 0));
        if let Some(lock) = self.locks.get_mut(name) {
            (lock.change, lock.called) = (change, called);
        }
        self.lock_changes.notify_waiters();
    }

    pub(crate) fn forget_unused_lock(&mut self, name: &LockName) {
        if self.locks.get(name).is_some_and(Lock::is_unused) {
            self.locks.remove(name);
        }
    }
}
