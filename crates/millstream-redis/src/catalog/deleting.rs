//! Deleting topics and groups: all keys of theirs, by their names, in steps that a server does not notice.
//!
//! First it is written down that something is being deleted, then the leases go, and whatever says that there is something
//! comes last: so nobody brings it back meanwhile, and what was stopped half-way can be asked again.

use std::collections::BTreeSet;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::{Key, Keys};
use millstream_core::name::{GroupName, TopicName};
use millstream_core::schedule::Place;
use millstream_core::topic::{MAX_PARTITIONS, TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use super::CHUNK;
use super::groups::Stage;
use crate::backend::RedisBackend;
use crate::connection::Line;
use crate::reply;

/// The most keys that one command takes away. Their values go in the background.
const KEYS: usize = 100;
/// How much may be pending when a group is destroyed: the server frees that at once. What is more goes before, in parts.
const PENDING: u64 = 5_000;
/// How many pending entries go at once.
const PAGE: usize = 1_000;

/// All that a group has in a partition, apart from itself in the log.
fn group_keys(keys: &Keys, tp: &TopicPartition, group: &GroupName) -> [Key; 9] {
    [
        keys.held(tp, group),
        keys.retry_due(tp, group),
        keys.retry_items(tp, group),
        keys.retry_log(tp, group),
        keys.dead_letters(tp, group),
        keys.dead_claims(tp, group),
        keys.dead_imports(tp, group),
        keys.lease(tp, group),
        keys.fence(tp, group),
    ]
}

/// What says who works there.
fn lease_keys(keys: &Keys, tp: &TopicPartition, group: &GroupName) -> [Key; 2] {
    [keys.lease(tp, group), keys.fence(tp, group)]
}

/// All that a partition has for all groups, the log last.
fn partition_keys(keys: &Keys, tp: &TopicPartition) -> [Key; 6] {
    let place = Place::from(tp.clone());
    [
        keys.delay(&place),
        keys.delay_items(&place),
        keys.recur(&place),
        keys.recur_items(&place),
        keys.wake(&place),
        keys.log(tp),
    ]
}

/// Which deletion of several of one name. It is written down where it begins, and asked for before each step: who was slow
/// takes nothing from what was created in the place of what he deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deletion(pub(super) String);

impl Deletion {
    pub(super) fn new() -> Self {
        Self(format!("{:032x}", fastrand::u128(..)))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The one that is written down, if one is.
    pub(super) fn read(value: Value) -> Result<Option<Self>> {
        if value == Value::Nil { Ok(None) } else { reply::text(value).map(|name| Some(Self(name))) }
    }
}

impl RedisBackend {
    pub(super) async fn take_topic(&self, name: &TopicName) -> Result<bool> {
        // Whatever else is stored of it, which may make no sense: there is a way out.
        self.check_format(name).await?;
        let (deletion, known) = self.forget_settings(name).await?;
        let mark = self.inner.keys.topic_meta(name);
        // Of an expansion that was not finished, or of a topic that lost its settings, the list alone tells.
        let partitions = self.listed_partitions(name, known.unwrap_or(0)).await?;
        let groups = match partitions {
            0 => BTreeSet::new(),
            _ => match self.take_partitions(name, partitions, &deletion).await? {
                Some(groups) => groups,
                // Somebody else has ended this deletion.
                None => return Ok(true),
            },
        };
        if !self.is_under_way(&mark, &deletion).await? {
            return Ok(known.is_some() || partitions > 0);
        }
        // Off the list before the settings go: with them the rest can be found again, whatever stops this.
        let registry = self.inner.keys.topics();
        let mut pipe = Pipeline::new();
        pipe.cmd("SREM").arg(registry.as_str()).arg(name.as_str());
        let listed = reply::int(self.inner.one(&registry, &pipe).await?)? == 1;
        self.forget_groups(name, &groups, Stage::Topic, &deletion).await?;
        if !self.end_deletion(name, &deletion).await?
            && let Ok(created) = self.stored_topic(name).await
        {
            // Ended by somebody else right before, and created since: the list is in another slot.
            self.list(&created).await?;
        }
        Ok(known.is_some() || listed)
    }

    /// Whether a deletion is still what the mark says. Once somebody else has ended it, what is there may be new.
    async fn is_under_way(&self, mark: &Key, deletion: &Deletion) -> Result<bool> {
        let mut pipe = Pipeline::new();
        pipe.cmd("HGET").arg(mark.as_str()).arg("deletion");
        Ok(Deletion::read(self.inner.one(mark, &pipe).await?)?.as_ref() == Some(deletion))
    }

    /// Takes away all that is in the slots of a topic's partitions, and gives back the groups that were there; `None` if
    /// somebody else has ended this deletion.
    async fn take_partitions(
        &self,
        name: &TopicName,
        partitions: u32,
        deletion: &Deletion,
    ) -> Result<Option<BTreeSet<GroupName>>> {
        let keys = &self.inner.keys;
        let mark = keys.topic_meta(name);
        let topic = TopicSpec::new(name.clone(), partitions)?;
        let all: Vec<TopicPartition> = topic.iter().collect();
        let groups = self.all_groups(name, &all).await?;
        if !self.is_under_way(&mark, deletion).await? {
            return Ok(None);
        }
        self.wake_members(name, &groups).await?;
        // The leases before all else: then nobody who works there can say any more that something is done.
        for chunk in all.chunks(CHUNK) {
            let mut pipe = Pipeline::new();
            for tp in chunk {
                let leases = groups.iter().flat_map(|group| lease_keys(keys, tp, group));
                unlink(&mut pipe, &leases.collect::<Vec<_>>());
            }
            if !self.is_under_way(&mark, deletion).await? {
                return Ok(None);
            }
            self.all_done(&pipe, name).await?;
        }
        for chunk in all.chunks(CHUNK) {
            let mut pipe = Pipeline::new();
            for tp in chunk {
                let of_groups = groups.iter().flat_map(|group| group_keys(keys, tp, group));
                unlink(&mut pipe, &of_groups.chain(partition_keys(keys, tp)).collect::<Vec<_>>());
            }
            if !self.is_under_way(&mark, deletion).await? {
                return Ok(None);
            }
            self.all_done(&pipe, name).await?;
        }
        Ok(Some(groups))
    }

    /// How many partitions there are, with those that an expansion that was not finished has made.
    async fn listed_partitions(&self, name: &TopicName, known: u32) -> Result<u32> {
        let key = self.inner.keys.topic_partitions(name);
        let mut pipe = Pipeline::new();
        pipe.cmd("SCARD").arg(key.as_str());
        if reply::count(self.inner.one(&key, &pipe).await?)? <= known as usize {
            return Ok(known);
        }
        let mut pipe = Pipeline::new();
        pipe.cmd("SMEMBERS").arg(key.as_str());
        let mut most = known;
        for log in reply::array(self.inner.one(&key, &pipe).await?)? {
            // What is none of ours stays: nobody's keys are guessed.
            let partition = self.inner.keys.partition_of(name, &reply::text(log)?);
            most = most.max(partition.map_or(0, |partition| partition.0.saturating_add(1)));
        }
        Ok(most.min(MAX_PARTITIONS))
    }

    /// Wakes all who wait for changes of these groups: their next heartbeat tells.
    async fn wake_members(&self, name: &TopicName, groups: &BTreeSet<GroupName>) -> Result<()> {
        let mut pipe = Pipeline::with_capacity(groups.len());
        for group in groups {
            let changes = self.inner.keys.changes(name, group);
            pipe.cmd("XADD").arg(changes.as_str()).arg("NOMKSTREAM").arg("MAXLEN").arg("=").arg(1);
            pipe.arg("*").arg("deleting").arg(name.as_str());
        }
        match self.all_done(&pipe, name).await {
            // They hear of it all the same, somewhat later.
            Err(error) if error.kind() == ErrorKind::Backpressure => Ok(()),
            other => other,
        }
    }

    /// The groups that are registered, and those that are on a log without that; from now on these are registered too,
    /// since the logs that name them go.
    async fn all_groups(&self, name: &TopicName, all: &[TopicPartition]) -> Result<BTreeSet<GroupName>> {
        let key = self.inner.keys.topic_groups(name);
        let mut groups: BTreeSet<GroupName> =
            self.inner.names(&key, |name| GroupName::new(name)).await?.into_iter().collect();
        let mut found = BTreeSet::new();
        for chunk in all.chunks(CHUNK) {
            for look in self.look_at(chunk).await? {
                // What is no name of ours has no keys of ours.
                let names = look.groups.iter().filter_map(|group| std::str::from_utf8(&group.name).ok());
                found.extend(names.filter_map(|name| GroupName::new(name).ok()));
            }
        }
        found.retain(|group| !groups.contains(group));
        if !found.is_empty() {
            let mut pipe = Pipeline::new();
            pipe.cmd("SADD").arg(key.as_str());
            for group in &found {
                pipe.arg(group.as_str());
            }
            self.inner.one(&key, &pipe).await?;
            groups.append(&mut found);
        }
        Ok(groups)
    }

    pub(super) async fn take_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        let keys = &self.inner.keys;
        let spec = self.stored_topic(topic).await?;
        let partitions = self.listed_partitions(topic, spec.partitions).await?;
        let all: Vec<TopicPartition> = TopicSpec::new(topic.clone(), partitions)?.iter().collect();
        let (deletion, mut known) = self.begin_to_forget(topic, group).await?;
        let mark = keys.group_state(topic, group);
        // The leases before all else: then nobody who works there can say any more that something is done.
        for chunk in all.chunks(CHUNK) {
            let mut pipe = Pipeline::with_capacity(chunk.len());
            for tp in chunk {
                unlink(&mut pipe, &lease_keys(keys, tp, group));
            }
            if !self.is_under_way(&mark, &deletion).await? {
                // Somebody else has ended this deletion, or deleted the topic.
                return Ok(known);
            }
            self.all_done(&pipe, topic).await?;
        }
        for chunk in all.chunks(CHUNK) {
            for (tp, look) in chunk.iter().zip(self.look_at(chunk).await?) {
                if look.group(group.as_str()).is_some_and(|group| group.pending > PENDING) {
                    known = true;
                    if !self.forget_pending(&keys.log(tp), group, &mark, &deletion).await? {
                        return Ok(known);
                    }
                }
            }
            let mut pipe = Pipeline::with_capacity(2 * chunk.len());
            for tp in chunk {
                pipe.cmd("XGROUP").arg("DESTROY").arg(keys.log(tp).as_str()).arg(group.as_str());
                unlink(&mut pipe, &group_keys(keys, tp, group));
            }
            if !self.is_under_way(&mark, &deletion).await? {
                return Ok(known);
            }
            let answers = self.inner.pool.send(&pipe).await?;
            for (at, answer) in answers.into_iter().enumerate() {
                let on = |error: Error| error.during(format_args!("delete group {group} of {topic}"));
                let no_log = at % 2 == 0 && is_no_key(&answer);
                let gone = if no_log { 0 } else { reply::int(answer).map_err(on)? };
                known |= at % 2 == 0 && gone == 1;
            }
        }
        let stage = if known { Stage::End } else { Stage::Never };
        self.forget_groups(topic, [group], stage, &deletion).await?;
        Ok(known)
    }

    /// Takes everything off a group's pending list, in parts. `false` if somebody else has ended this deletion.
    async fn forget_pending(
        &self,
        log: &Key,
        group: &GroupName,
        mark: &Key,
        deletion: &Deletion,
    ) -> Result<bool> {
        loop {
            let mut pipe = Pipeline::new();
            pipe.cmd("XPENDING").arg(log.as_str()).arg(group.as_str()).arg("-").arg("+").arg(PAGE);
            let page = match self.inner.one(log, &pipe).await {
                // Somebody else who deletes it was here.
                Err(error) if error.kind() == ErrorKind::GroupMissing => return Ok(true),
                page => reply::deliveries(page?)?,
            };
            if page.is_empty() {
                return Ok(true);
            }
            if !self.is_under_way(mark, deletion).await? {
                return Ok(false);
            }
            let mut pipe = Pipeline::new();
            pipe.cmd("XACK").arg(log.as_str()).arg(group.as_str());
            for (id, _) in &page {
                pipe.arg(id.to_string());
            }
            self.inner.one(log, &pipe).await?;
        }
    }

    async fn all_done(&self, pipe: &Pipeline, name: &TopicName) -> Result<()> {
        if pipe.is_empty() {
            return Ok(());
        }
        for answer in self.inner.pool.send(pipe).await? {
            reply::ok(answer).map_err(|error| error.during(format_args!("delete topic {name}")))?;
        }
        Ok(())
    }
}

fn unlink(pipe: &mut Pipeline, keys: &[Key]) {
    for keys in keys.chunks(KEYS) {
        pipe.cmd("UNLINK");
        for key in keys {
            pipe.arg(key.as_str());
        }
    }
}

/// What XGROUP answers where there is no stream.
fn is_no_key(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.details().is_some_and(|text| text.contains("requires the key to exist")))
}
