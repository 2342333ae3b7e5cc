//! The inspect role in memory.

use async_trait::async_trait;
use millstream_core::inspect::{
    Inspect, MAX_PAGE, MAX_PAGE_BYTES, Ownership, Page, Parked, Pending, Range, Reading, Server, Stored,
    Stream, Structure, Usage,
};
use millstream_core::{
    GroupName, History, MessageId, Resource, Result, Timestamp, TopicPartition, TopicSpec, log::Source,
};

use crate::MemoryBackend;
use crate::state::{Group, Item};
use crate::stream::{self, Cursor, bytes};

#[async_trait]
impl Inspect for MemoryBackend {
    async fn entries(
        &self,
        topic_partition: &TopicPartition,
        stream: &Stream,
        range: Range,
        limit: usize,
    ) -> Result<Page<Stored>> {
        let state = self.lock();
        let Some(partition) = state.peek(topic_partition) else { return Ok(Page::empty()) };
        let entries = match stream {
            Stream::Retry(group) => partition.groups.get(group).map(|group| &group.retry),
            _ => Some(&partition.log),
        };
        let Some(entries) = entries.filter(|_| !range.is_empty()) else { return Ok(Page::empty()) };
        let between = entries.between(range.after, range.before);
        let stored = |(id, fields): &(MessageId, _)| Stored::new(*id, Clone::clone(fields));
        let size = |stored: &Stored| bytes(&stored.fields);
        Ok(if range.newest_first {
            page(between.rev().map(stored), limit, size)
        } else {
            page(between.map(stored), limit, size)
        })
    }

    async fn pending(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        source: Source,
        after: MessageId,
        limit: usize,
    ) -> Result<Page<Pending>> {
        let now = self.now();
        let mut state = self.lock();
        let cursor = state.group(topic_partition, group).and_then(|group| cursor(group, source));
        let pending = cursor
            .map(|cursor| cursor.pending_above(after, limit.min(MAX_PAGE) + 1, now))
            .unwrap_or_default();
        Ok(page(pending.into_iter(), limit, |_| 0))
    }

    async fn parked(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: Option<(Timestamp, MessageId)>,
        limit: usize,
    ) -> Result<Page<Parked>> {
        let mut state = self.lock();
        let Some(group) = state.group(topic_partition, group) else { return Ok(Page::empty()) };
        let parked = group.parked.page(after, limit.min(MAX_PAGE) + 1).map(parked);
        Ok(page(parked, limit, |parked: &Parked| bytes(&parked.body)))
    }

    async fn owners(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<Ownership>> {
        let now = self.now();
        let state = self.lock();
        let owner = |tp: TopicPartition| {
            let partition = tp.partition;
            let fence = state.fences.get(&Resource::partition(tp, group.clone()));
            let mut ownership = Ownership::free(partition);
            ownership.holder = fence.and_then(|fence| fence.holder(now));
            ownership.ttl = fence.map(|fence| fence.ttl);
            ownership.ends = fence.map_or(0, |fence| fence.ends.len());
            ownership
        };
        Ok(topic.iter().map(owner).collect())
    }

    async fn consumers(&self, topic_partition: &TopicPartition, group: &GroupName) -> Result<Vec<Reading>> {
        let now = self.now();
        let mut state = self.lock();
        let Some(group) = state.group(topic_partition, group) else { return Ok(Vec::new()) };
        let of = |source| cursor(group, source).map(|cursor| cursor.readings(source, now));
        Ok([Source::Log, Source::Retry].into_iter().filter_map(of).flatten().collect())
    }

    async fn server(&self) -> Result<Server> {
        let mut server = Server::default();
        server.kind = "memory".to_owned();
        server.version = Some(env!("CARGO_PKG_VERSION").to_owned());
        server.ahead_ms = Some(0);
        Ok(server)
    }

    /// Reports usage; bytes are those of names and values only.
    async fn usage(&self, partitions: &[TopicPartition], groups: &[GroupName]) -> Result<Vec<Usage>> {
        let state = self.lock();
        let mut usage = Vec::new();
        for tp in partitions {
            let Some(partition) = state.peek(tp) else { continue };
            let mut add = |group: Option<&GroupName>, structure, items, bytes| {
                if items > 0 {
                    usage.push(Usage {
                        partition: tp.partition,
                        group: group.cloned(),
                        structure,
                        items,
                        bytes,
                        unreadable: None,
                    });
                }
            };
            add(None, Structure::Log, partition.log.len() as u64, partition.log.bytes());
            let [waiting, recurring] = partition.timetable.sizes();
            add(None, Structure::Delayed, waiting.0, waiting.1);
            add(None, Structure::Recurring, recurring.0, recurring.1);
            for (name, group) in groups.iter().filter_map(|name| partition.groups.get_key_value(name)) {
                add(Some(name), Structure::RetryLog, group.retry.len() as u64, group.retry.bytes());
                let parked = group.parked.page(None, usize::MAX);
                let parked =
                    parked.filter_map(|(_, _, item)| item).map(|item| stream::bytes(&item.body)).sum();
                add(Some(name), Structure::Parked, group.parked.len() as u64, parked);
                add(Some(name), Structure::DeadLetters, group.dead.len() as u64, group.dead.bytes());
            }
        }
        Ok(usage)
    }
}

/// Returns the position of a group in one of its streams, if it exists.
fn cursor(group: &Group, source: Source) -> Option<&Cursor> {
    match source {
        Source::Log => group.cursor.as_ref(),
        Source::Retry => Some(&group.retry_cursor),
    }
}

fn parked((due, origin, item): (Timestamp, MessageId, Option<&Item>)) -> Parked {
    match item.cloned() {
        Some(Item { attempt, error, history, body }) => Parked { origin, due, attempt, error, history, body },
        None => {
            let (error, history, body) = (String::new(), History::default(), Vec::new());
            Parked { origin, due, attempt: 0, error, history, body }
        }
    }
}

/// Returns a page, limited in items and bytes.
pub(crate) fn page<T>(items: impl Iterator<Item = T>, limit: usize, size: impl Fn(&T) -> u64) -> Page<T> {
    let mut page = Page::empty();
    let mut bytes = 0;
    for item in items {
        if page.items.len() >= limit.min(MAX_PAGE) || bytes >= MAX_PAGE_BYTES as u64 {
            page.more = true;
            break;
        }
        bytes += size(&item);
        page.items.push(item);
    }
    page
}
