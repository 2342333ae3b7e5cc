//! Records of losses: what the server's counters prove, and what stays of it.
//!
//! The record is a field of a hash that lives as long as what it is about: the state of a group, the settings of a topic
//! or of a delay queue.

use millstream_core::audit::{Loss, Scope};
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::Source;
use millstream_core::name::GroupName;
use millstream_core::schedule::Schedule;
use millstream_core::timestamp::Timestamp;
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply::{self, Entries};
use crate::error::unexpected;
use crate::stored::note;

/// Maximum number of entries that are counted behind a group's position, and of notes that are read.
pub(crate) const MAX_COUNT: u64 = 100_000;

/// Part of XINFO STREAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamInfo {
    pub(crate) length: Entries,
    /// Largest id that the stream ever had.
    pub(crate) last: MessageId,
    pub(crate) first: Option<MessageId>,
    /// How many were ever appended.
    pub(crate) added: Option<Entries>,
    /// Largest id of an entry that was deleted by itself, and not trimmed from the beginning.
    pub(crate) deleted: Option<MessageId>,
}

impl StreamInfo {
    /// Parses the reply; `None` if there is no stream.
    pub(crate) fn read(info: Value) -> Result<Option<Self>> {
        if reply::is_missing_key(&info) {
            return Ok(None);
        }
        let (mut read, mut has_last) = (Self::default(), false);
        let number = |value| Ok(Entries(u64::try_from(reply::int(value)?).unwrap_or(0)));
        for (name, value) in reply::pairs(reply::ok(info)?)? {
            match &*reply::bytes(name)? {
                b"length" => read.length = number(value)?,
                b"last-generated-id" => (read.last, has_last) = (reply::id(value)?, true),
                b"entries-added" => read.added = Some(number(value)?),
                b"max-deleted-entry-id" => read.deleted = Some(reply::id(value)?),
                b"first-entry" if value != Value::Nil => {
                    let [id, _fields] = reply::tuple(value)?;
                    read.first = Some(reply::id(id)?);
                }
                _ => {}
            }
        }
        if has_last { Ok(Some(read)) } else { Err(unexpected("a stream without a last id")) }
    }

    /// Whether no entry was ever in it.
    fn is_new(&self) -> bool {
        self.last == MessageId::ZERO && self.added.unwrap_or_default() == Entries(0)
    }

    /// Whether no entry ever left it.
    fn is_whole(&self) -> bool {
        self.added == Some(self.length)
    }
}

/// Returns whether any group in a reply of XINFO GROUPS stands above the beginning.
fn is_read(groups: Value) -> Result<bool> {
    for info in reply::array(groups)? {
        for (name, value) in reply::pairs(info)? {
            if &*reply::bytes(name)? == b"last-delivered-id" && reply::id(value)? > MessageId::ZERO {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Record of a loss as it is stored: `at unread pending logs position counted beyond`, numbers in decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) loss: Loss,
    /// Position of the group at which unread entries were last recorded.
    pub(crate) position: MessageId,
    /// What the counters said then: the part of their difference that is already recorded.
    pub(crate) counted: Entries,
    /// Messages beyond one an entry that were gone above the position then.
    pub(crate) beyond: u64,
}

impl Record {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (at, unread, pending, logs) = (number()?, number()?, number()?, number()?);
        let loss = Loss::new(unread, pending, logs, Some(Timestamp::from_millis(at)));
        let position = words.next()?.parse().ok()?;
        let counted = Entries(words.next()?.parse().ok()?);
        let beyond = words.next().map_or(Some(0), |word| word.parse().ok())?;
        Some(Self { loss, position, counted, beyond })
    }

    fn text(&self) -> String {
        let Self { loss, position, counted, beyond } = self;
        let at = loss.at.unwrap_or_default().as_millis();
        format!("{at} {} {} {} {position} {} {beyond}", loss.unread, loss.pending, loss.logs, counted.0)
    }
}

/// Unread messages that are gone: how many are not recorded yet, and what to record with them.
pub(crate) struct Unread {
    #[cfg(feature = "admin")]
    pub(crate) new: u64,
    pub(crate) position: MessageId,
    pub(crate) counted: Entries,
    pub(crate) beyond: u64,
}

impl RedisBackend {
    /// Returns the hash and the field that have the record of a scope.
    fn record_of(&self, scope: &Scope) -> Option<(Key, String)> {
        let keys = &self.inner.keys;
        match scope {
            Scope::Topic(_) | Scope::Queue(_) => None,
            Scope::Partition(tp) => Some((keys.topic_meta(&tp.topic), format!("lost:{}", tp.partition.0))),
            Scope::Group(tp, group) => {
                Some((keys.group_state(&tp.topic, group), format!("lost:{}", tp.partition.0)))
            }
            Scope::Shard(shard) => Some((keys.queue_meta(&shard.queue), format!("lost:{}", shard.shard))),
        }
    }

    pub(crate) async fn record(&self, scope: &Scope) -> Result<Option<Record>> {
        let Some((key, field)) = self.record_of(scope) else { return Ok(None) };
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HGET").arg(key.as_str()).arg(&field);
        let answer = self.inner.looks.send(&pipe).await?.pop().unwrap_or_default();
        let text = reply::maybe_bytes(answer).map_err(|error| error.during(format_args!("catalog {key}")))?;
        // A record that cannot be parsed still shows that there was a loss.
        let unknown = Record { loss: Loss::new(0, 0, 1, None), ..Record::default() };
        Ok(text.map(|text| Record::parse(&String::from_utf8_lossy(&text)).unwrap_or(unknown)))
    }

    /// Adds a loss to the record of a scope.
    pub(crate) async fn record_loss(&self, scope: &Scope, loss: Loss) -> Result<()> {
        self.record_with(scope, loss, None).await
    }

    pub(crate) async fn record_with(&self, scope: &Scope, loss: Loss, unread: Option<&Unread>) -> Result<()> {
        let Some((key, field)) = self.record_of(scope) else { return Ok(()) };
        let mut record = self.record(scope).await?.unwrap_or_default();
        let now = self.now().await?;
        record.loss = record.loss.and(Loss::new(loss.unread, loss.pending, loss.logs, Some(now)));
        if let Some(unread) = unread {
            (record.position, record.counted, record.beyond) =
                (unread.position, unread.counted, unread.beyond);
        }
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HSET").arg(key.as_str()).arg(&field).arg(record.text());
        self.inner.one(&key, &pipe).await.map(drop)
    }

    /// Whether no entry ever left a log, and this message, or one below, was never in it; for an id that a message had.
    pub(crate) async fn begins_above(
        &self,
        tp: &TopicPartition,
        log: &StreamInfo,
        id: MessageId,
    ) -> Result<bool> {
        let above = |first: &MessageId| id > MessageId::ZERO && log.is_whole() && *first > id;
        let Some(first) = log.first.filter(above) else { return Ok(false) };
        Ok(self.inner.first_message_of(tp, first).await? > id)
    }

    /// Returns the loss of a whole log, with the pending entries that are known from their notes.
    pub(crate) async fn log_lost(&self, tp: &TopicPartition, group: &GroupName) -> Result<Loss> {
        let held = self.inner.keys.held(tp, group);
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HLEN").arg(held.as_str());
        let all = reply::count(self.inner.one(&held, &pipe).await?)? as u64;
        let mut pending = 0;
        if (1..=MAX_COUNT).contains(&all) {
            let mut pipe = Pipeline::with_capacity(1);
            pipe.cmd("HKEYS").arg(held.as_str());
            let of_log = format!("{}:", note::word(Source::Log));
            for name in reply::array(self.inner.one(&held, &pipe).await?)? {
                pending += u64::from(reply::bytes(name)?.starts_with(of_log.as_bytes()));
            }
        }
        Ok(Loss::new(0, pending, 1, None))
    }

    /// Records that a log was lost where a group has just been created again, if that is so: the log has never had an
    /// entry, though the group was there before; or nothing ever left it, all of it is newer than the last lease of the
    /// group, and no other group has read it.
    ///
    /// Once there is a new log with the group on it, nothing else shows that there was another one.
    pub(crate) async fn record_if_log_lost(&self, tp: &TopicPartition, group: &GroupName) -> Result<()> {
        let (log, fence) = (self.inner.keys.log(tp), self.inner.keys.fence(tp, group));
        let mut pipe = Pipeline::with_capacity(3);
        pipe.cmd("XINFO").arg("STREAM").arg(log.as_str());
        pipe.cmd("XINFO").arg("GROUPS").arg(log.as_str());
        pipe.cmd("HGET").arg(fence.as_str()).arg("epoch");
        let [stream, groups, epoch] = reply::tuple(Value::Array(self.inner.pool.send(&pipe).await?))?;
        let Some(stream) = StreamInfo::read(stream)? else { return Ok(()) };
        let epoch = reply::maybe_bytes(epoch)?;
        let granted: Option<u64> = epoch.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok());
        let newer = stream.first.zip(granted).is_some_and(|(first, granted)| first.ms > granted);
        if stream.is_new() || newer && stream.is_whole() && !is_read(groups)? {
            let loss = self.log_lost(tp, group).await?;
            self.record_loss(&Scope::Group(tp.clone(), group.clone()), loss).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let loss = Loss::new(3, 2, 1, Some(Timestamp::from_millis(1_700_000_000_000)));
        let record = Record { loss, position: MessageId::new(5, 7), counted: Entries(9), beyond: 4 };
        assert_eq!(record.text(), "1700000000000 3 2 1 5-7 9 4");
        assert_eq!(Record::parse(&record.text()), Some(record));
        let of_before = Record { beyond: 0, ..record };
        assert_eq!(Record::parse("1700000000000 3 2 1 5-7 9"), Some(of_before), "as it was written before");
        for damaged in ["", "1", "1 2 3 4 x 5", "a 1 1 1 1-1 1", "1 1 1 1 1-1 1 x"] {
            assert_eq!(Record::parse(damaged), None, "{damaged:?}");
        }
    }
}
