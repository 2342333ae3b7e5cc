//! The catalog role: plain commands, in an order that leaves nothing half visible.

use async_trait::async_trait;
use millstream_core::catalog::{Catalog, FORMAT, GroupCreated, PartitionStats, Start};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::name::{GroupName, TopicName};
use millstream_core::topic::{Partition, Retention, TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use crate::backend::{Inner, RedisBackend};
use crate::connection::Line;
use crate::error::unexpected;
use crate::reply;

/// The fields of a topic's meta hash.
const META: [&str; 3] = ["partitionCount", "format", "retention"];
/// The most partitions that one pipeline looks at: a topic may have 16,384.
const CHUNK: usize = 500;

impl Inner {
    async fn one(&self, key: &Key, pipe: &Pipeline) -> Result<Value> {
        let answer = self.pool.send(pipe).await?.pop().unwrap_or_default();
        reply::ok(answer).map_err(|error| error.during(format_args!("catalog {key}")))
    }

    /// The names in a set, sorted. What is no name was put there by somebody else and is passed over.
    async fn names<T: Ord>(&self, key: &Key, parse: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
        let mut pipe = Pipeline::new();
        pipe.cmd("SMEMBERS").arg(key.as_str());
        let mut names = Vec::new();
        for member in reply::array(self.one(key, &pipe).await?)? {
            match parse(&reply::text(member)?) {
                Ok(name) => names.push(name),
                Err(error) => tracing::warn!(%key, "passed over in the catalog: {error}"),
            }
        }
        names.sort();
        Ok(names)
    }
}

fn spec(name: &TopicName, meta: Value) -> Result<TopicSpec> {
    let [partitions, format, retention] = reply::tuple(meta)?;
    if [&partitions, &format, &retention].iter().all(|value| **value == Value::Nil) {
        return Err(Error::new(ErrorKind::NotFound, format!("topic {name} does not exist")));
    }
    let damaged =
        |what: &str| Error::new(ErrorKind::Protocol, format!("topic {name}: stored {what} makes no sense"));
    let number = |value: Value, what: &str| -> Result<u32> {
        reply::text(value).ok().and_then(|text| text.parse().ok()).ok_or_else(|| damaged(what))
    };
    // The format comes first: a newer one may give every other field another meaning.
    let format = number(format, "format")?;
    if format > FORMAT {
        let message = format!("topic {name} has format {format}, this version knows {FORMAT}");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let partitions = number(partitions, "partitionCount")?;
    let retention = reply::text(retention).map_err(|_| damaged("retention"))?;
    let retention =
        Retention::parse(&retention).map_err(|error| error.during(format_args!("topic {name}")))?;
    let spec = TopicSpec::new(name.clone(), partitions).map_err(|_| damaged("partitionCount"))?;
    Ok(spec.with_retention(retention))
}

fn create_command(pipe: &mut Pipeline, stream: &Key, group: &GroupName, position: &str) {
    pipe.cmd("XGROUP").arg("CREATE").arg(stream.as_str()).arg(group.as_str()).arg(position).arg("MKSTREAM");
}

/// Whether a group was created now, or was there.
fn created(answer: Value, stream: &Key) -> Result<bool> {
    if matches!(&answer, Value::ServerError(error) if error.code() == "BUSYGROUP") {
        return Ok(false);
    }
    reply::ok(answer).map(|_| true).map_err(|error| error.during(format_args!("create a group on {stream}")))
}

#[async_trait]
impl Catalog for RedisBackend {
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        let keys = &self.inner.keys;
        let meta = keys.topic_meta(&spec.name);
        let mut pipe = Pipeline::new();
        // In a transaction, so that nobody reads half of it; field by field, so that the first one wins.
        pipe.cmd("MULTI");
        let values = [spec.partitions.to_string(), FORMAT.to_string(), spec.retention.as_str().to_owned()];
        for (field, value) in META.iter().zip(values) {
            pipe.cmd("HSETNX").arg(meta.as_str()).arg(field).arg(value);
        }
        pipe.cmd("HMGET").arg(meta.as_str()).arg(&META);
        pipe.cmd("EXEC");
        let on_meta = |error: Error| error.during(format_args!("create topic in {meta}"));
        let answers = self.inner.pool.send(&pipe).await?;
        let mut done = Value::Nil;
        for answer in answers {
            done = reply::ok(answer).map_err(on_meta)?;
        }
        let mut last = Value::Nil;
        for answer in reply::array(done)? {
            last = reply::ok(answer).map_err(on_meta)?;
        }
        let stored = self::spec(&spec.name, last)?;

        let partitions = keys.topic_partitions(&spec.name);
        let logs: Vec<Key> = stored.iter().map(|tp| keys.log(&tp)).collect();
        for chunk in logs.chunks(CHUNK) {
            let mut pipe = Pipeline::new();
            pipe.cmd("SADD").arg(partitions.as_str());
            for log in chunk {
                pipe.arg(log.as_str());
            }
            self.inner.one(&partitions, &pipe).await?;
        }
        // Last, so that a topic that is listed is whole.
        let registry = keys.topics();
        let mut pipe = Pipeline::new();
        pipe.cmd("SADD").arg(registry.as_str()).arg(spec.name.as_str());
        self.inner.one(&registry, &pipe).await?;
        Ok(stored)
    }

    async fn topic(&self, name: &TopicName) -> Result<TopicSpec> {
        let meta = self.inner.keys.topic_meta(name);
        let mut pipe = Pipeline::new();
        pipe.cmd("HMGET").arg(meta.as_str()).arg(&META);
        spec(name, self.inner.one(&meta, &pipe).await?)
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        self.inner.names(&self.inner.keys.topics(), |name| TopicName::new(name)).await
    }

    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated> {
        let position = match start {
            Start::Earliest => "0".to_owned(),
            Start::Latest => "$".to_owned(),
            Start::After(id) => id.to_string(),
            other => {
                let message = format!("a group cannot start at {other:?} here");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        let keys = &self.inner.keys;
        let groups = keys.topic_groups(&topic.name);
        let mut pipe = Pipeline::new();
        pipe.cmd("SADD").arg(groups.as_str()).arg(group.as_str());
        let mut result = GroupCreated {
            new: reply::int(self.inner.one(&groups, &pipe).await?)? == 1,
            partitions: Vec::new(),
        };

        let all: Vec<TopicPartition> = topic.iter().collect();
        for chunk in all.chunks(CHUNK) {
            let streams: Vec<[Key; 2]> =
                chunk.iter().map(|tp| [keys.log(tp), keys.retry_log(tp, group)]).collect();
            let mut pipe = Pipeline::with_capacity(2 * chunk.len());
            for [log, retry_log] in &streams {
                create_command(&mut pipe, log, group, &position);
                // Nothing in the retry log is for anybody else: it is read from its beginning.
                create_command(&mut pipe, retry_log, group, "0");
            }
            let mut answers = self.inner.pool.send(&pipe).await?.into_iter();
            for (tp, [log, retry_log]) in chunk.iter().zip(&streams) {
                if created(answers.next().unwrap_or_default(), log)? {
                    result.partitions.push(tp.partition);
                }
                created(answers.next().unwrap_or_default(), retry_log)?;
            }
        }
        Ok(result)
    }

    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        self.inner.names(&self.inner.keys.topic_groups(topic), |name| GroupName::new(name)).await
    }

    async fn restore_group(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<()> {
        let keys = &self.inner.keys;
        let (log, retry_log) = (keys.log(topic_partition), keys.retry_log(topic_partition, group));
        let mut pipe = Pipeline::new();
        pipe.cmd("XINFO").arg("STREAM").arg(log.as_str());
        let info = self.inner.pool.send(&pipe).await?.pop().unwrap_or_default();
        let newest =
            newest_id(info).map_err(|error| error.during(format_args!("restore a group on {log}")))?;
        // A log that ends below `after` is not the one that `after` was read from: it was deleted, or a
        // fail-over lost its end. What is in it, or comes with a smaller id, may never have been read.
        let after = if newest >= after { after } else { MessageId::ZERO };

        // Whatever lost the group may have lost the set as well.
        let groups = keys.topic_groups(&topic_partition.topic);
        let mut pipe = Pipeline::with_capacity(3);
        pipe.cmd("SADD").arg(groups.as_str()).arg(group.as_str());
        create_command(&mut pipe, &log, group, &after.to_string());
        create_command(&mut pipe, &retry_log, group, "0");
        for (answer, key) in self.inner.pool.send(&pipe).await?.into_iter().zip([&groups, &log, &retry_log]) {
            created(answer, key)?;
        }
        Ok(())
    }

    async fn stats(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionStats>> {
        let keys = &self.inner.keys;
        let all: Vec<TopicPartition> = topic.iter().collect();
        let mut stats = Vec::with_capacity(all.len());
        for chunk in all.chunks(CHUNK) {
            let mut pipe = Pipeline::with_capacity(6 * chunk.len());
            for tp in chunk {
                let (log, retry_log) = (keys.log(tp), keys.retry_log(tp, group));
                pipe.cmd("XLEN").arg(log.as_str());
                pipe.cmd("XINFO").arg("GROUPS").arg(log.as_str());
                pipe.cmd("XLEN").arg(retry_log.as_str());
                pipe.cmd("XINFO").arg("GROUPS").arg(retry_log.as_str());
                pipe.cmd("ZCARD").arg(keys.retry_due(tp, group).as_str());
                pipe.cmd("XLEN").arg(keys.dead_letters(tp, group).as_str());
            }
            let mut answers = self.inner.pool.send(&pipe).await?.into_iter();
            for tp in chunk {
                let answers: Vec<Value> = answers.by_ref().take(6).collect();
                let one = partition_stats(tp.partition, group, answers);
                stats.push(one.map_err(|error| error.during(format_args!("stats of {tp} for {group}")))?);
            }
        }
        Ok(stats)
    }
}

/// The largest id a stream ever had; zero if there is none.
fn newest_id(info: Value) -> Result<MessageId> {
    if reply::is_missing_key(&info) {
        return Ok(MessageId::ZERO);
    }
    for (name, value) in reply::pairs(reply::ok(info)?)? {
        if &*reply::bytes(name)? == b"last-generated-id" {
            return reply::id(value);
        }
    }
    Err(unexpected("a stream without a last id"))
}

fn partition_stats(partition: Partition, group: &GroupName, answers: Vec<Value>) -> Result<PartitionStats> {
    let [length, log, retry_length, retry_log, parked, dead] = reply::tuple(Value::Array(answers))?;
    let number = |value: Value| -> Result<u64> { Ok(u64::try_from(reply::int(value)?).unwrap_or(0)) };
    let log = reply::group(log, group.as_str())?;
    let retry_log = reply::group(retry_log, group.as_str())?.unwrap_or_default();
    let mut stats = PartitionStats::empty(partition);
    stats.length = number(length)?;
    if let Some(log) = log {
        stats.lag = log.lag;
        stats.pending = log.pending + retry_log.pending;
    }
    // What was read from the retry log is pending or deleted: the rest waits to be read. (Its lag would be
    // unknown as soon as an entry was deleted.)
    stats.retrying = number(parked)? + number(retry_length)?.saturating_sub(retry_log.pending);
    stats.dead = number(dead)?;
    Ok(stats)
}
