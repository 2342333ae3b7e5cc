//! Losses: what the server's counters prove, and the record that stays of it.
//!
//! The record is a field of a hash that lives as long as what it is about: the state of a group, the settings of a topic
//! or of a delay queue.

use millstream_core::audit::{Audited, Fault, Finding, Loss, Scope};
use millstream_core::catalog::Catalog;
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::Source;
use millstream_core::name::GroupName;
use millstream_core::schedule::{Place, Schedule};
use millstream_core::timestamp::Timestamp;
use millstream_core::topic::{Retention, TopicPartition};
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply::{self, Entries, GroupInfo};
use crate::error::unexpected;
use crate::stored::note;

/// Maximum number of entries that are counted behind a group's position, and of notes that are read.
const MAX_COUNT: u64 = 100_000;

/// Part of XINFO STREAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamInfo {
    pub(crate) length: Entries,
    /// Largest id that the stream ever had.
    pub(crate) last: MessageId,
    pub(crate) first: Option<MessageId>,
    /// How many were ever appended.
    added: Option<Entries>,
    /// Largest id of an entry that was deleted by itself, and not trimmed from the beginning.
    deleted: Option<MessageId>,
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
pub(super) struct Record {
    pub(super) loss: Loss,
    /// Position of the group at which unread entries were last recorded.
    position: MessageId,
    /// What the counters said then: the part of their difference that is already recorded.
    counted: Entries,
    /// Messages beyond one an entry that were gone above the position then.
    beyond: u64,
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
struct Unread {
    new: u64,
    position: MessageId,
    counted: Entries,
    beyond: u64,
}

impl RedisBackend {
    /// Returns the hash and the field that have the record of a scope.
    fn record_of(&self, scope: &Scope) -> Option<(Key, String)> {
        let keys = &self.inner.keys;
        match scope {
            Scope::Topic(_) => None,
            Scope::Partition(tp) => Some((keys.topic_meta(&tp.topic), format!("lost:{}", tp.partition.0))),
            Scope::Group(tp, group) => {
                Some((keys.group_state(&tp.topic, group), format!("lost:{}", tp.partition.0)))
            }
            Scope::Shard(shard) => Some((keys.queue_meta(&shard.queue), format!("lost:{}", shard.shard))),
        }
    }

    async fn record(&self, scope: &Scope) -> Result<Option<Record>> {
        let Some((key, field)) = self.record_of(scope) else { return Ok(None) };
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HGET").arg(key.as_str()).arg(&field);
        let text = reply::maybe_bytes(self.inner.one(&key, &pipe).await?)?;
        // A record that cannot be parsed still shows that there was a loss.
        let unknown = Record { loss: Loss::new(0, 0, 1, None), ..Record::default() };
        Ok(text.map(|text| Record::parse(&String::from_utf8_lossy(&text)).unwrap_or(unknown)))
    }

    /// Adds a loss to the record of a scope.
    pub(crate) async fn record_loss(&self, scope: &Scope, loss: Loss) -> Result<()> {
        self.record_with(scope, loss, None).await
    }

    async fn record_with(&self, scope: &Scope, loss: Loss, unread: Option<&Unread>) -> Result<()> {
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

    /// Returns the record of a scope as a finding.
    pub(super) async fn losses_of(&self, scope: &Scope) -> Result<Audited> {
        let mut page = Audited::new(1);
        if let Some(record) = self.record(scope).await? {
            page.findings.push(Finding::lost(Fault::EntriesLost, scope, "record", record.loss));
        }
        Ok(page)
    }

    /// Returns how many unread messages of a group are gone, as far as the counters prove it and it is not recorded.
    ///
    /// The server counts the entries that were appended, and those that the group has passed. What is neither passed nor
    /// there has left the log unread. How many messages packs among them had is known as long as the packs are noted; otherwise each counts
    /// as one. `log` is read before the group, so that a running consumer can only make the number
    /// smaller.
    async fn unread_gone(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        log: &StreamInfo,
        info: &GroupInfo,
    ) -> Result<Option<Unread>> {
        let position = info.last_delivered;
        let Some(added) = log.added.filter(|_| position < log.last) else { return Ok(None) };
        let read = match info.read {
            Some(read) => read,
            // A group that never read has passed nothing. What left the log before the group was created is not its loss,
            // unless nothing was to leave it at all.
            None if position == MessageId::ZERO
                && self.topic(&tp.topic).await?.retention == Retention::Keep =>
            {
                Entries(0)
            }
            None => return Ok(None),
        };
        let left = if log.first.is_none_or(|first| first > position) {
            log.length
        } else if log.deleted.is_some_and(|deleted| deleted > position) {
            // What is appended from now on does not count.
            let log_key = self.inner.keys.log(tp);
            self.inner.entries_between(&log_key, Some(position.next()), log.last, MAX_COUNT).await?
        } else {
            return Ok(None);
        };
        if left.0 >= MAX_COUNT && log.length != left {
            return Ok(None);
        }
        let Some(counted) = added.0.checked_sub(read.0 + left.0) else {
            let (added, read, left) = (added.0, read.0, left.0);
            let why = "the server's counters contradict each other: nothing is known of unread entries that are gone";
            tracing::warn!(log = %self.inner.keys.log(tp), %group, added, read, left, "{why}");
            return Ok(None);
        };
        if counted == 0 {
            return Ok(None);
        }
        // A topic that drops what nobody has read has lost nothing that it promised to keep.
        if self.topic(&tp.topic).await?.retention.is_lossy() {
            return Ok(None);
        }
        let before = self.record(&Scope::Group(tp.clone(), group.clone())).await?.unwrap_or_default();
        // Some servers never count what was skipped, others do with the next read: the difference then starts over.
        let counted = Entries(counted);
        let goes_on =
            before.counted > Entries(0) && (before.position == position || before.counted <= counted);
        let known = if goes_on { before.counted } else { Entries(0) };
        let new = Entries(counted.0.saturating_sub(known.0));
        if new == Entries(0) {
            return Ok(None);
        }
        if !self.inner.packings.is_packed(&tp.topic) {
            return Ok(Some(Unread { new: new.0, position, counted, beyond: 0 }));
        }
        let beyond = self.inner.more_gone(tp, position).await?;
        // Above the position of the record some are recorded; those that have left the packs meanwhile count no more.
        let new_beyond = match goes_on {
            true if before.position == position => beyond.saturating_sub(before.beyond),
            true => self.inner.more_gone(tp, before.position).await?.saturating_sub(before.beyond),
            false => beyond,
        };
        Ok(Some(Unread { new: new.with(new_beyond), position, counted, beyond }))
    }

    /// Returns the finding of unread entries that are gone.
    pub(super) async fn unread_missing(
        &self,
        scope: &Scope,
        (tp, group): (&TopicPartition, &GroupName),
        log: &StreamInfo,
        info: &GroupInfo,
    ) -> Result<Option<Finding>> {
        let gone = self.unread_gone(tp, group, log, info).await?;
        let lost =
            |it: Unread| Finding::lost(Fault::UnreadMissing, scope, "log", Loss::new(it.new, 0, 0, None));
        Ok(gone.map(lost))
    }

    /// Records unread entries that are gone. Returns whether there were any.
    pub(super) async fn record_unread(&self, tp: &TopicPartition, group: &GroupName) -> Result<bool> {
        let log = self.inner.keys.log(tp);
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("XINFO").arg("STREAM").arg(log.as_str());
        pipe.cmd("XINFO").arg("GROUPS").arg(log.as_str());
        let [stream, groups] = reply::tuple(Value::Array(self.inner.pool.send(&pipe).await?))?;
        let Some((stream, info)) = StreamInfo::read(stream)?.zip(reply::group(groups, group.as_str())?)
        else {
            return Ok(false);
        };
        let Some(gone) = self.unread_gone(tp, group, &stream, &info).await? else { return Ok(false) };
        let scope = Scope::Group(tp.clone(), group.clone());
        self.record_with(&scope, Loss::new(gone.new, 0, 0, None), Some(&gone)).await?;
        Ok(true)
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

    /// Returns the scope of a place.
    pub(super) fn scope_of(place: &Place) -> Scope {
        match place {
            Place::Partition(tp) => Scope::Partition(tp.clone()),
            Place::Shard(shard) => Scope::Shard(shard.clone()),
        }
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
