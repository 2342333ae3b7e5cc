//! Losses that an audit finds: unread entries that are gone, and those that are recorded.

use millstream_core::Timestamp;
use millstream_core::audit::{Audited, Fault, Finding, Loss, Scope};
use millstream_core::catalog::Catalog;
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::name::GroupName;
use millstream_core::schedule::Place;
use millstream_core::topic::{Retention, TopicPartition};
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply::{self, Entries, GroupInfo};
use crate::stored::losses::{MAX_COUNT, StreamInfo, Unread};

/// Time by which a read may seem older than the entry that it returned, in milliseconds: the server takes the times one after the other.
const CLOCK_MS: u64 = 1_000;

/// Returns when a consumer of a group has read last, or tried to, in milliseconds by the server's clock. `None` if it has no consumers, or
/// somebody was granted the partition after that: members that share it read under names which are forgotten.
pub(super) fn last_read(consumers: Value, epoch: Value, now: Timestamp) -> Result<Option<u64>> {
    if reply::is_missing_key(&consumers) || reply::is_no_group(&consumers) {
        return Ok(None);
    }
    let (now, mut last) = (now.as_millis(), None);
    for consumer in reply::array(consumers)? {
        for (name, value) in reply::pairs(consumer)? {
            if &*reply::bytes(name)? == b"idle" {
                last = last.max(Some(now.saturating_sub(u64::try_from(reply::int(value)?).unwrap_or(0))));
            }
        }
    }
    // A fence of another type is found elsewhere.
    let granted = reply::text(epoch).ok().and_then(|epoch| epoch.parse::<u64>().ok()).unwrap_or(0);
    Ok(last.filter(|last| granted <= last.saturating_add(CLOCK_MS)))
}

impl RedisBackend {
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

    /// Returns the finding of a position that was moved by hand beyond entries which nobody has read.
    ///
    /// The entry at the position is newer than the last read of any consumer. A position that clients of Millstream have set has no
    /// consumers: they create the group anew. So it is known until a consumer reads on, and not of entries that were there when one
    /// last read.
    pub(super) async fn skipped(
        &self,
        scope: &Scope,
        log: &Key,
        (position, end): (MessageId, MessageId),
        read: Option<u64>,
    ) -> Result<Option<Finding>> {
        let Some(read) = read.filter(|read| position.ms > read.saturating_add(CLOCK_MS)) else {
            return Ok(None);
        };
        let first = MessageId::new(read.saturating_add(1), 0);
        let there = self.inner.entries_between(log, Some(first), position, MAX_COUNT).await?.0;
        // They may have been trimmed since, as settled ones; the end of the log was an entry.
        let some = there.max(u64::from(position == end));
        if some == 0 {
            return Ok(None);
        }
        let (at, since) = (position.timestamp(), Timestamp::from_millis(read));
        let detail = format!(
            "stands at {position} of {at}, and nobody has read since {since}; entries skipped: at least {some}"
        );
        Ok(Some(Finding::new(Fault::PositionSkipped, scope, "log", detail)))
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

    /// Returns the scope of a place.
    pub(super) fn scope_of(place: &Place) -> Scope {
        match place {
            Place::Partition(tp) => Scope::Partition(tp.clone()),
            Place::Shard(shard) => Scope::Shard(shard.clone()),
        }
    }
}
