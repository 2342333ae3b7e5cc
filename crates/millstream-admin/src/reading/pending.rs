//! Pending entries of a group, over all partitions, in pages: by id, by idle time or by number of deliveries.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use millstream_core::inspect::{MAX_PAGE, Page, Pending};
use millstream_core::log::Source;
use millstream_core::{Error, ErrorKind, GroupName, MessageId, Partition, Result, TopicName, TopicPartition};

use crate::Admin;
use crate::reading::cursor::Cursor;
use crate::reading::merge::{Fetch, by_id, merge};
use crate::stats::lasting;

const SOURCES: [Source; 2] = [Source::Log, Source::Retry];

/// Order of a list of pending entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PendingOrder {
    /// By id, oldest first. Without a minimum, the cost of a page does not depend on the number of pending entries.
    #[default]
    Id,
    /// By idle time, longest first. Each page reads all pending entries once. An entry that is handed out again between two pages
    /// comes again, in the last ones; the others are in one page each.
    Idle,
    /// By number of deliveries, most first. Each page reads all pending entries once. An entry that is handed out again between
    /// two pages may be in both, or in none; the others are in one page each.
    Deliveries,
}

/// Query for pending entries.
#[derive(Clone, Debug)]
pub struct PendingQuery {
    /// Order. Default: by id.
    pub order: PendingOrder,
    /// Maximum number of entries in the answer. Default: 100.
    pub limit: usize,
    /// End of the previous page, of the same order and minimums. Default: start at the beginning.
    pub after: Option<Cursor>,
    /// Minimum idle time. Default: all entries.
    pub idle: Duration,
    /// Minimum number of deliveries. Default: all entries.
    pub deliveries: u64,
}

impl PendingQuery {
    fn takes(&self, pending: &Pending) -> bool {
        pending.idle >= self.idle && pending.deliveries >= self.deliveries
    }
}

impl Default for PendingQuery {
    fn default() -> Self {
        Self { order: PendingOrder::Id, limit: 100, after: None, idle: Duration::ZERO, deliveries: 0 }
    }
}

/// Pending entry, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingEntry {
    /// Partition of the entry.
    pub topic_partition: TopicPartition,
    /// Stream of the entry.
    pub source: Source,
    /// State of the pending entry.
    pub pending: Pending,
}

/// Part of a list that cannot be read.
#[derive(Clone, Debug)]
pub struct PartError {
    /// The partition.
    pub partition: Partition,
    /// The reason: an error that names the key.
    pub error: Error,
}

/// Page of pending entries.
#[derive(Clone, Debug)]
pub struct PendingPage {
    /// The entries.
    pub entries: Vec<PendingEntry>,
    /// Cursor for the next page; `None` at the end.
    pub next: Option<Cursor>,
    /// Partitions that are left out, in part or as a whole, since they cannot be read.
    pub errors: Vec<PartError>,
}

impl Admin {
    /// Returns the entries that were delivered to a group and are not settled, over all partitions that can be read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that does not exist; transient ones.
    pub async fn pending(
        &self,
        topic: &TopicName,
        group: &GroupName,
        query: &PendingQuery,
    ) -> Result<PendingPage> {
        let all: Vec<TopicPartition> = self.backend.catalog().topic(topic).await?.iter().collect();
        if query.after.is_some_and(|after| after.rank.is_some() != (query.order != PendingOrder::Id)) {
            return Err(Error::new(ErrorKind::InvalidConfig, "a cursor of a list in another order"));
        }
        match query.order {
            PendingOrder::Id => self.pending_by_id(all, group, query).await,
            PendingOrder::Idle => self.ranked(&all, group, query, |it| it.delivered.as_millis()).await,
            PendingOrder::Deliveries => self.ranked(&all, group, query, |it| u64::MAX - it.deliveries).await,
        }
    }

    async fn pending_by_id(
        &self,
        all: Vec<TopicPartition>,
        group: &GroupName,
        query: &PendingQuery,
    ) -> Result<PendingPage> {
        let lanes: Vec<(TopicPartition, Source)> =
            all.into_iter().flat_map(|tp| SOURCES.map(|source| (tp.clone(), source))).collect();
        let (cursor, inspect) = (query.after, self.backend.inspect()?);
        let fetch: Fetch<'_, Pending> = Box::new(|lane, behind, portion| {
            let (tp, source) = lanes[lane].clone();
            let after = behind
                .map(|(_, id)| id)
                .or(cursor.map(|cursor| cursor.after(lane)))
                .unwrap_or(MessageId::ZERO);
            Box::pin(async move {
                if query.idle.is_zero() && query.deliveries == 0 {
                    return inspect.pending(&tp, group, source, after, portion).await;
                }
                let (mut after, mut unreadable) = (after, None);
                loop {
                    let mut page = inspect.pending(&tp, group, source, after, MAX_PAGE).await?;
                    after = page.items.last().map_or(after, |last| last.id);
                    page.items.retain(|it| query.takes(it));
                    unreadable = unreadable.or(page.unreadable);
                    if !page.items.is_empty() || !page.more {
                        page.unreadable = unreadable;
                        return Ok(page);
                    }
                }
            })
        });
        let merged = merge(lanes.len(), false, query.limit, |it: &Pending| by_id(it.id), fetch).await?;
        let errors = merged.failed.into_iter();
        let errors = errors.map(|(lane, error)| PartError { partition: lanes[lane].0.partition, error });
        let entries = merged.items.into_iter().map(|(lane, pending)| {
            let (topic_partition, source) = lanes[lane].clone();
            PendingEntry { topic_partition, source, pending }
        });
        Ok(PendingPage { entries: entries.collect(), next: merged.next, errors: errors.collect() })
    }

    /// Returns the entries of the lowest rank behind the cursor, in one pass. Those of one rank are in the order of ids and lanes.
    async fn ranked(
        &self,
        all: &[TopicPartition],
        group: &GroupName,
        query: &PendingQuery,
        rank: fn(&Pending) -> u64,
    ) -> Result<PendingPage> {
        let (mut top, mut errors) = (Top::new(query.limit.saturating_add(1)), Vec::new());
        for (at, topic_partition) in all.iter().enumerate() {
            for (source, lane) in SOURCES.into_iter().zip(at * SOURCES.len()..) {
                let mut after = MessageId::ZERO;
                loop {
                    let inspect = self.backend.inspect()?;
                    let page = inspect.pending(topic_partition, group, source, after, MAX_PAGE).await;
                    let Page { items, more, unreadable, .. } = match lasting(page)? {
                        Ok(page) => page,
                        Err(error) => {
                            errors.push(PartError { partition: topic_partition.partition, error });
                            break;
                        }
                    };
                    if let Some(reason) = unreadable.filter(|_| after == MessageId::ZERO) {
                        let (partition, error) =
                            (topic_partition.partition, Error::new(ErrorKind::WrongType, reason));
                        errors.push(PartError { partition, error });
                    }
                    after = items.last().map_or(MessageId::MAX, |last| last.id);
                    for pending in items.into_iter().filter(|it| query.takes(it)) {
                        let key = Cursor { rank: Some(rank(&pending)), id: pending.id, lane };
                        if query.after.is_some_and(|after| key <= after) {
                            continue;
                        }
                        let entry =
                            PendingEntry { topic_partition: topic_partition.clone(), source, pending };
                        top.offer(Reverse(key), (key, entry));
                    }
                    if !more {
                        break;
                    }
                }
            }
        }
        let mut ranked = top.into_sorted();
        let is_more = ranked.len() > query.limit;
        ranked.truncate(query.limit);
        let next = ranked.last().map(|(key, _)| *key).filter(|_| is_more);
        let entries = ranked.into_iter().map(|(_, entry)| entry).collect();
        Ok(PendingPage { entries, next, errors })
    }
}

/// Collector of the `limit` largest items.
struct Top<K, T> {
    limit: usize,
    /// Keys, smallest first, with the index of their item.
    keys: BinaryHeap<Reverse<(K, usize)>>,
    items: Vec<Option<T>>,
}

impl<K: Ord, T> Top<K, T> {
    fn new(limit: usize) -> Self {
        Self { limit, keys: BinaryHeap::new(), items: Vec::new() }
    }

    fn offer(&mut self, key: K, item: T) {
        if self.keys.len() < self.limit {
            self.keys.push(Reverse((key, self.items.len())));
            self.items.push(Some(item));
        } else if self.keys.peek().is_some_and(|Reverse((least, _))| *least < key)
            && let Some(Reverse((_, at))) = self.keys.pop()
        {
            self.items[at] = Some(item);
            self.keys.push(Reverse((key, at)));
        }
    }

    /// Returns the items, largest first.
    fn into_sorted(mut self) -> Vec<T> {
        let keys = self.keys.into_sorted_vec();
        keys.into_iter().filter_map(|Reverse((_, at))| self.items[at].take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_top_is_the_end_of_the_sorted_whole(
            offered in proptest::collection::vec(any::<u16>(), 0..200),
            limit in 0usize..20,
        ) {
            let mut top = Top::new(limit);
            offered.iter().for_each(|item| top.offer(*item, *item));
            let mut expected = offered;
            expected.sort_unstable_by_key(|item| Reverse(*item));
            expected.truncate(limit);
            prop_assert_eq!(top.into_sorted(), expected);
        }
    }
}
