//! The catalog role: plain commands, in an order that leaves nothing half visible.

mod count_range;
mod deleting;
mod groups;
mod lag;
mod lost;
#[cfg(feature = "admin")]
mod overview;
mod packed;
#[cfg(feature = "admin")]
mod retention_pins;
mod settings;
mod snapshot;
mod start_offset;
mod stats;

use async_trait::async_trait;
use bytes::Bytes;
#[cfg(feature = "admin")]
use millstream_core::catalog::Pin;
use millstream_core::catalog::{Catalog, GroupCreated, GroupState, PartitionStats, PartitionSurvey, Start};
use millstream_core::error::{Error, ErrorKind, Problems, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::name::{GroupName, TopicName};
use millstream_core::packing::DictionaryName;
use millstream_core::sorted::sort;
use millstream_core::topic::{MAX_PARTITIONS, Partition, TopicChange, TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use crate::backend::{Inner, RedisBackend};
use crate::conn::connection::Line;
use crate::conn::replies::reply::{self, Entries};
use crate::scripts::script;
use count_range::above;
pub(crate) use groups::gone;
#[cfg(feature = "fuzzing")]
pub(crate) use settings::read as read_settings;

/// Maximum number of partitions of one pipeline: a topic may have 16,384.
const CHUNK: usize = 500;

impl Inner {
    pub(crate) async fn one(&self, key: &Key, pipe: &Pipeline) -> Result<Value> {
        let answer = self.pool.send(pipe).await?.pop().unwrap_or_default();
        reply::ok(answer).map_err(|error| error.during(format_args!("catalog {key}")))
    }

    /// Adds the members to a set that it lacks. Members that exist are not written again, so that a caller that only
    /// starts is not refused by a server that takes no writes.
    async fn add(&self, key: &Key, members: &[&str]) -> Result<()> {
        let mut pipe = Pipeline::new();
        pipe.cmd("SMISMEMBER").arg(key.as_str()).arg(members);
        let known = reply::array(self.one(key, &pipe).await?)?;
        let new = members.iter().zip(known).filter(|(_, known)| *known != Value::Int(1));
        let new: Vec<&str> = new.map(|(member, _)| *member).collect();
        if !new.is_empty() {
            let mut pipe = Pipeline::new();
            pipe.cmd("SADD").arg(key.as_str()).arg(&new);
            self.one(key, &pipe).await?;
        }
        Ok(())
    }

    /// Returns the names in a set, sorted.
    pub(crate) async fn names<T: Ord>(&self, key: &Key, parse: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
        let mut pipe = Pipeline::new();
        pipe.cmd("SMEMBERS").arg(key.as_str());
        parse_names(key, self.one(key, &pipe).await?, parse)
    }
}

/// Returns the names in the answer to `SMEMBERS`, sorted. A member that is no valid name was added by somebody else and is
/// skipped.
fn parse_names<T: Ord>(key: &Key, members: Value, parse: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    let mut names = Vec::new();
    for member in reply::array(members)? {
        match parse(&reply::text(member)?) {
            Ok(name) => names.push(name),
            Err(error) => tracing::warn!(%key, "skipped in the catalog: {error}"),
        }
    }
    sort(&mut names);
    Ok(names)
}

/// Mode of a creation: create, or only restore, which fails for anything that was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Create,
    Restore,
}

impl Mode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Restore => "restore",
        }
    }
}

/// Returns the last-delivered id of a group that starts there.
pub(crate) fn position(start: Start) -> Result<String> {
    match start {
        Start::Earliest => Ok("0".to_owned()),
        Start::Latest => Ok("$".to_owned()),
        Start::After(id) => Ok(id.to_string()),
        Start::At(time) => match time.as_millis().checked_sub(1) {
            Some(before) => Ok(MessageId::new(before, u64::MAX).to_string()),
            None => Ok("0".to_owned()),
        },
        other => Err(Error::new(ErrorKind::Unsupported, format!("a group cannot start at {other:?} here"))),
    }
}

fn create_command(pipe: &mut Pipeline, stream: &Key, group: &GroupName, position: &str) {
    pipe.cmd("XGROUP").arg("CREATE").arg(stream.as_str()).arg(group.as_str()).arg(position).arg("MKSTREAM");
}

fn is_error(answer: &Value, code: &str) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == code)
}

/// Returns whether a group was created by this request; `false` if it existed.
fn created((answer, there): (Value, bool), stream: &Key) -> Result<bool> {
    if is_error(&answer, "BUSYGROUP") || there && is_error(&answer, "OOM") {
        return Ok(false);
    }
    reply::ok(answer).map(|_| true).map_err(|error| error.during(format_args!("create a group on {stream}")))
}

impl RedisBackend {
    /// Adds a topic and its partitions to the catalog's lists.
    async fn list(&self, stored: &TopicSpec) -> Result<TopicSpec> {
        let keys = &self.inner.keys;
        let all: Vec<TopicPartition> = stored.iter().collect();
        self.register_logs(&stored.name, &all).await?;
        // The topic goes last, so that a listed topic is complete.
        let [settings, _] = keys.patterns_of_settings();
        self.inner.list_name(&keys.topics(), &settings, stored.name.as_str()).await?;
        Ok(stored.clone())
    }

    async fn register_logs(&self, topic: &TopicName, all: &[TopicPartition]) -> Result<()> {
        let keys = &self.inner.keys;
        let partitions = keys.topic_partitions(topic);
        for chunk in all.chunks(CHUNK) {
            let logs: Vec<Key> = chunk.iter().map(|tp| keys.log(tp)).collect();
            let logs: Vec<&str> = logs.iter().map(Key::as_str).collect();
            self.inner.add(&partitions, &logs).await?;
        }
        Ok(())
    }

    /// Creates a group on the partitions that lack it, and returns those partitions; with each whether the group was on the
    /// retry log, so that it was lost on the log alone.
    async fn create_on(
        &self,
        all: &[TopicPartition],
        group: &GroupName,
        position: &str,
    ) -> Result<Vec<(Partition, bool)>> {
        let keys = &self.inner.keys;
        let mut missing = Vec::new();
        for chunk in all.chunks(CHUNK) {
            let streams: Vec<[Key; 2]> =
                chunk.iter().map(|tp| [keys.log(tp), keys.retry_log(tp, group)]).collect();
            let mut pipe = Pipeline::with_capacity(2 * chunk.len());
            let positions = self.positions(chunk, position).await?;
            for ((tp, [log, retry_log]), position) in chunk.iter().zip(&streams).zip(&positions) {
                if self.inner.packings.is_packed(&tp.topic) && position.contains('-') {
                    // It may begin inside of a pack.
                    let of_packs = [log, &keys.packs(tp), &keys.settled(tp, group)];
                    let script = &self.inner.scripts.create_packed;
                    pipe.add_command(script.eval(of_packs, &[group.as_str(), position]));
                } else {
                    create_command(&mut pipe, log, group, position);
                }
                // The retry log has entries of this group only: start at its beginning.
                create_command(&mut pipe, retry_log, group, "0");
            }
            let answers = self.inner.pool.send(&pipe).await?;
            // A server that is out of memory refuses the command before it checks whether the group exists.
            let there = match answers.iter().any(|answer| is_error(answer, "OOM")) {
                true => self.have(&streams, group).await?,
                false => vec![false; answers.len()],
            };
            let mut answers = answers.into_iter().zip(there);
            let mut created = |stream| answers.next().map_or(Ok(false), |answer| created(answer, stream));
            for (tp, [log, retry_log]) in chunk.iter().zip(&streams) {
                let (is_new, retries_are_new) = (created(log)?, created(retry_log)?);
                if is_new {
                    missing.push((tp.partition, !retries_are_new));
                }
            }
        }
        Ok(missing)
    }

    /// Returns whether a group exists on each of these streams.
    async fn have(&self, streams: &[[Key; 2]], group: &GroupName) -> Result<Vec<bool>> {
        let mut pipe = Pipeline::with_capacity(2 * streams.len());
        for stream in streams.as_flattened() {
            pipe.cmd("XINFO").arg("GROUPS").arg(stream.as_str());
        }
        let groups = self.inner.pool.send(&pipe).await?.into_iter();
        groups.map(|groups| Ok(reply::group(groups, group.as_str())?.is_some())).collect()
    }
}

#[async_trait]
impl Catalog for RedisBackend {
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        if let Err(refused) = spec.name.check_new() {
            let missing = |error: Error| if error.kind() == ErrorKind::NotFound { refused } else { error };
            self.topic(&spec.name).await.map_err(missing)?;
        }
        let stored = self.store_topic(spec, Mode::Create).await?;
        self.list(&stored).await
    }

    async fn restore_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        let stored = self.store_topic(spec, Mode::Restore).await?;
        self.list(&stored).await
    }

    async fn expand(&self, name: &TopicName, partitions: u32) -> Result<TopicSpec> {
        let stored = self.topic(name).await?;
        let mut problems = Problems::new("topic");
        problems.require(partitions <= MAX_PARTITIONS, || {
            format!("topic {name} cannot have {partitions} partitions, at most {MAX_PARTITIONS} are allowed")
        });
        problems.finish()?;
        if partitions <= stored.partitions {
            return Ok(stored);
        }
        let grown = TopicSpec::new(name.clone(), partitions)?
            .with_retention(stored.retention)
            .with_max_length(stored.max_length)
            .with_dead_letter_retention(stored.dead_letter_retention);
        let new: Vec<TopicPartition> = grown.iter().skip(stored.partitions as usize).collect();
        // List the new logs first: if this stops half-way, a deletion still finds everything that was created.
        self.register_logs(name, &new).await?;
        let before = self.groups(name).await?;
        for group in &before {
            self.create_on(&new, group, "0").await?;
        }
        // The count changes last: while a group is missing on a partition, entries there might be trimmed before the
        // group has read them. If this stops half-way, the topic has not grown, and calling it again does the rest.
        let meta = self.inner.keys.topic_meta(name);
        let call = self.inner.scripts.expand.call([&meta]).arg(partitions);
        script::run_one(&self.inner.pool, call).await?;
        // Groups created in between used the old count.
        for group in self.groups(name).await?.iter().filter(|group| !before.contains(group)) {
            self.create_on(&new, group, "0").await?;
        }
        self.topic(name).await
    }

    async fn count(
        &self,
        topic_partition: &TopicPartition,
        start: Start,
        end: Option<MessageId>,
        limit: u64,
    ) -> Result<u64> {
        let log = self.inner.keys.log(topic_partition);
        let from = match start {
            Start::Earliest => Some(MessageId::ZERO),
            Start::Latest => None,
            Start::After(id) => above(id),
            Start::At(time) => Some(MessageId::new(time.as_millis(), 0)),
            other => {
                let message = format!("entries cannot be counted from {other:?} here");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        let packed = self.inner.packings.is_packed(&topic_partition.topic);
        if start == Start::Earliest && end.is_none() && !packed {
            let mut pipe = Pipeline::new();
            pipe.cmd("XLEN").arg(log.as_str());
            let length = reply::count(self.inner.one(&log, &pipe).await?)?;
            return Ok(limit.min(length as u64));
        }
        let to = end.unwrap_or(MessageId::MAX);
        let Entries(counted) = self.inner.entries_between(&log, from, to, limit).await?;
        match from.filter(|from| packed && *from <= to) {
            Some(from) => {
                let more = self.inner.more_between(topic_partition, from.previous(), to, true).await?;
                Ok(limit.min(counted + more))
            }
            None => Ok(counted),
        }
    }

    async fn topic(&self, name: &TopicName) -> Result<TopicSpec> {
        self.stored_topic(name).await
    }

    async fn alter_topic(&self, name: &TopicName, change: &TopicChange) -> Result<TopicSpec> {
        self.store_change(name, change).await
    }

    async fn store_dictionary(&self, topic: &TopicSpec, dictionary: Bytes) -> Result<DictionaryName> {
        self.add_dictionary(topic, &dictionary).await
    }

    async fn dictionary(&self, topic: &TopicName, name: DictionaryName) -> Result<Option<Bytes>> {
        self.inner.stored_dictionary(topic, name).await
    }

    async fn delete_topic(&self, name: &TopicName) -> Result<bool> {
        let deleted = self.take_topic(name).await?;
        self.inner.packings.forget(name);
        Ok(deleted)
    }

    async fn delete_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        self.take_group(topic, group).await
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        let keys = &self.inner.keys;
        let [settings, _] = keys.patterns_of_settings();
        self.inner.names_or_found(&keys.topics(), &settings, |name| TopicName::new(name)).await
    }

    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated> {
        self.inner.packings.learn(topic);
        let position = position(start)?;
        if let Err(refused) = group.check_new()
            && !self.groups(&topic.name).await?.contains(group)
        {
            return Err(refused);
        }
        let starts = self.register(&topic.name, group, Mode::Create, &position).await?;
        let all: Vec<TopicPartition> = topic.iter().collect();
        // Where a group was lost its position is unknown: start at 0, since reading an entry twice is better than
        // never.
        let missing = self.create_on(&all, group, starts.as_deref().unwrap_or("0")).await?;
        for (partition, was_there) in &missing {
            if *was_there && starts.is_none() {
                let tp = TopicPartition::new(topic.name.clone(), partition.0);
                self.record_if_log_lost(&tp, group).await?;
            }
        }
        let mut partitions: Vec<Partition> = missing.into_iter().map(|(partition, _)| partition).collect();
        self.undo_if_deleted(&all, group).await?;
        partitions.extend(self.follow_growth(topic, group).await?);
        if starts.is_some() {
            self.is_everywhere(&topic.name, group).await?;
        }
        Ok(GroupCreated::new(starts.is_some(), partitions))
    }

    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        self.inner.names(&self.inner.keys.topic_groups(topic), |name| GroupName::new(name)).await
    }

    async fn restore_group(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<bool> {
        self.restore_on(topic_partition, group, after).await
    }

    async fn set_paused(&self, topic: &TopicName, group: &GroupName, paused: bool) -> Result<bool> {
        self.store_paused(topic, group, paused).await
    }

    async fn group_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState> {
        self.stored_state(topic, group).await
    }

    async fn stats(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionStats>> {
        self.group_stats(topic, group).await
    }

    async fn survey(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionSurvey>> {
        self.group_survey(topic, group).await
    }

    #[cfg(feature = "admin")]
    async fn pins(&self, topic: &TopicSpec) -> Result<Vec<Pin>> {
        self.topic_pins(topic).await
    }
}
