//! Retention pins: finds the groups that keep entries from being dropped.

use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::catalog::Pin;
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::name::GroupName;
use millstream_core::sorted::sort;
use millstream_core::topic::{TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use super::CHUNK;
use super::count_range::Walk;
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::snapshots::look::{GroupLook, Look};

impl RedisBackend {
    pub(super) async fn topic_pins(&self, topic: &TopicSpec) -> Result<Vec<Pin>> {
        let all: Vec<TopicPartition> = topic.iter().collect();
        let mut pins = Vec::new();
        for chunk in all.chunks(CHUNK) {
            let looks = self.look_at(chunk).await?;
            let looks: Vec<_> = chunk.iter().zip(&looks).collect();
            pins.extend(self.pins_on(&looks).await?.into_iter().map(|(_, pin)| pin));
        }
        Ok(pins)
    }

    /// Returns the group that keeps the most entries of each of these logs, which may be of several topics.
    pub(super) async fn pins_on<'a>(
        &self,
        looks: &[(&'a TopicPartition, &'a Look)],
    ) -> Result<Vec<(&'a TopicPartition, Pin)>> {
        let mut pins = Vec::new();
        for chunk in looks.chunks(CHUNK) {
            let found = chunk.iter().filter_map(|(tp, look)| Some((*tp, *look, pin(tp, look)?)));
            let mut found: Vec<_> = found.collect();
            if found.is_empty() {
                continue;
            }
            let logs: Vec<Key> = found.iter().map(|(tp, ..)| self.inner.keys.log(tp)).collect();
            let bytes = self.inner.bytes_of(&logs).await?;
            let mut walks = Vec::with_capacity(found.len());
            for (((_, look, pin), log), bytes) in found.iter().zip(&logs).zip(&bytes) {
                let (from, to) = (pin.watermark, next(look).previous());
                // The pinned entries may be the whole log, which needs no counting.
                let from = if whole(look, pin) { None } else { Some(from) };
                let walk = Walk::new(log.clone(), from, to, Pin::LIMIT);
                walks.push(walk.with_entries_of(*bytes, look.length));
            }
            while walks.iter().any(|walk| !walk.is_over()) {
                self.inner.step(&mut walks).await?;
            }
            let mut pipe = Pipeline::with_capacity(found.len());
            for ((.., pin), log) in found.iter().zip(&logs) {
                pipe.cmd("XINFO").arg("CONSUMERS").arg(log.as_str()).arg(pin.group.as_str());
            }
            let consumers = self.inner.pool.send(&pipe).await?;
            let mut up_to = Vec::with_capacity(found.len());
            for ((((_, look, pin), walk), bytes), consumers) in
                found.iter_mut().zip(walks).zip(bytes).zip(consumers)
            {
                (pin.messages, pin.exact) = match whole(look, pin) {
                    true => (look.length.0, true),
                    false => (walk.counted, walk.is_complete()),
                };
                pin.bytes = bytes.checked_div(look.length.0).unwrap_or(0).saturating_mul(pin.messages);
                pin.idle = idle(consumers)?;
                up_to.push(if whole(look, pin) { look.last.unwrap_or_default() } else { walk.up_to() });
            }
            self.count_messages(&mut found, &up_to).await?;
            pins.extend(found.into_iter().map(|(tp, _, pin)| (tp, pin)));
        }
        Ok(pins)
    }

    /// Counts messages in the place of the entries that stay, up to these ids.
    async fn count_messages(
        &self,
        pins: &mut [(&TopicPartition, &Look, Pin)],
        up_to: &[MessageId],
    ) -> Result<()> {
        let packed = pins.iter().zip(up_to).map(|((tp, _, pin), up_to)| async move {
            if pin.messages == 0 || !self.inner.packings.is_packed(&tp.topic) {
                return Ok(0);
            }
            self.inner.more_between(tp, pin.watermark.previous(), *up_to, false).await
        });
        let more = join_all(packed).await;
        for ((.., pin), more) in pins.iter_mut().zip(more) {
            pin.messages += more?;
        }
        Ok(())
    }
}

/// Returns the group that has settled the least of a log with entries, unless it has settled all of them. Groups with
/// invalid names keep entries as well, but cannot be reported, and are skipped here. Those of instances keep none.
fn pin(tp: &TopicPartition, look: &Look) -> Option<Pin> {
    let names = look.groups.iter().filter_map(|group| {
        let name =
            GroupName::new(std::str::from_utf8(&group.name).ok()?).ok().filter(|it| !it.is_instance())?;
        Some((group.watermark(), name, group.oldest()))
    });
    let (watermark, group, oldest) = names.min()?;
    look.last.filter(|last| watermark <= *last)?;
    // Entries that were deleted while they were pending do not count.
    let oldest = oldest.unwrap_or(watermark).max(look.first.unwrap_or(watermark));
    Some(Pin::new(tp.partition, group, oldest))
}

/// Returns whether all entries are kept for this group alone.
fn whole(look: &Look, pin: &Pin) -> bool {
    let others = look.last.is_some_and(|last| next(look) > last);
    others && look.first.is_some_and(|first| pin.watermark <= first)
}

/// Returns the watermark of the second slowest group, at most the end of the log; the end if there is no such group.
fn next(look: &Look) -> MessageId {
    let end = look.last.unwrap_or_default().next();
    let mut marks: Vec<_> = look.groups.iter().map(GroupLook::watermark).collect();
    sort(&mut marks);
    marks.get(1).copied().unwrap_or(end).min(end)
}

/// Returns the time since any consumer of the group last requested entries.
fn idle(consumers: Value) -> Result<Option<Duration>> {
    if matches!(consumers, Value::ServerError(_)) {
        // The group was deleted meanwhile.
        return Ok(None);
    }
    let mut least: Option<Duration> = None;
    for consumer in reply::array(consumers)? {
        for (name, value) in reply::pairs(consumer)? {
            if &*reply::bytes(name)? == b"idle" {
                let idle = Duration::from_millis(u64::try_from(reply::int(value)?).unwrap_or(0));
                least = Some(least.map_or(idle, |least| least.min(idle)));
            }
        }
    }
    Ok(least)
}
