//! The inspect role: plain commands that only read, in pages and in chunks of partitions.

mod packed;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::history::History;
use millstream_core::id::MessageId;
use millstream_core::inspect::{
    Inspect, MAX_PAGE, MAX_PAGE_BYTES, Overview, OverviewQuery, Ownership, Page, Parked, Pending, Range,
    Reading, Server, Stored, Stream, Usage,
};
use millstream_core::keys::{Key, Keys};
use millstream_core::leases::Holder;
use millstream_core::log::Source;
use millstream_core::name::{GroupName, TopicName};
use millstream_core::sorted::sort_by;
use millstream_core::topic::{TopicPartition, TopicSpec};
use millstream_core::wire::{self, Field, Fields};
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::entries::unpacking::open_alone;
use crate::error::unexpected;
use crate::operations::page::{PORTION, size};
use crate::scripts::script;
use crate::server;
use crate::stored::item;
use crate::stored::note;
use crate::usage;

/// Largest number of messages that stand up to an id in its own entry.
const MOST: usize = millstream_core::packing::MAX_MESSAGES as usize;
/// Maximum number of partitions of one pipeline.
const CHUNK: usize = 200;

#[async_trait]
impl Inspect for RedisBackend {
    async fn entries(
        &self,
        topic_partition: &TopicPartition,
        stream: &Stream,
        range: Range,
        limit: usize,
    ) -> Result<Page<Stored>> {
        let keys = &self.inner.keys;
        let key = match stream {
            Stream::Retry(group) => keys.retry_log(topic_partition, group),
            _ => return self.messages(topic_partition, range, limit).await,
        };
        let lead = |fields: &[Field]| Some(fields.len() - wire::body_of(Source::Retry, fields).len());
        self.page(&key, range, limit, lead).await
    }

    async fn pending(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        source: Source,
        after: MessageId,
        limit: usize,
    ) -> Result<Page<Pending>> {
        let limit = limit.min(MAX_PAGE);
        if limit == 0 || after == MessageId::MAX {
            return Ok(Page::empty());
        }
        let key = self.inner.stream(topic_partition, group, source);
        let held = self.inner.keys.held(topic_partition, group);
        let (above, mut count) = (format!("({after}"), limit);
        let (rows, noted, now) = loop {
            let mut pipe = Pipeline::with_capacity(4);
            pipe.cmd("TIME");
            pipe.cmd("XPENDING").arg(key.as_str()).arg(group.as_str()).arg(&above).arg("+").arg(count);
            pipe.cmd("TIME");
            pipe.cmd("HLEN").arg(held.as_str());
            let answers = Value::Array(self.inner.pool.send(&pipe).await?);
            let [before, rows, behind, noted] = reply::tuple(answers)?;
            // The server replies how long entries are idle. Only if no millisecond began meanwhile is it certain since when.
            let now = reply::time(before)?;
            if count == 1 || now == reply::time(behind)? {
                break (rows, noted, now);
            }
            count = count.div_ceil(2);
        };
        if reply::is_no_group(&rows) {
            return Ok(Page::empty());
        }
        let rows = rows_of(rows, now).map_err(|error| error.during(format_args!("pending of {key}")))?;
        let mut more = rows.len() == count;
        let rows = if source == Source::Log && self.inner.packings.is_packed(&topic_partition.topic) {
            let mut messages = self.pending_messages(topic_partition, group, rows, limit + MOST).await?;
            messages.retain(|row| row.id > after);
            more |= messages.len() > limit;
            messages.truncate(limit);
            messages
        } else {
            rows
        };
        let (noted, unreadable) = match reply::count(noted) {
            Ok(noted) => (noted > 0, None),
            // The entries are shown all the same.
            Err(error) if error.kind() == ErrorKind::WrongType => {
                (false, Some(error.during(format_args!("notes in {held}")).to_string()))
            }
            Err(error) => return Err(error.during(format_args!("notes in {held}"))),
        };
        let mut notes = Vec::new();
        if noted && !rows.is_empty() {
            let ids: Vec<MessageId> = rows.iter().map(|row| row.id).collect();
            let answers = self.inner.pool.send(&note::ask(&held, source, &ids)).await?;
            notes = note::told(answers, &held, &ids)?;
        }
        let mut notes = notes.into_iter();
        let noted = |row| Pending { note: notes.next().flatten(), ..row };
        let mut page = Page::new(rows.into_iter().map(noted).collect(), more);
        page.unreadable = unreadable.filter(|_| !page.items.is_empty());
        Ok(page)
    }

    async fn parked(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: Option<(Timestamp, MessageId)>,
        limit: usize,
    ) -> Result<Page<Parked>> {
        let keys = &self.inner.keys;
        let (due, items) = (keys.retry_due(topic_partition, group), keys.retry_items(topic_partition, group));
        let limit = limit.min(PORTION);
        if limit == 0 {
            return Ok(Page::empty());
        }
        let call = self.inner.scripts.scheduled.call([&due, &items]);
        let call = match after {
            Some((due, origin)) => call.arg(&reply::score_of(due)[..]).arg(origin.to_string()),
            None => call.args(["", ""]),
        };
        let [more, entries] = reply::tuple(script::run_one(&self.inner.bulk, call.arg(limit)).await?)?;
        let mut page = Page::new(Vec::new(), reply::int(more)? == 1);
        let mut bytes = 0;
        for entry in reply::array(entries)? {
            if bytes >= MAX_PAGE_BYTES {
                page.more = true;
                break;
            }
            let [origin, score, item] = reply::tuple(entry)?;
            let origin = reply::bytes(origin)?;
            let Ok(origin) = MessageId::from_bytes(&origin) else {
                tracing::warn!(key = %due, "a retry with an invalid id is skipped: {origin:?}");
                continue;
            };
            let mut parked = parked(origin, reply::score_time(score)?, reply::maybe_bytes(item)?.as_ref());
            // What this client cannot read is shown as it is stored.
            let _ = open_alone(&mut parked.body, 0);
            bytes += size(&parked.body);
            page.items.push(parked);
        }
        if page.more && page.items.is_empty() {
            return Err(unexpected(format_args!("{due} is full of what is no id")));
        }
        Ok(page)
    }

    async fn owners(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<Ownership>> {
        let keys = &self.inner.keys;
        let all: Vec<TopicPartition> = topic.iter().collect();
        let mut owners = Vec::with_capacity(all.len());
        for chunk in all.chunks(CHUNK) {
            let mut pipe = Pipeline::with_capacity(OF_OWNER * chunk.len());
            for tp in chunk {
                owner_commands(&mut pipe, keys, tp, group);
            }
            let mut answers = self.inner.pool.send(&pipe).await?.into_iter();
            for tp in chunk {
                let answers = answers.by_ref().take(OF_OWNER).collect();
                owners.push(ownership_or_unreadable(tp, group, answers)?);
            }
        }
        Ok(owners)
    }

    async fn overview(&self, topics: &[TopicName], query: &OverviewQuery) -> Option<Vec<Result<Overview>>> {
        Some(self.overviews(topics, query).await)
    }

    async fn consumers(&self, topic_partition: &TopicPartition, group: &GroupName) -> Result<Vec<Reading>> {
        let sources = [Source::Log, Source::Retry];
        let keys: [Key; 2] = sources.map(|source| self.inner.stream(topic_partition, group, source));
        let mut pipe = Pipeline::with_capacity(2);
        for key in &keys {
            pipe.cmd("XINFO").arg("CONSUMERS").arg(key.as_str()).arg(group.as_str());
        }
        let answers = self.inner.pool.send(&pipe).await?;
        let mut readings = Vec::new();
        for ((answer, source), key) in answers.into_iter().zip(sources).zip(&keys) {
            if reply::is_missing_key(&answer) || reply::is_no_group(&answer) {
                continue;
            }
            let on = |error: Error| error.during(format_args!("consumers of {key}"));
            let mut some = Vec::new();
            for info in reply::array(answer).map_err(on)? {
                some.push(reading(source, info).map_err(on)?);
            }
            sort_by(&mut some, |a, b| a.consumer.cmp(&b.consumer));
            if source == Source::Log && self.inner.packings.is_packed(&topic_partition.topic) {
                self.count_pending(topic_partition, group, &mut some).await?;
            }
            readings.extend(some);
        }
        Ok(readings)
    }

    async fn server(&self) -> Result<Server> {
        server::look(&self.inner).await
    }

    async fn servers(&self) -> Result<Vec<Server>> {
        server::look_at_all(&self.inner).await
    }

    async fn usage(&self, partitions: &[TopicPartition], groups: &[GroupName]) -> Result<Vec<Usage>> {
        usage::look(&self.inner, partitions, groups).await
    }
}

fn rows_of(rows: Value, now: Timestamp) -> Result<Vec<Pending>> {
    let rows = reply::array(rows)?.into_iter().map(|row| {
        let [id, consumer, idle, deliveries] = reply::tuple(row)?;
        let idle = millis(reply::int(idle)?);
        Ok(Pending {
            id: reply::id(id)?,
            consumer: reply::text(consumer)?,
            idle,
            delivered: now.saturating_sub(idle),
            deliveries: u64::try_from(reply::int(deliveries)?).unwrap_or(0),
            note: None,
        })
    });
    rows.collect()
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Parses a parked retry as far as its item is valid: attempt, error, history and body. The error is left out where
/// the history ends with it.
fn parked(origin: MessageId, due: Timestamp, item: Option<&Bytes>) -> Parked {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let attempt = |bytes: &Bytes| text(bytes).parse().unwrap_or(1);
    if let Some(([number, history], body)) = item.and_then(item::unpack::<2>) {
        let history = History::parse(&text(&history));
        let error = history.failures().last().map(|failed| failed.error.clone()).unwrap_or_default();
        return Parked { origin, due, attempt: attempt(&number), error, history, body };
    }
    if let Some(([number, error, history], body)) = item.and_then(item::unpack::<3>) {
        let (error, history) = (text(&error), History::parse(&text(&history)));
        return Parked { origin, due, attempt: attempt(&number), error, history, body };
    }
    let (error, history, body) = (String::new(), History::default(), Fields::new());
    Parked { origin, due, attempt: 0, error, history, body }
}

/// Number of commands for the owner of a partition.
pub(crate) const OF_OWNER: usize = 3;

/// Adds the commands whose replies [`ownership_or_unreadable`] takes.
pub(crate) fn owner_commands(pipe: &mut Pipeline, keys: &Keys, tp: &TopicPartition, group: &GroupName) {
    let (lease, fence) = (keys.lease(tp, group), keys.fence(tp, group));
    pipe.cmd("HMGET").arg(fence.as_str()).arg(&["owner", "token", "epoch", "ttl", "ends"]);
    pipe.cmd("GET").arg(lease.as_str());
    pipe.cmd("PTTL").arg(lease.as_str());
}

/// Parses the ownership of a partition. It is not known where lease or fence have a wrong type.
pub(crate) fn ownership_or_unreadable(
    tp: &TopicPartition,
    group: &GroupName,
    answers: Vec<Value>,
) -> Result<Ownership> {
    match ownership(tp, answers)
        .map_err(|error| error.during(format_args!("owner of {tp} for {group}")).at(tp))
    {
        Err(error) if error.kind() == ErrorKind::WrongType => {
            let mut unknown = Ownership::free(tp.partition);
            unknown.unreadable = Some(error.to_string());
            Ok(unknown)
        }
        read => read,
    }
}

fn ownership(tp: &TopicPartition, answers: Vec<Value>) -> Result<Ownership> {
    let [last, held, pttl] = reply::tuple(Value::Array(answers))?;
    let [owner, token, epoch, ttl, ends] = reply::tuple(last)?;
    let number = |value: Value| -> Result<Option<u64>> {
        Ok(reply::maybe_bytes(value)?.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok()))
    };
    let (token, epoch, ttl) = (reply::maybe_bytes(token)?, number(epoch)?, number(ttl)?);
    let (held, left) = (reply::maybe_bytes(held)?, u64::try_from(reply::int(pttl)?).unwrap_or(0));
    // The same rule as in the script `acquire`: a lease without an expiry, or with a later one than was set, counts as
    // free.
    let lives = held.is_some() && held == token && left > 0 && left <= ttl.unwrap_or(0).saturating_mul(2);
    let holder = match (reply::maybe_bytes(owner)?, epoch) {
        (Some(owner), Some(epoch)) if lives => {
            Some(Holder::new(String::from_utf8_lossy(&owner), epoch, Duration::from_millis(left)))
        }
        _ => None,
    };
    let ends = reply::maybe_bytes(ends)?
        .map_or(0, |ends| crate::roles::leases::ends(&String::from_utf8_lossy(&ends)).len());
    let mut ownership = Ownership::free(tp.partition);
    (ownership.holder, ownership.ttl, ownership.ends) = (holder, ttl.map(Duration::from_millis), ends);
    Ok(ownership)
}

fn reading(source: Source, info: Value) -> Result<Reading> {
    let mut reading =
        Reading { source, consumer: String::new(), pending: 0, idle: Duration::ZERO, inactive: None };
    for (name, value) in reply::pairs(info)? {
        match &*reply::bytes(name)? {
            b"name" => reading.consumer = reply::text(value)?,
            b"pending" => reading.pending = u64::try_from(reply::int(value)?).unwrap_or(0),
            b"idle" => reading.idle = millis(reply::int(value)?),
            // -1 stands for a consumer that never got an entry.
            b"inactive" => {
                reading.inactive = u64::try_from(reply::int(value)?).ok().map(Duration::from_millis);
            }
            _ => {}
        }
    }
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_item_are_a_retry_without_a_body() {
        let parked =
            parked(MessageId::new(1, 0), Timestamp::from_millis(5), Some(&Bytes::from_static(b"garbage")));
        assert_eq!((parked.attempt, parked.body.len()), (0, 0));
    }
}
