//! Keys of the store: the only place where they are built.
//!
//! All keys that must change together share the hash tag of their partition, `{topic:p:partition}`, and so a slot: a
//! topic is spread over a cluster, and a script never leaves its node. The page of keys of the book is made from the comments here.

mod tags;

use std::fmt;
use std::sync::Arc;

use crate::batches::{BatchId, MemberState};
use crate::cancels::WorkPlace;
use crate::idempotency::Operation;
use crate::name::{GroupName, LockName, Namespace, QueueName, TopicName};
use crate::permits::PermitHolder;
use crate::results::ResultId;
use crate::schedule::{Place, Shard};
use crate::topic::{Partition, TopicPartition};
use tags::{Escaped, LockTag, PlaceTag, ShardTag, Tag, lock_shard};

pub use tags::LOCK_SHARDS;

/// Key of the store. Only [`Keys`] creates one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Returns the key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Builds all keys of one namespace.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Creates keys without a namespace.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates keys that start with `namespace:`.
    #[must_use]
    pub fn within(namespace: &Namespace) -> Self {
        Self { prefix: format!("{namespace}:") }
    }

    fn key(&self, rest: fmt::Arguments<'_>) -> Key {
        Key(format!("{}{rest}", self.prefix).into())
    }

    /// Stream: the log of a partition, with the messages for all groups.
    #[must_use]
    pub fn log(&self, tp: &TopicPartition) -> Key {
        self.key(format_args!("stream:topic:{}", Tag(tp)))
    }

    /// Hash with a ttl: ids of entries that were appended with a dedup id, by the short form of that id; under the
    /// empty name `begin window` in milliseconds.
    #[must_use]
    pub fn dedup(&self, tp: &TopicPartition) -> Key {
        self.key(format_args!("streaming:mq:dedup:{}", Tag(tp)))
    }

    /// Hash with a ttl: the same for entries that were appended before the `begin` of [`dedup`](Self::dedup).
    #[must_use]
    pub fn dedup_old(&self, tp: &TopicPartition) -> Key {
        self.key(format_args!("streaming:mq:dedup:old:{}", Tag(tp)))
    }

    /// Stream: under the id of each pack in the log `count`, the number of its messages, and `more`, how many messages
    /// more than entries this pack and all before it hold.
    #[must_use]
    pub fn packs(&self, tp: &TopicPartition) -> Key {
        self.key(format_args!("streaming:mq:packs:{}", Tag(tp)))
    }

    /// String with a ttl: exists for a second after a client without a lease had its turn to trim the log.
    #[must_use]
    pub fn trimmed(&self, tp: &TopicPartition) -> Key {
        self.key(format_args!("streaming:mq:trimmed:{}", Tag(tp)))
    }

    /// Hash: a bit for each settled message of a group's pending packs, by the ids of the packs.
    #[must_use]
    pub fn settled(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:settled:{}:{group}", Tag(tp)))
    }

    /// Hash: `id send` of the newest entry with a unique id, by that id; under the empty name `size at` of the last
    /// cleaning.
    #[must_use]
    pub fn unique(&self, tp: &TopicPartition) -> Key {
        self.key(format_args!("streaming:mq:unique:{}", Tag(tp)))
    }

    /// Hash: ids of a group's redeliveries of such entries, by their origin.
    #[must_use]
    pub fn unique_retry(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:unique:retry:{}:{group}", Tag(tp)))
    }

    /// String with a ttl: `count first last` of the entries that a producer appended in one transaction (their number,
    /// the ids of the first and the last one), by the number of the first one.
    #[must_use]
    pub fn numbered(&self, tp: &TopicPartition, producer: u128, number: u64) -> Key {
        self.key(format_args!("streaming:mq:numbered:{}:{producer:032x}-{number}", Tag(tp)))
    }

    /// String with a ttl: what became of the message or task that asked for its result under this number.
    #[must_use]
    pub fn result(&self, id: &ResultId) -> Key {
        self.key(format_args!("streaming:mq:result:{}:{:032x}", PlaceTag(&id.place), id.number))
    }

    /// Hash with a ttl: what the handler says of the message or task that asked for its result under this number:
    /// `changes`, `lines`, `done`, `line:0` to `line:99`.
    #[must_use]
    pub fn progress(&self, id: &ResultId) -> Key {
        self.key(format_args!("streaming:mq:progress:{}:{:032x}", PlaceTag(&id.place), id.number))
    }

    /// Stream: notes on members of batches that ended at a place, and `step` for batches that are complete; each until
    /// whoever it concerns has it.
    #[must_use]
    pub fn batch_notes(&self, place: &Place) -> Key {
        self.key(format_args!("streaming:mq:batch:notes:{}", PlaceTag(place)))
    }

    /// Sorted set: the batches of a partition, by the time in milliseconds at which they expire.
    #[must_use]
    pub fn batches(&self, tp: &TopicPartition) -> Key {
        self.key(format_args!("streaming:mq:batches:{}", Tag(tp)))
    }

    /// Hash with a ttl: counts and settings of a batch; `block:<from>`, the numbers that clients have reserved;
    /// `on:<event>`, its messages.
    #[must_use]
    pub fn batch(&self, id: &BatchId) -> Key {
        self.key(format_args!("streaming:mq:batch:{}:{:032x}", Tag(&id.place), id.number))
    }

    /// String with a ttl: a bit for each number of a batch in this state (`done`, `dead` or `left`).
    #[must_use]
    pub fn batch_bits(&self, id: &BatchId, state: MemberState) -> Key {
        self.key(format_args!("streaming:mq:batch:{}:{}:{:032x}", state.as_str(), Tag(&id.place), id.number))
    }

    /// Hash with a ttl: results of members that a batch keeps, by number.
    #[must_use]
    pub fn batch_results(&self, id: &BatchId) -> Key {
        self.key(format_args!("streaming:mq:batch:results:{}:{:032x}", Tag(&id.place), id.number))
    }

    /// Stream: a group's retry log, with the entries that are delivered to it again.
    #[must_use]
    pub fn retry_log(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("stream:topic:{}:retry:{group}", Tag(tp)))
    }

    /// Stream: a group's dead letters.
    #[must_use]
    pub fn dead_letters(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("stream:topic:{}:dlq:{group}", Tag(tp)))
    }

    /// Hash with a ttl: `until hold by` of the claims on a group's dead letters, by id of the letter. The ttl is the
    /// longest of all claims.
    #[must_use]
    pub fn dead_claims(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:dlq:claim:{}:{group}", Tag(tp)))
    }

    /// Hash with a ttl: new ids of dead letters that were put back, by the ids they had; for 7 days.
    #[must_use]
    pub fn dead_imports(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:dlq:import:{}:{group}", Tag(tp)))
    }

    /// String with a ttl: the token while the lease lives.
    #[must_use]
    pub fn lease(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:lease:{}:{group}", Tag(tp)))
    }

    /// Hash without a ttl: `owner`, `token`, `epoch`, `ttl` and `ends` of the last grant; `reader`, the word of the
    /// last reader. It must never be deleted while the group exists.
    #[must_use]
    pub fn fence(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:fence:{}:{group}", Tag(tp)))
    }

    /// Stream without entries: exists, with the group, while the reader with this word may read. Each read must name it.
    #[must_use]
    pub fn gate(&self, tp: &TopicPartition, group: &GroupName, reader: &str) -> Key {
        self.key(format_args!("streaming:mq:gate:{}:{group}:{reader}", Tag(tp)))
    }

    /// Sorted set: parked retries of a group, origin by due time in milliseconds.
    #[must_use]
    pub fn retry_due(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:retry:{}:{group}", Tag(tp)))
    }

    /// Hash: attempt, error, history and body of parked retries, by origin.
    #[must_use]
    pub fn retry_items(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:retry:item:{}:{group}", Tag(tp)))
    }

    /// Sorted set: scheduled messages, or tasks, that wait at a place, id by due time in milliseconds.
    #[must_use]
    pub fn delay(&self, place: &Place) -> Key {
        self.key(format_args!("streaming:mq:delay:{}", PlaceTag(place)))
    }

    /// Hash: bodies of scheduled messages, or of tasks that wait or are worked on, by id.
    #[must_use]
    pub fn delay_items(&self, place: &Place) -> Key {
        self.key(format_args!("streaming:mq:delay:item:{}", PlaceTag(place)))
    }

    /// Sorted set: recurring rules of a place, id by next due time in milliseconds. Paused rules and those that are
    /// over are missing.
    #[must_use]
    pub fn recur(&self, place: &Place) -> Key {
        self.key(format_args!("streaming:mq:recur:{}", PlaceTag(place)))
    }

    /// Hash: rule, pause, next time and body of recurring rules, by id.
    #[must_use]
    pub fn recur_items(&self, place: &Place) -> Key {
        self.key(format_args!("streaming:mq:recur:item:{}", PlaceTag(place)))
    }

    /// Stream of one entry (at a partition) or list of at most one element (at a shard): at a partition the newest head
    /// of its schedule, or of released retries, which wakes all waiting clients; at a shard a call, which wakes one
    /// waiting worker.
    #[must_use]
    pub fn wake(&self, place: &Place) -> Key {
        self.key(format_args!("streaming:mq:wake:{}", PlaceTag(place)))
    }

    /// Sorted set: tasks that are worked on, id by the time in milliseconds at which their claim expires.
    #[must_use]
    pub fn claims(&self, shard: &Shard) -> Key {
        self.key(format_args!("streaming:mq:claim:{}", ShardTag(shard)))
    }

    /// Hash: state of tasks that were ever claimed, by id: `due attempt crashes begun hold token error`, a line break,
    /// the history.
    #[must_use]
    pub fn task_states(&self, shard: &Shard) -> Key {
        self.key(format_args!("streaming:mq:claim:state:{}", ShardTag(shard)))
    }

    /// Sorted set with a ttl: completed tasks whose ids stay in use, id by the time in milliseconds at which it is
    /// free.
    #[must_use]
    pub fn finished(&self, shard: &Shard) -> Key {
        self.key(format_args!("streaming:mq:finished:{}", ShardTag(shard)))
    }

    /// Hash: who watches the next due task (`worker`, `at`, `until`, `steady`; `deputy`, `visit`, `backs`; `asked`,
    /// `caller`); `paused`: since when the shard is paused, in milliseconds.
    #[must_use]
    pub fn watcher(&self, shard: &Shard) -> Key {
        self.key(format_args!("streaming:mq:watcher:{}", ShardTag(shard)))
    }

    /// Stream: the dead tasks of a shard.
    #[must_use]
    pub fn dead_tasks(&self, shard: &Shard) -> Key {
        self.key(format_args!("stream:queue:{}:dlq", ShardTag(shard)))
    }

    /// Set: the names of all delay queues.
    #[must_use]
    pub fn queues(&self) -> Key {
        self.key(format_args!("streaming:mq:queues:registry"))
    }

    /// Hash: a delay queue's `shards`, `format` and `deadLetterRetention`; `lost:<shard>`: losses that were found.
    #[must_use]
    pub fn queue_meta(&self, queue: &QueueName) -> Key {
        self.key(format_args!("streaming:mq:queue:{{{queue}}}:meta"))
    }

    /// String with a ttl: the marker of an operation, `r ttl token holder` while it runs and `d token result` once it
    /// is done. Its tag is its own, so that markers spread over all slots.
    #[must_use]
    pub fn marker(&self, operation: &Operation) -> Key {
        let (topic, group) = (operation.topic(), operation.group());
        self.key(format_args!("streaming:mq:marker:{{{topic}:m:{group}:{}}}", Escaped(operation.id())))
    }

    /// Hash with a ttl: `owner`, `token`, `epoch`, `ttl` and expiry (`till`) of the grant of a lock, until a day after
    /// its ttl.
    #[must_use]
    pub fn lock(&self, name: &LockName) -> Key {
        self.key(format_args!("streaming:mq:lock:{}:{name}", LockTag(name)))
    }

    /// Sorted set with a ttl: who waits for a lock, nonce by arrival in microseconds.
    #[must_use]
    pub fn lock_queue(&self, name: &LockName) -> Key {
        self.key(format_args!("streaming:mq:lock:queue:{}:{name}", LockTag(name)))
    }

    /// Sorted set with a ttl: the same nonces, by the time in milliseconds at which their place in the queue ends.
    #[must_use]
    pub fn lock_places(&self, name: &LockName) -> Key {
        self.key(format_args!("streaming:mq:lock:places:{}:{name}", LockTag(name)))
    }

    /// Stream of one entry with a ttl: the newest change of a lock, `next` (the nonce that is called) or `epoch` of an
    /// announced grant; wakes clients that wait for one.
    #[must_use]
    pub fn lock_changes(&self, name: &LockName) -> Key {
        self.key(format_args!("streaming:mq:lock:changes:{}:{name}", LockTag(name)))
    }

    /// String without a ttl: the highest epoch of all locks of a shard.
    #[must_use]
    pub fn lock_epoch(&self, name: &LockName) -> Key {
        self.key(format_args!("streaming:mq:lock:epoch:{}", LockTag(name)))
    }

    /// Sorted set without a ttl: the names of the locks of a shard that are held or waited for, by the time in
    /// milliseconds at which their record ends.
    #[must_use]
    pub fn lock_index(&self, name: &LockName) -> Key {
        self.lock_index_of(lock_shard(name))
    }

    /// Sorted set without a ttl: same as [`lock_index`](Self::lock_index), by the number of the shard: the names of
    /// locks that are held or waited for, by the time in milliseconds at which their record ends.
    #[must_use]
    pub fn lock_index_of(&self, shard: u64) -> Key {
        self.key(format_args!("streaming:mq:lock:index:{{lock:s:{shard}}}"))
    }

    /// Returns the pattern of all keys of locks, for rules that limit what a user may touch.
    #[must_use]
    pub fn patterns_of_locks(&self) -> Vec<Key> {
        vec![self.key(format_args!("streaming:mq:lock:*"))]
    }

    /// Hash: what operators allow of limits, by the patterns of their keys; `:version` of these rules.
    #[must_use]
    pub fn limit_rules(&self) -> Key {
        self.key(format_args!("streaming:mq:permit:rules:{{permit:s}}"))
    }

    /// Hash: the units of limits in use and who waits for more, by limit and key.
    #[must_use]
    pub fn permits(&self) -> Key {
        self.key(format_args!("streaming:mq:permit:units:{{permit:s}}"))
    }

    /// Hash: how far the tokens of rates are reserved, by limit and key.
    #[must_use]
    pub fn rates(&self) -> Key {
        self.key(format_args!("streaming:mq:permit:rates:{{permit:s}}"))
    }

    /// Hash: `since until reason` of the breakers that are not closed, by limit and key.
    #[must_use]
    pub fn breakers(&self) -> Key {
        self.key(format_args!("streaming:mq:permit:breakers:{{permit:s}}"))
    }

    /// Hash: `till ttl number` of each holder of permits: expiry and ttl in milliseconds, number of its last exchange.
    #[must_use]
    pub fn permit_holders(&self) -> Key {
        self.key(format_args!("streaming:mq:permit:holders:{{permit:s}}"))
    }

    /// Set: holders that were ended and still have something.
    #[must_use]
    pub fn permit_ended(&self) -> Key {
        self.key(format_args!("streaming:mq:permit:ended:{{permit:s}}"))
    }

    /// Set: limits and keys of which a holder has units, or for which it waits.
    #[must_use]
    pub fn permits_of(&self, holder: &PermitHolder) -> Key {
        self.key(format_args!("streaming:mq:permit:of:{{permit:s}}:{holder}"))
    }

    /// Stream: what holders of permits have to know, each entry for one of them or for all; about 10,000 entries.
    #[must_use]
    pub fn permit_calls(&self) -> Key {
        self.key(format_args!("streaming:mq:permit:calls:{{permit:s}}"))
    }

    /// Returns the pattern of all keys of limits, for rules that limit what a user may touch.
    #[must_use]
    pub fn patterns_of_permits(&self) -> Vec<Key> {
        vec![self.key(format_args!("streaming:mq:permit:*"))]
    }

    /// Hash: notes on a group's pending entries, by `log:<id>` or `retry:<id>`.
    #[must_use]
    pub fn held(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:held:{}:{group}", Tag(tp)))
    }

    /// Hash: marks of cancelled messages of a group, or of tasks, as `mark:<id>`; of cancelled batches as `batch:<id>`;
    /// `changes`, the number of marks so far; `shared`.
    #[must_use]
    pub fn cancels(&self, place: &WorkPlace) -> Key {
        match place {
            WorkPlace::Group(tp, group) => self.key(format_args!("streaming:mq:cancels:{}:{group}", Tag(tp))),
            WorkPlace::Shard(shard) => self.key(format_args!("streaming:mq:cancels:{}", ShardTag(shard))),
        }
    }

    /// Hash: the steps of a group's messages, by id of their entry in the log, or of tasks, by id.
    #[must_use]
    pub fn steps(&self, place: &WorkPlace) -> Key {
        match place {
            WorkPlace::Group(tp, group) => self.key(format_args!("streaming:mq:steps:{}:{group}", Tag(tp))),
            WorkPlace::Shard(shard) => self.key(format_args!("streaming:mq:steps:{}", ShardTag(shard))),
        }
    }

    /// Sorted set: the members of a group, by the time in milliseconds at which their heartbeat expires.
    #[must_use]
    pub fn members(&self, topic: &TopicName, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:members:{{{topic}}}:{group}"))
    }

    /// Hash: what each member has sent, by id; `:version` and `:partitions` of the membership.
    #[must_use]
    pub fn member(&self, topic: &TopicName, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:member:{{{topic}}}:{group}"))
    }

    /// Hash: the partitions of each member, by id; `:version` of the membership that they were computed for.
    #[must_use]
    pub fn assignment(&self, topic: &TopicName, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:assignment:{{{topic}}}:{group}"))
    }

    /// Stream of one entry: the newest change of a group's members or assignment; wakes clients that wait for one.
    #[must_use]
    pub fn changes(&self, topic: &TopicName, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:changes:{{{topic}}}:{group}"))
    }

    /// Returns the partition of `topic` that a log belongs to, by its key; `None` if it is none of the topic's.
    #[must_use]
    pub fn partition_of(&self, topic: &TopicName, log: &str) -> Option<Partition> {
        // The log keys of a topic differ in the number only: this one without `0}` is their common prefix.
        let first = self.log(&TopicPartition::new(topic.clone(), 0));
        let number = log.strip_prefix(first.as_str().strip_suffix("0}")?)?.strip_suffix('}')?;
        let partition = Partition(number.parse().ok()?);
        // Accepts only the canonical form, not `007`.
        (partition.to_string() == number).then_some(partition)
    }

    /// Returns patterns of all keys of a topic, for rules that limit what a user may touch. Names contain no character
    /// that has a meaning in a pattern, and a key has one hash tag: no other topic has a key that matches, nor has a delay
    /// queue, which may have the same name.
    #[must_use]
    pub fn patterns_of(&self, topic: &TopicName) -> Vec<Key> {
        let whole = ["topic", "group", "members", "member", "assignment", "changes"];
        let whole = whole.map(|family| self.key(format_args!("streaming:mq:{family}:{{{topic}}}:*")));
        let mut patterns = vec![
            self.key(format_args!("stream:topic:{{{topic}:p:*")),
            self.key(format_args!("streaming:mq:*{{{topic}:p:*")),
            self.key(format_args!("streaming:mq:marker:{{{topic}:m:*}}")),
            self.topics(),
        ];
        patterns.extend(whole);
        patterns
    }

    /// Returns the patterns of the settings of all topics, and of all delay queues. The name is between the braces of a key.
    #[must_use]
    pub fn patterns_of_settings(&self) -> [Key; 2] {
        ["topic", "queue"].map(|of| self.key(format_args!("streaming:mq:{of}:{{*}}:meta")))
    }

    /// Returns patterns of the keys of a topic that sending needs: the logs, what is scheduled, and the settings.
    #[must_use]
    pub fn patterns_to_send(&self, topic: &TopicName) -> Vec<Key> {
        let families = ["dedup", "dedup:old", "delay", "delay:item", "recur", "recur:item", "wake"];
        let schedule = families.map(|family| self.key(format_args!("streaming:mq:{family}:{{{topic}:p:*}}")));
        let mut patterns = vec![
            self.key(format_args!("stream:topic:{{{topic}:p:*}}")),
            self.key(format_args!("streaming:mq:numbered:{{{topic}:p:*}}:*")),
            self.key(format_args!("streaming:mq:result:{{{topic}:p:*}}:*")),
            self.key(format_args!("streaming:mq:progress:{{{topic}:p:*}}:*")),
            self.key(format_args!("streaming:mq:batch*:{{{topic}:p:*}}*")),
        ];
        patterns.extend(schedule);
        patterns.push(self.key(format_args!("streaming:mq:topic:{{{topic}}}:*")));
        patterns.push(self.topics());
        patterns
    }

    /// Returns patterns of the keys of a topic that sending with unique ids or packed messages needs beside those
    /// [to send](Self::patterns_to_send): records of ids, the retries of all groups, and packs; and those that a producer needs to
    /// trim.
    #[must_use]
    pub fn patterns_to_send_unique(&self, topic: &TopicName) -> Vec<Key> {
        vec![
            self.key(format_args!("streaming:mq:packs:{{{topic}:p:*}}")),
            self.key(format_args!("streaming:mq:settled:{{{topic}:p:*}}:*")),
            self.key(format_args!("streaming:mq:trimmed:{{{topic}:p:*}}")),
            self.key(format_args!("streaming:mq:unique:{{{topic}:p:*}}")),
            self.key(format_args!("streaming:mq:unique:retry:{{{topic}:p:*}}:*")),
            self.key(format_args!("streaming:mq:retry:{{{topic}:p:*}}:*")),
            self.key(format_args!("stream:topic:{{{topic}:p:*}}:retry:*")),
        ]
    }

    /// Returns patterns of all keys of this namespace.
    #[must_use]
    pub fn patterns_of_all(&self) -> Vec<Key> {
        vec![self.key(format_args!("stream:*")), self.key(format_args!("streaming:mq:*"))]
    }

    /// Set: the names of all topics.
    #[must_use]
    pub fn topics(&self) -> Key {
        self.key(format_args!("streaming:mq:topics:registry"))
    }

    /// Hash: a topic's `partitionCount`, `format`, `retention`, `maxLength`, `deadLetterRetention`, `packing`;
    /// `dictionary`, the name of the newest one; `earlier`, the numbers of partitions that it had before; `reborn`;
    /// `deleting`, `deletion`; `lost:<partition>`: losses that were found.
    #[must_use]
    pub fn topic_meta(&self, topic: &TopicName) -> Key {
        self.key(format_args!("streaming:mq:topic:{{{topic}}}:meta"))
    }

    /// String with a ttl: when a topic was deleted on purpose, in milliseconds, so that running clients do not create
    /// it again; for an hour.
    #[must_use]
    pub fn topic_deleted(&self, topic: &TopicName) -> Key {
        self.key(format_args!("streaming:mq:topic:{{{topic}}}:deleted"))
    }

    /// Set: the log keys of a topic's partitions.
    #[must_use]
    pub fn topic_partitions(&self, topic: &TopicName) -> Key {
        self.key(format_args!("streaming:mq:topic:{{{topic}}}:partitions"))
    }

    /// Set: the names of a topic's groups.
    #[must_use]
    pub fn topic_groups(&self, topic: &TopicName) -> Key {
        self.key(format_args!("streaming:mq:topic:{{{topic}}}:groups"))
    }

    /// Hash: the dictionaries of a topic's packs, by `<version>:<id>`.
    #[must_use]
    pub fn topic_dictionaries(&self, topic: &TopicName) -> Key {
        self.key(format_args!("streaming:mq:topic:{{{topic}}}:dictionaries"))
    }

    /// Hash: since when a group is `paused`, `deleting` or `deleted`, in milliseconds (an hour after its deletion it
    /// expires); `deletion`; `starts`, its position until it is on all partitions; `lost:<partition>`: losses that were
    /// found.
    #[must_use]
    pub fn group_state(&self, topic: &TopicName, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:group:{{{topic}}}:{group}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(keys: &Keys) -> Vec<Key> {
        let tp = TopicPartition::new("orders".parse().expect("name"), 3);
        let group: GroupName = "billing".parse().expect("name");
        let shard = Shard::new("mails".parse().expect("name"), 1);
        let id = b"pay:7 {x}\xff".to_vec();
        let operation = Operation::new(tp.topic.clone(), group.clone(), id).expect("an id");
        let lock = "invoice:42".parse().expect("name");
        let holder = PermitHolder::new("app-7").expect("name");
        let (partition, place) = (Place::from(tp.clone()), Place::from(shard.clone()));
        vec![
            keys.log(&tp),
            keys.retry_log(&tp, &group),
            keys.dead_letters(&tp, &group),
            keys.dead_claims(&tp, &group),
            keys.dead_imports(&tp, &group),
            keys.lease(&tp, &group),
            keys.fence(&tp, &group),
            keys.gate(&tp, &group, "0123456789abcdef"),
            keys.retry_due(&tp, &group),
            keys.retry_items(&tp, &group),
            keys.held(&tp, &group),
            keys.delay(&partition),
            keys.delay_items(&partition),
            keys.recur(&partition),
            keys.recur_items(&partition),
            keys.wake(&partition),
            keys.delay(&place),
            keys.delay_items(&place),
            keys.recur(&place),
            keys.recur_items(&place),
            keys.wake(&place),
            keys.claims(&shard),
            keys.task_states(&shard),
            keys.watcher(&shard),
            keys.dead_tasks(&shard),
            keys.queues(),
            keys.queue_meta(&shard.queue),
            keys.lock(&lock),
            keys.lock_queue(&lock),
            keys.lock_places(&lock),
            keys.lock_changes(&lock),
            keys.lock_epoch(&lock),
            keys.lock_index(&lock),
            keys.limit_rules(),
            keys.permits(),
            keys.rates(),
            keys.breakers(),
            keys.permit_holders(),
            keys.permit_ended(),
            keys.permits_of(&holder),
            keys.permit_calls(),
            keys.members(&tp.topic, &group),
            keys.member(&tp.topic, &group),
            keys.assignment(&tp.topic, &group),
            keys.changes(&tp.topic, &group),
            keys.topics(),
            keys.topic_meta(&tp.topic),
            keys.topic_partitions(&tp.topic),
            keys.topic_groups(&tp.topic),
            keys.topic_deleted(&tp.topic),
            keys.topic_dictionaries(&tp.topic),
            keys.group_state(&tp.topic, &group),
            keys.marker(&operation),
            keys.dedup(&tp),
            keys.dedup_old(&tp),
            keys.unique(&tp),
            keys.unique_retry(&tp, &group),
            keys.finished(&shard),
            keys.numbered(&tp, 0x1f, 7),
            keys.result(&ResultId::new(tp.clone(), 0x1f)),
            keys.progress(&ResultId::new(tp.clone(), 0x1f)),
            keys.trimmed(&tp),
            keys.cancels(&WorkPlace::Group(tp.clone(), group.clone())),
            keys.cancels(&WorkPlace::Shard(shard.clone())),
            keys.steps(&WorkPlace::Group(tp.clone(), group.clone())),
            keys.steps(&WorkPlace::Shard(shard.clone())),
            keys.batch_notes(&partition),
            keys.batch_notes(&place),
            keys.batches(&tp),
            keys.batch(&BatchId::new(tp.clone(), 0x1f)),
            keys.batch_bits(&BatchId::new(tp.clone(), 0x1f), MemberState::Done),
            keys.batch_results(&BatchId::new(tp.clone(), 31)),
        ]
    }

    #[test]
    fn a_log_says_whose_it_is() {
        let keys = Keys::within(&"shop".parse().expect("a namespace"));
        let tp = TopicPartition::new("orders".parse().expect("name"), 16_383);
        assert_eq!(keys.partition_of(&tp.topic, keys.log(&tp).as_str()), Some(tp.partition));
        for other in [
            "",
            "stream:topic:{orders:p:1}",
            "shop:stream:topic:{orders:p:01}",
            "shop:stream:topic:{order:p:1}",
        ] {
            assert_eq!(keys.partition_of(&tp.topic, other), None, "{other}");
        }
    }

    /// Golden: a change here is a change of the format.
    #[test]
    fn keys_are_what_the_protocol_says() {
        let golden = [
            "stream:topic:{orders:p:3}",
            "stream:topic:{orders:p:3}:retry:billing",
            "stream:topic:{orders:p:3}:dlq:billing",
            "streaming:mq:dlq:claim:{orders:p:3}:billing",
            "streaming:mq:dlq:import:{orders:p:3}:billing",
            "streaming:mq:lease:{orders:p:3}:billing",
            "streaming:mq:fence:{orders:p:3}:billing",
            "streaming:mq:gate:{orders:p:3}:billing:0123456789abcdef",
            "streaming:mq:retry:{orders:p:3}:billing",
            "streaming:mq:retry:item:{orders:p:3}:billing",
            "streaming:mq:held:{orders:p:3}:billing",
            "streaming:mq:delay:{orders:p:3}",
            "streaming:mq:delay:item:{orders:p:3}",
            "streaming:mq:recur:{orders:p:3}",
            "streaming:mq:recur:item:{orders:p:3}",
            "streaming:mq:wake:{orders:p:3}",
            "streaming:mq:delay:{mails:q:1}",
            "streaming:mq:delay:item:{mails:q:1}",
            "streaming:mq:recur:{mails:q:1}",
            "streaming:mq:recur:item:{mails:q:1}",
            "streaming:mq:wake:{mails:q:1}",
            "streaming:mq:claim:{mails:q:1}",
            "streaming:mq:claim:state:{mails:q:1}",
            "streaming:mq:watcher:{mails:q:1}",
            "stream:queue:{mails:q:1}:dlq",
            "streaming:mq:queues:registry",
            "streaming:mq:queue:{mails}:meta",
            "streaming:mq:lock:{lock:s:99}:invoice:42",
            "streaming:mq:lock:queue:{lock:s:99}:invoice:42",
            "streaming:mq:lock:places:{lock:s:99}:invoice:42",
            "streaming:mq:lock:changes:{lock:s:99}:invoice:42",
            "streaming:mq:lock:epoch:{lock:s:99}",
            "streaming:mq:lock:index:{lock:s:99}",
            "streaming:mq:permit:rules:{permit:s}",
            "streaming:mq:permit:units:{permit:s}",
            "streaming:mq:permit:rates:{permit:s}",
            "streaming:mq:permit:breakers:{permit:s}",
            "streaming:mq:permit:holders:{permit:s}",
            "streaming:mq:permit:ended:{permit:s}",
            "streaming:mq:permit:of:{permit:s}:app-7",
            "streaming:mq:permit:calls:{permit:s}",
            "streaming:mq:members:{orders}:billing",
            "streaming:mq:member:{orders}:billing",
            "streaming:mq:assignment:{orders}:billing",
            "streaming:mq:changes:{orders}:billing",
            "streaming:mq:topics:registry",
            "streaming:mq:topic:{orders}:meta",
            "streaming:mq:topic:{orders}:partitions",
            "streaming:mq:topic:{orders}:groups",
            "streaming:mq:topic:{orders}:deleted",
            "streaming:mq:topic:{orders}:dictionaries",
            "streaming:mq:group:{orders}:billing",
            "streaming:mq:marker:{orders:m:billing:pay%3A7%20%7Bx%7D%FF}",
            "streaming:mq:dedup:{orders:p:3}",
            "streaming:mq:dedup:old:{orders:p:3}",
            "streaming:mq:unique:{orders:p:3}",
            "streaming:mq:unique:retry:{orders:p:3}:billing",
            "streaming:mq:finished:{mails:q:1}",
            "streaming:mq:numbered:{orders:p:3}:0000000000000000000000000000001f-7",
            "streaming:mq:result:{orders:p:3}:0000000000000000000000000000001f",
            "streaming:mq:progress:{orders:p:3}:0000000000000000000000000000001f",
            "streaming:mq:trimmed:{orders:p:3}",
            "streaming:mq:cancels:{orders:p:3}:billing",
            "streaming:mq:cancels:{mails:q:1}",
            "streaming:mq:steps:{orders:p:3}:billing",
            "streaming:mq:steps:{mails:q:1}",
            "streaming:mq:batch:notes:{orders:p:3}",
            "streaming:mq:batch:notes:{mails:q:1}",
            "streaming:mq:batches:{orders:p:3}",
            "streaming:mq:batch:{orders:p:3}:0000000000000000000000000000001f",
            "streaming:mq:batch:done:{orders:p:3}:0000000000000000000000000000001f",
            "streaming:mq:batch:results:{orders:p:3}:0000000000000000000000000000001f",
        ];
        let plain: Vec<_> = all(&Keys::new()).iter().map(Key::to_string).collect();
        assert_eq!(plain, golden);
        let shop = Keys::within(&"shop".parse().expect("name"));
        let prefixed: Vec<_> = all(&shop).iter().map(Key::to_string).collect();
        assert_eq!(prefixed, golden.map(|key| format!("shop:{key}")));
    }

    /// Whether a key matches a pattern whose only special character is `*`.
    fn matches(pattern: &str, key: &str) -> bool {
        match pattern.split_once('*') {
            None => pattern == key,
            Some((start, rest)) => {
                key.strip_prefix(start).is_some_and(|key| (0..=key.len()).any(|at| matches(rest, &key[at..])))
            }
        }
    }

    #[test]
    fn the_patterns_of_a_topic_match_its_keys_and_no_others() {
        let shop = Keys::within(&"shop".parse().expect("name"));
        let (orders, queue): (TopicName, QueueName) =
            ("orders".parse().expect("name"), "orders".parse().expect("name"));
        let tp = TopicPartition::new(orders.clone(), 0);
        let mut known = all(&shop);
        known.extend([shop.packs(&tp), shop.settled(&tp, &"billing".parse().expect("name"))]);
        for key in known {
            let its = key.as_str().contains("{orders") || key == shop.topics();
            let found =
                shop.patterns_of(&orders).iter().any(|pattern| matches(pattern.as_str(), key.as_str()));
            assert_eq!(found, its, "{key}");
        }
        let shard = Shard::new(queue.clone(), 0);
        let place = Place::from(shard.clone());
        let of_queue =
            [shop.queue_meta(&queue), shop.delay(&place), shop.claims(&shard), shop.dead_tasks(&shard)];
        for key in of_queue {
            let pattern =
                shop.patterns_of(&orders).into_iter().find(|pattern| matches(pattern.as_str(), key.as_str()));
            assert_eq!(pattern, None, "a delay queue of the same name has {key}");
        }
    }

    #[test]
    fn the_keys_of_a_partition_share_one_tag() {
        let tag = |key: &Key| -> Option<String> {
            let text = key.as_str();
            let open = text.find('{')?;
            let close = text[open..].find('}')? + open;
            Some(text[open + 1..close].to_owned())
        };
        for key in &all(&Keys::new())[..16] {
            assert_eq!(tag(key).as_deref(), Some("orders:p:3"), "{key}");
        }
        for key in &all(&Keys::new())[16..25] {
            assert_eq!(tag(key).as_deref(), Some("mails:q:1"), "{key}");
        }
        for key in &all(&Keys::new())[27..32] {
            assert_eq!(tag(key).as_deref(), Some("lock:s:99"), "{key}");
        }
    }
}
