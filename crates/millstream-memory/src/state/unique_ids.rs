//! Ids of entries by unique id. Whether an entry is settled is not kept, but found in the log and in the retries of the groups.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use millstream_core::id::MessageId;
use millstream_core::log::{Append, Appended, DedupId, Source, UniqueIdentity, unique_id_of};
use millstream_core::{Result, Timestamp, TopicPartition, wire};

use super::{Group, Partition, State};

/// Number of records that are not worth a cleaning.
const LEAST: usize = 1_000;
/// Time between two cleanings, unless there are many more records than after the last one.
const EVERY: Duration = Duration::from_secs(60);
/// Age up to which a record is kept, so that its append can be repeated.
const KEPT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Default)]
pub(crate) struct UniqueIds {
    known: HashMap<DedupId, Record>,
    /// Number of records after the last cleaning, and its time.
    cleaned: (usize, Timestamp),
}

#[derive(Clone, Copy, Debug)]
struct Record {
    stored: MessageId,
    /// The append that stored it.
    send: u64,
}

impl State {
    pub(crate) fn append_unique(
        &mut self,
        append: &Append,
        unique: &UniqueIdentity,
        now: Timestamp,
    ) -> Result<Appended> {
        let place = |number, (stored, own)| match own {
            true => Appended::new(number, stored),
            false => Appended::before(number, stored),
        };
        let here = &append.topic_partition;
        for number in unique.earlier.iter().filter(|number| **number != here.partition) {
            let tp = TopicPartition { topic: here.topic.clone(), partition: *number };
            if let Some(found) = self.peek(&tp).and_then(|partition| partition.unsettled(unique)) {
                return Ok(place(*number, found));
            }
        }
        let partition = self.partition(here);
        if let Some(found) = partition.unsettled(unique) {
            return Ok(place(here.partition, found));
        }
        let fields = if append.fields.is_empty() { Vec::new() } else { append.stored_fields() };
        let stored = partition.append(now, &fields)?;
        partition.unique.known.insert(unique.id.clone(), Record { stored, send: unique.send });
        if partition.unique.is_large() {
            partition.clean_unique(now);
        }
        partition.wake.notify_waiters();
        Ok(Appended::new(here.partition, stored))
    }
}

impl UniqueIds {
    fn is_large(&self) -> bool {
        self.known.len() > 2 * self.cleaned.0 + LEAST
    }
}

impl Partition {
    /// Returns the entry that keeps another one with this id from being stored, and whether this append has stored it.
    fn unsettled(&self, item: &UniqueIdentity) -> Option<(MessageId, bool)> {
        let Record { stored, send } = *self.unique.known.get(&item.id)?;
        let own = send == item.send;
        let text = stored.to_string();
        let held = || {
            self.waits(&item.id, stored)
                || self.live().any(|group| {
                    group.parked.contains(stored)
                        || group
                            .redeliveries()
                            .any(|(origin, id)| origin == &text && id == item.id.as_bytes())
                })
        };
        (own || held()).then_some((stored, own))
    }

    /// Returns the groups that are on the log.
    fn live(&self) -> impl Iterator<Item = &Group> {
        self.groups.values().filter(|group| group.cursor.is_some())
    }

    /// Whether an entry is in the log, and a group has not settled it there. Without any group nobody has.
    fn waits(&self, id: &DedupId, origin: MessageId) -> bool {
        let mut cursors = self.live().filter_map(|group| group.cursor.as_ref()).peekable();
        let unread = cursors.peek().is_none()
            || cursors.any(|cursor| cursor.delivered < origin || cursor.pending.contains_key(&origin));
        let is_it = |fields: &wire::Fields| unique_id_of(fields) == Some(id.as_bytes());
        unread && self.log.get(origin).is_some_and(is_it)
    }

    /// Drops the records of settled entries, unless that was done within a minute.
    pub(crate) fn clean_unique_unless_recent(&mut self, now: Timestamp) {
        if self.unique.is_large() || now.saturating_duration_since(self.unique.cleaned.1) >= EVERY {
            self.clean_unique(now);
        }
    }

    fn clean_unique(&mut self, now: Timestamp) {
        let mut known = std::mem::take(&mut self.unique.known);
        let redelivered: HashSet<Bytes> =
            self.live().flat_map(Group::redeliveries).map(|(origin, _)| origin.clone()).collect();
        known.retain(|id, Record { stored, .. }| {
            now.saturating_duration_since(stored.timestamp()) < KEPT
                || self.waits(id, *stored)
                || self.live().any(|group| group.parked.contains(*stored))
                || redelivered.contains(stored.to_string().as_bytes())
        });
        self.unique = UniqueIds { cleaned: (known.len(), now), known };
    }
}

impl Group {
    /// Returns origins and unique ids of the redeliveries that the group has not settled.
    fn redeliveries(&self) -> impl Iterator<Item = (&Bytes, &[u8])> {
        let cursor = &self.retry_cursor;
        let unsettled = move |id: &MessageId| cursor.delivered < *id || cursor.pending.contains_key(id);
        self.retry.above(MessageId::ZERO).filter_map(move |(id, fields)| {
            let body = wire::body_of(Source::Retry, fields);
            let (name, origin) = fields.get(1).filter(|_| body.len() < fields.len())?;
            let id = unique_id_of(body).filter(|_| name == wire::ORIGIN && unsettled(id))?;
            Some((origin, id))
        })
    }
}
