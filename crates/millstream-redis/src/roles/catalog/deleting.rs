//! Deletes topics and groups: all of their keys, by name, in steps that are too short to delay the server.
//!
//! A deletion marks the topic or group first, then removes the leases, and removes the keys that show its existence
//! last. So nobody restores it meanwhile, and a deletion that stopped half-way can be called again.

use millstream_core::cancels::WorkPlace;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::{Key, Keys};
use millstream_core::name::{GroupName, TopicName};
use millstream_core::schedule::Place;
use millstream_core::sorted::SortedSet;
use millstream_core::topic::{MAX_PARTITIONS, TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use super::CHUNK;
use super::groups::GroupStage;
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::scripts::gate::{READERS, gate_of, other_reader};
use crate::scripts::script;

/// Maximum number of keys of one UNLINK, which frees their values in the background.
const KEYS: usize = 100;
/// Maximum number of pending entries when a group is destroyed, since the server frees them at once. Further ones are
/// removed before, in parts.
const PENDING: u64 = 5_000;
/// Number of pending entries that are removed at once.
const PAGE: usize = 1_000;

/// Returns all keys of a group in a partition, apart from the group on the log, and from those that show who owns it.
fn group_keys(keys: &Keys, tp: &TopicPartition, group: &GroupName) -> [Key; 11] {
    [
        keys.held(tp, group),
        keys.settled(tp, group),
        keys.retry_due(tp, group),
        keys.retry_items(tp, group),
        keys.retry_log(tp, group),
        keys.unique_retry(tp, group),
        keys.dead_letters(tp, group),
        keys.dead_claims(tp, group),
        keys.dead_imports(tp, group),
        keys.cancels(&WorkPlace::Group(tp.clone(), group.clone())),
        keys.steps(&WorkPlace::Group(tp.clone(), group.clone())),
    ]
}

/// Returns all keys that a partition has for all groups, the log last.
fn partition_keys(keys: &Keys, tp: &TopicPartition) -> [Key; 12] {
    let place = Place::from(tp.clone());
    [
        keys.delay(&place),
        keys.delay_items(&place),
        keys.recur(&place),
        keys.recur_items(&place),
        keys.wake(&place),
        keys.dedup(tp),
        keys.dedup_old(tp),
        keys.unique(tp),
        keys.packs(tp),
        // Without its place in the index a batch does not exist; its own keys expire.
        keys.batches(tp),
        keys.batch_notes(&place),
        keys.log(tp),
    ]
}

/// Identifies one deletion among several of the same name. It is stored when the deletion begins and checked before
/// each step. So a slow deleter removes nothing that was created under the same name afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deletion(pub(super) String);

impl Deletion {
    pub(super) fn new() -> Self {
        Self(format!("{:032x}", fastrand::u128(..)))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the stored deletion, if there is one.
    pub(super) fn read(value: Value) -> Result<Option<Self>> {
        if value == Value::Nil { Ok(None) } else { reply::text(value).map(|name| Some(Self(name))) }
    }
}

impl RedisBackend {
    pub(super) async fn take_topic(&self, name: &TopicName) -> Result<bool> {
        // Only the format is checked: a topic with invalid settings must be deletable too.
        self.check_format(name).await?;
        let (deletion, known) = self.forget_settings(name).await?;
        let mark = self.inner.keys.topic_meta(name);
        // Only the list has the partitions of an unfinished expansion, or of a topic that lost its settings.
        let partitions = self.listed_partitions(name, known.unwrap_or(0)).await?;
        let groups = match partitions {
            0 => SortedSet::new(),
            _ => match self.take_partitions(name, partitions, &deletion).await? {
                Some(groups) => groups,
                // Another caller has completed this deletion.
                None => return Ok(true),
            },
        };
        if !self.is_under_way(&mark, &deletion).await? {
            return Ok(known.is_some() || partitions > 0);
        }
        // Remove it from the registry before the settings: while these exist a deletion that stops here can find the
        // rest again.
        let registry = self.inner.keys.topics();
        let mut pipe = Pipeline::new();
        pipe.cmd("SREM").arg(registry.as_str()).arg(name.as_str());
        let listed = reply::int(self.inner.one(&registry, &pipe).await?)? == 1;
        self.forget_groups(name, &groups, GroupStage::Topic, &deletion).await?;
        if !self.end_deletion(name, &deletion).await? {
            // Another caller completed the deletion just before. If the topic was created again, it is listed again: the registry
            // is in another hash slot, so its removal above was not atomic with that.
            match self.stored_topic(name).await {
                Ok(created) => drop(self.list(&created).await?),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(known.is_some() || listed)
    }

    /// Returns whether the mark still names this deletion. Once another caller has completed it, the keys may be new
    /// ones.
    async fn is_under_way(&self, mark: &Key, deletion: &Deletion) -> Result<bool> {
        let mut pipe = Pipeline::new();
        pipe.cmd("HGET").arg(mark.as_str()).arg("deletion");
        Ok(Deletion::read(self.inner.one(mark, &pipe).await?)?.as_ref() == Some(deletion))
    }

    /// Takes these partitions from their owners: these read and settle no more. Returns `false` if another caller has completed this deletion.
    async fn disown(
        &self,
        all: Vec<(&TopicPartition, &GroupName)>,
        mark: &Key,
        deletion: &Deletion,
    ) -> Result<bool> {
        let keys = &self.inner.keys;
        // With the word of the reader that was begun last, which only the fence knows.
        let mut left: Vec<_> = all.into_iter().map(|(tp, group)| (tp, group, String::new())).collect();
        for _ in 0..READERS {
            if left.is_empty() {
                return Ok(true);
            }
            if !self.is_under_way(mark, deletion).await? {
                return Ok(false);
            }
            let calls = left.iter().map(|(tp, group, reader)| {
                let (lease, fence) = (keys.lease(tp, group), keys.fence(tp, group));
                let gate = gate_of(keys, (tp, group), &lease, reader);
                self.inner.scripts.disown.call([&lease, &fence, &gate]).arg(reader)
            });
            let answers = script::run(&self.inner.pool, calls.collect()).await;
            let mut again = Vec::new();
            for ((tp, group, _), answer) in left.into_iter().zip(answers) {
                if let Some(last) = other_reader(&answer?) {
                    again.push((tp, group, last));
                }
            }
            left = again;
        }
        Err(Error::new(ErrorKind::Unavailable, "readers begin all the time in what is to be deleted"))
    }

    /// Removes all keys in the slots of a topic's partitions, and returns the groups that were there; `None` if
    /// another caller has completed this deletion.
    async fn take_partitions(
        &self,
        name: &TopicName,
        partitions: u32,
        deletion: &Deletion,
    ) -> Result<Option<SortedSet<GroupName>>> {
        let keys = &self.inner.keys;
        let mark = keys.topic_meta(name);
        let topic = TopicSpec::new(name.clone(), partitions)?;
        let all: Vec<TopicPartition> = topic.iter().collect();
        let groups = self.all_groups(name, &all).await?;
        if !self.is_under_way(&mark, deletion).await? {
            return Ok(None);
        }
        self.wake_members(name, &groups).await?;
        // The leases go first: from then on no owner can settle anything.
        for chunk in all.chunks(CHUNK) {
            if !self.disown(of_all(chunk, &groups), &mark, deletion).await? {
                return Ok(None);
            }
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
            // Of owners that came back meanwhile.
            if !self.disown(of_all(chunk, &groups), &mark, deletion).await? {
                return Ok(None);
            }
        }
        Ok(Some(groups))
    }

    /// Returns the number of partitions, including those of an unfinished expansion.
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
            // A key that is no log of ours stays: no key names are guessed.
            let partition = self.inner.keys.partition_of(name, &reply::text(log)?);
            most = most.max(partition.map_or(0, |partition| partition.0.saturating_add(1)));
        }
        Ok(most.min(MAX_PARTITIONS))
    }

    /// Wakes all members that wait for changes of these groups: their next heartbeat reports the deletion.
    async fn wake_members(&self, name: &TopicName, groups: &SortedSet<GroupName>) -> Result<()> {
        let mut pipe = Pipeline::with_capacity(groups.len());
        for group in groups {
            let changes = self.inner.keys.changes(name, group);
            pipe.cmd("XADD").arg(changes.as_str()).arg("NOMKSTREAM").arg("MAXLEN").arg("=").arg(1);
            pipe.arg("*").arg("deleting").arg(name.as_str());
        }
        match self.all_done(&pipe, name).await {
            // Without the wake-up they notice the deletion somewhat later.
            Err(error) if error.kind() == ErrorKind::Backpressure => Ok(()),
            other => other,
        }
    }

    /// Returns the groups that are registered, and those that are only on a log. Registers the latter, since the logs
    /// that name them are removed next.
    async fn all_groups(&self, name: &TopicName, all: &[TopicPartition]) -> Result<SortedSet<GroupName>> {
        let key = self.inner.keys.topic_groups(name);
        let mut groups: SortedSet<GroupName> =
            self.inner.names(&key, |name| GroupName::new(name)).await?.into_iter().collect();
        let mut found = SortedSet::new();
        for chunk in all.chunks(CHUNK) {
            for look in self.look_at(chunk).await? {
                // A group with an invalid name has no keys of ours.
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
            groups.extend(found);
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
        // The leases go first: from then on no owner can settle anything.
        for chunk in all.chunks(CHUNK) {
            // Or another caller has completed this deletion, or deleted the topic.
            if !self.disown(chunk.iter().map(|tp| (tp, group)).collect(), &mark, &deletion).await? {
                return Ok(known);
            }
        }
        for chunk in all.chunks(CHUNK) {
            for (tp, look) in chunk.iter().zip(self.look_at(chunk).await?) {
                if look.group(group.as_str()).is_some_and(|group| group.pending.0 > PENDING) {
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
                let on =
                    |error: Error| error.during(format_args!("delete group {group} of {topic}")).at(topic);
                let no_log = at % 2 == 0 && is_no_key(&answer);
                let gone = if no_log { 0 } else { reply::int(answer).map_err(on)? };
                known |= at % 2 == 0 && gone == 1;
            }
            // Of owners that came back meanwhile.
            if !self.disown(chunk.iter().map(|tp| (tp, group)).collect(), &mark, &deletion).await? {
                return Ok(known);
            }
        }
        let stage = if known { GroupStage::End } else { GroupStage::Never };
        self.forget_groups(topic, [group], stage, &deletion).await?;
        Ok(known)
    }

    /// Removes all entries from a group's pending list, in parts. Returns `false` if another caller has completed this
    /// deletion.
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
                // Another caller that deletes the group has removed it here.
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
            reply::ok(answer).map_err(|error| error.during(format_args!("delete topic {name}")).at(name))?;
        }
        Ok(())
    }
}

/// Returns each group in each partition.
fn of_all<'a>(
    partitions: &'a [TopicPartition],
    groups: &'a SortedSet<GroupName>,
) -> Vec<(&'a TopicPartition, &'a GroupName)> {
    partitions.iter().flat_map(|tp| groups.iter().map(move |group| (tp, group))).collect()
}

fn unlink(pipe: &mut Pipeline, keys: &[Key]) {
    for keys in keys.chunks(KEYS) {
        pipe.cmd("UNLINK");
        for key in keys {
            pipe.arg(key.as_str());
        }
    }
}

/// Returns whether XGROUP reports a missing stream.
fn is_no_key(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.details().is_some_and(|text| text.contains("requires the key to exist")))
}
