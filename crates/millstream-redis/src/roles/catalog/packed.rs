//! Numbers of messages in ranges of packed logs: the entries, and what their packs hold beyond one message each.

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::scripts::script;
use crate::snapshots::look::Look;

/// A pack, as the stream of packs has it.
#[derive(Clone, Copy)]
struct Pack {
    id: MessageId,
    count: u64,
    /// Messages beyond one an entry, in this pack and all before it.
    more: u64,
}

/// What is known of an id.
struct Around {
    /// The newest pack up to it.
    up_to: Option<Pack>,
    /// The oldest pack above it.
    above: Option<Pack>,
}

/// How often figures are read again that contradict each other.
const AGAIN: usize = 5;

/// Number of logs whose deleted packs are counted in one request.
const TOGETHER: usize = 8;

impl Around {
    /// Returns the messages beyond one an entry up to the id; `before` are those that had left the stream of packs, and `first` is the
    /// first entry of the log. `parts`: whether the messages up to the id count of a pack that holds it, and not all or none.
    fn more(&self, id: MessageId, before: u64, first: MessageId, parts: bool) -> u64 {
        let more = self.up_to.map_or(before, |pack| pack.more);
        if !parts {
            return more;
        }
        // Of the next pack, the first messages may be below the id.
        let next = self.above.filter(|pack| pack.id.ms == id.ms && pack.id > id && pack.id >= first);
        let behind = next.map(|pack| (pack.count, pack.id.seq - id.seq));
        more + behind.map_or(0, |(count, behind)| count.saturating_sub(behind))
    }
}

impl Inner {
    /// Returns how many messages more than entries there are above one id, up to another. `parts`: whether of a pack that holds one of
    /// these, the messages count that are there; otherwise the ids are those of entries.
    pub(super) async fn more_between(
        &self,
        tp: &TopicPartition,
        above: MessageId,
        up_to: MessageId,
        parts: bool,
    ) -> Result<u64> {
        let (log, packs) = (self.keys.log(tp), self.keys.packs(tp));
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("XRANGE").arg(log.as_str()).arg("-").arg("+").arg("COUNT").arg(1);
        let first = reply::entries(self.one(&log, &pipe).await?)?.pop();
        // The newest pack is known when it has left the log: what is below the first entry does not count.
        let Some((first, _)) = first else { return Ok(0) };
        if up_to < first && above < first && up_to.ms != first.ms {
            return Ok(0);
        }
        for _ in 0..AGAIN {
            if let Some(more) = self.more_now(tp, [above, up_to], first, parts).await? {
                return Ok(more);
            }
        }
        Err(unexpected(format_args!("{packs} has fewer messages up to an id than up to one below")))
    }

    /// Counts once; `None` if the figures contradict each other, since packs left the log meanwhile.
    async fn more_now(
        &self,
        tp: &TopicPartition,
        [above, up_to]: [MessageId; 2],
        first: MessageId,
        parts: bool,
    ) -> Result<Option<u64>> {
        let (before, [low, high]) = self.around(tp, [above, up_to], first.previous()).await?;
        let more = high.more(up_to, before, first, parts).checked_sub(low.more(above, before, first, parts));
        let Some(more) = more.filter(|more| *more > 0) else { return Ok(more) };
        // Where too many packs may be missing to be looked at, as many as were seen.
        let missing = self.missing_above(&[(tp, &[above, up_to])]).await?.pop().unwrap_or_default();
        Ok(missing.above[0].checked_sub(missing.above[1]).and_then(|missing| more.checked_sub(missing)))
    }

    /// Returns the packs around two ids, or around `floor` for what is up to a smaller one; before that the messages beyond one an entry of
    /// those that have left the stream of packs.
    async fn around(
        &self,
        tp: &TopicPartition,
        ids: [MessageId; 2],
        floor: MessageId,
    ) -> Result<(u64, [Around; 2])> {
        let packs = self.keys.packs(tp);
        let mut pipe = Pipeline::with_capacity(5);
        pipe.cmd("XRANGE").arg(packs.as_str()).arg("-").arg("+").arg("COUNT").arg(1);
        for id in ids {
            let known = id.max(floor).to_string();
            pipe.cmd("XREVRANGE").arg(packs.as_str()).arg(known).arg("-").arg("COUNT").arg(1);
            // There is nothing above the largest id.
            let from = if id == MessageId::MAX { "+".to_owned() } else { id.next().to_string() };
            pipe.cmd("XRANGE").arg(packs.as_str()).arg(from).arg("+").arg("COUNT").arg(1);
        }
        let answers = self.pool.send(&pipe).await?.into_iter().map(pack).collect::<Result<Vec<_>>>();
        let answers = answers.map_err(|error| error.during(format_args!("read {packs}")))?;
        let [oldest, low_up_to, low_above, high_up_to, high_above] = answers[..] else {
            return Err(unexpected("too few answers"));
        };
        let before = oldest.map_or(0, |pack| (pack.more + 1).saturating_sub(pack.count));
        let low = Around { up_to: low_up_to, above: low_above };
        Ok((before, [low, Around { up_to: high_up_to, above: high_above }]))
    }

    #[cfg(feature = "admin")]
    /// Returns how many messages more than entries are gone from a log above an id: those of packs that were deleted, or trimmed, as far
    /// as these are still known.
    pub(crate) async fn more_gone(&self, tp: &TopicPartition, above: MessageId) -> Result<u64> {
        let log = self.keys.log(tp);
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("XRANGE").arg(log.as_str()).arg("-").arg("+").arg("COUNT").arg(1);
        let first = reply::entries(self.one(&log, &pipe).await?)?.pop().map(|(id, _)| id);
        let left = first.unwrap_or(MessageId::MAX).previous().max(above);
        let zero = MessageId::ZERO;
        let (before, [low, high]) = self.around(tp, [above, left], zero).await?;
        // Packs that are not known any more make it less.
        let low = low.more(above, before, zero, true);
        let trimmed = if left > above { high.more(left, before, zero, false).saturating_sub(low) } else { 0 };
        let missing = self.missing_above(&[(tp, &[left, MessageId::MAX])]).await?.pop();
        Ok(trimmed + missing.unwrap_or_default().above[0])
    }

    /// Returns the pack that is the entry with this id.
    async fn pack_at(&self, tp: &TopicPartition, entry: MessageId) -> Result<Option<Pack>> {
        let (packs, id) = (self.keys.packs(tp), entry.to_string());
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("XRANGE").arg(packs.as_str()).arg(&id).arg(&id);
        pack(self.one(&packs, &pipe).await?)
    }

    /// Returns the id of the first message of an entry: that of a pack is the id of its last one.
    pub(crate) async fn first_message_of(&self, tp: &TopicPartition, entry: MessageId) -> Result<MessageId> {
        let count = self.pack_at(tp, entry).await?.map_or(1, |pack| pack.count);
        Ok(MessageId::new(entry.ms, (entry.seq + 1).saturating_sub(count)))
    }
}

/// Messages beyond one an entry of packs that were deleted between others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Whether all were counted: the others are too many to be looked at.
    pub(crate) exact: bool,
    /// Id of the log's first entry, when they were counted.
    first: Option<MessageId>,
    /// How many there are above two positions.
    pub(crate) above: [u64; 2],
}

/// Messages beyond one an entry that are missing from a log, since their packs were deleted. `None` where that is not known: more packs may
/// be missing than can be looked at, or the log has lost its first entry since the snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holes {
    /// In all of it.
    pub(crate) length: Option<u64>,
    /// Above the position of a group.
    pub(crate) unread: Option<u64>,
}

impl Inner {
    /// Counts what is missing above two positions of each of these logs.
    pub(crate) async fn missing_above(
        &self,
        asks: &[(&TopicPartition, &[MessageId; 2])],
    ) -> Result<Vec<Missing>> {
        let calls = asks.iter().map(|(tp, positions)| {
            let call = self.scripts.missing_packed.call([&self.keys.log(tp), &self.keys.packs(tp)]);
            positions.iter().fold(call, |call, position| call.arg(position.to_string()))
        });
        // Some at a time: each copies up to 1 MiB, and the server would work on all of one pipeline without a break.
        let (mut answers, calls) = (Vec::with_capacity(asks.len()), calls.collect::<Vec<_>>());
        let mut calls = calls.into_iter().peekable();
        while calls.peek().is_some() {
            answers.extend(script::run(&self.pool, calls.by_ref().take(TOGETHER).collect()).await);
        }
        let answers = answers.into_iter().zip(asks);
        let read = answers.map(|(answer, (tp, _))| {
            let read = answer.and_then(|answer| {
                let [exact, first, low, high] = reply::tuple(answer)?;
                let first = if first == Value::Nil { None } else { Some(reply::id(first)?) };
                let above = [reply::count(low)? as u64, reply::count(high)? as u64];
                Ok(Missing { exact: reply::int(exact)? == 1, first, above })
            });
            read.map_err(|error| error.during(format_args!("count deleted packs of {tp}")).at(*tp))
        });
        read.collect()
    }

    /// Counts what is missing from each of these logs, and above the position of this group on it.
    pub(super) async fn missing_from(
        &self,
        logs: &[(&TopicPartition, &Look)],
        group: &str,
    ) -> Result<Vec<Holes>> {
        // Nearly always none: no entry behind the first one was deleted by itself.
        let whole = |look: &Look| look.more == 0 || look.deleted.is_none() || look.deleted < look.first;
        let positions = |look: &Look| {
            let below = look.first.unwrap_or_default().previous();
            [below, look.group(group).map_or(below, |group| group.position)]
        };
        let holed: Vec<_> = logs.iter().filter(|(_, look)| !whole(look)).collect();
        let positions: Vec<_> = holed.iter().map(|(_, look)| positions(look)).collect();
        let asks: Vec<_> =
            holed.iter().zip(&positions).map(|((tp, _), positions)| (*tp, positions)).collect();
        let mut counted = self.missing_above(&asks).await?.into_iter();
        let missing = logs.iter().map(|(_, look)| {
            if whole(look) {
                return Holes { length: Some(0), unread: Some(0) };
            }
            let counted = counted.next().filter(|it| it.exact && it.first == look.first).map(|it| it.above);
            let group = look.group(group);
            // A group that has read beyond the last one that was deleted misses none, however many there are below.
            let is_past = group.is_some_and(|group| Some(group.position) >= look.deleted);
            let unread = if is_past { Some(0) } else { counted.map(|[_, unread]| unread) };
            // More than there were: packs that were appended, and deleted, behind the snapshot.
            let within = |missing: Option<u64>, all: u64| missing.filter(|missing| *missing <= all);
            Holes {
                length: within(counted.map(|[length, _]| length), look.more),
                unread: within(unread, group.map_or(0, |group| group.more_unread)),
            }
        });
        Ok(missing.collect())
    }
}

fn pack(answer: Value) -> Result<Option<Pack>> {
    let Some((id, Some(fields))) = reply::entries(answer)?.pop() else { return Ok(None) };
    let number = |name: &str| {
        let value = fields.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let number = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        number.ok_or_else(|| unexpected(format_args!("a pack without {name}")))
    };
    Ok(Some(Pack { id, count: number("count")?, more: number("more")? }))
}
