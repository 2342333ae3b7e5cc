//! Deleting topics and groups: all keys of theirs, by their names, in steps that a server does not notice.
//!
//! Whatever says that there is something comes last, so that what was stopped half-way can be asked again.

use std::collections::BTreeSet;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::{Key, Keys};
use millstream_core::name::{GroupName, TopicName};
use millstream_core::schedule::Place;
use millstream_core::topic::{MAX_PARTITIONS, TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use super::CHUNK;
use crate::backend::RedisBackend;
use crate::connection::Line;
use crate::{reply, script};

/// The most keys that one command takes away. Their values go in the background.
const KEYS: usize = 100;
/// How much may be pending when a group is destroyed: the server frees that at once. What is more goes before, in parts.
const PENDING: u64 = 5_000;
/// How many pending entries go at once.
const PAGE: usize = 1_000;

/// All that a group has in a partition, apart from itself in the log.
fn group_keys(keys: &Keys, tp: &TopicPartition, group: &GroupName) -> [Key; 7] {
    [
        keys.held(tp, group),
        keys.retry_due(tp, group),
        keys.retry_items(tp, group),
        keys.retry_log(tp, group),
        keys.dead_letters(tp, group),
        keys.lease(tp, group),
        keys.fence(tp, group),
    ]
}

/// All that a group has for the whole topic.
fn members_keys(keys: &Keys, topic: &TopicName, group: &GroupName) -> [Key; 4] {
    [
        keys.members(topic, group),
        keys.member(topic, group),
        keys.assignment(topic, group),
        keys.changes(topic, group),
    ]
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

impl RedisBackend {
    pub(super) async fn take_topic(&self, name: &TopicName) -> Result<bool> {
        let keys = &self.inner.keys;
        let of_topic = [keys.topic_partitions(name), keys.topic_groups(name), keys.topic_meta(name)];
        // Looks at the format: what a newer version keeps is not known here.
        match self.stored_topic(name).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => drop(other?),
        }
        let call = self.inner.scripts.forget_topic.call([&of_topic[2]]);
        let partitions = script::run_one(&self.inner.pool, call).await?;
        let known = partitions != Value::Nil;
        if known {
            let partitions = u32::try_from(reply::count(partitions)?).unwrap_or(u32::MAX).min(MAX_PARTITIONS);
            let topic = TopicSpec::new(name.clone(), partitions)?;
            let all: Vec<TopicPartition> = topic.iter().collect();
            let groups = self.all_groups(name, &all).await?;
            for chunk in all.chunks(CHUNK) {
                let mut pipe = Pipeline::new();
                for tp in chunk {
                    let of_groups = groups.iter().flat_map(|group| group_keys(keys, tp, group));
                    unlink(&mut pipe, &of_groups.chain(partition_keys(keys, tp)).collect::<Vec<_>>());
                }
                self.all_done(&pipe, name).await?;
            }
            let members: Vec<_> = groups.iter().flat_map(|group| members_keys(keys, name, group)).collect();
            let mut pipe = Pipeline::new();
            unlink(&mut pipe, &members);
            // The settings last: with them the rest can be found again.
            unlink(&mut pipe, &of_topic);
            self.all_done(&pipe, name).await?;
        } else {
            let mut pipe = Pipeline::new();
            unlink(&mut pipe, &of_topic);
            self.all_done(&pipe, name).await?;
        }
        let registry = keys.topics();
        let mut pipe = Pipeline::new();
        pipe.cmd("SREM").arg(registry.as_str()).arg(name.as_str());
        let listed = reply::int(self.inner.one(&registry, &pipe).await?)? == 1;
        Ok(known || listed)
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
        let all: Vec<TopicPartition> = spec.iter().collect();
        let mut known = false;
        for chunk in all.chunks(CHUNK) {
            for (tp, look) in chunk.iter().zip(self.look_at(chunk).await?) {
                if look.group(group.as_str()).is_some_and(|group| group.pending > PENDING) {
                    self.forget_pending(&keys.log(tp), group).await?;
                }
            }
            let mut pipe = Pipeline::with_capacity(2 * chunk.len());
            for tp in chunk {
                pipe.cmd("XGROUP").arg("DESTROY").arg(keys.log(tp).as_str()).arg(group.as_str());
                unlink(&mut pipe, &group_keys(keys, tp, group));
            }
            let answers = self.inner.pool.send(&pipe).await?;
            for (at, answer) in answers.into_iter().enumerate() {
                let on = |error: Error| error.during(format_args!("delete group {group} of {topic}"));
                let no_log = at % 2 == 0 && is_no_key(&answer);
                let gone = if no_log { 0 } else { reply::int(answer).map_err(on)? };
                known |= at % 2 == 0 && gone == 1;
            }
        }
        let mut pipe = Pipeline::new();
        unlink(&mut pipe, &members_keys(keys, topic, group));
        self.all_done(&pipe, topic).await?;
        let groups = keys.topic_groups(topic);
        let mut pipe = Pipeline::new();
        pipe.cmd("SREM").arg(groups.as_str()).arg(group.as_str());
        let registered = reply::int(self.inner.one(&groups, &pipe).await?)? == 1;
        Ok(known || registered)
    }

    /// Takes everything off a group's pending list, in parts.
    async fn forget_pending(&self, log: &Key, group: &GroupName) -> Result<()> {
        loop {
            let mut pipe = Pipeline::new();
            pipe.cmd("XPENDING").arg(log.as_str()).arg(group.as_str()).arg("-").arg("+").arg(PAGE);
            let page = reply::deliveries(self.inner.one(log, &pipe).await?)?;
            if page.is_empty() {
                return Ok(());
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
