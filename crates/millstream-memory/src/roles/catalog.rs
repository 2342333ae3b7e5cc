//! The catalog role in memory.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::catalog::{Catalog, GroupCreated, GroupState, PartitionStats, Pin, REMEMBERED, Start};
use millstream_core::packing::DictionaryName;
use millstream_core::sorted::{SortedMap, sort_by};
use millstream_core::{
    Error, ErrorKind, GroupName, MessageId, Partition, Result, TopicChange, TopicName, TopicPartition,
    TopicSpec,
};

use crate::MemoryBackend;
use crate::clock::Now;
use crate::state::{self, DeletedTopic};
use crate::stream::{Cursor, Stream};

#[async_trait]
impl Catalog for MemoryBackend {
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        spec.check()?;
        let mut state = self.lock();
        if !state.topics.contains_key(&spec.name) {
            spec.name.check_new()?;
        }
        let now = self.now();
        let deleted = state.deleted_topics.remove(&spec.name).filter(|deleted| deleted.until > now);
        let generation = deleted.map_or(0, |deleted| now.timestamp().as_millis().max(deleted.at + 1));
        let create = || spec.clone().with_generation(generation).with_dictionary(None);
        Ok(state.topics.get_or_insert_with(spec.name.clone(), create).clone())
    }

    async fn restore_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        spec.check()?;
        let mut state = self.lock();
        let deleted = state.deleted_topics.get(&spec.name).is_some_and(|deleted| deleted.until > self.now());
        let gone = match state.topics.get(&spec.name) {
            None => deleted,
            // Another topic has replaced the one that the caller knows.
            Some(stored) => stored.generation > spec.generation,
        };
        if gone {
            return Err(
                Error::new(ErrorKind::Deleted, format!("topic {} was deleted", spec.name)).at(&spec.name)
            );
        }
        let create = || spec.clone().with_generation(0).with_dictionary(None);
        Ok(state.topics.get_or_insert_with(spec.name.clone(), create).clone())
    }

    async fn topic(&self, name: &TopicName) -> Result<TopicSpec> {
        self.lock().topic(name).cloned()
    }

    async fn expand(&self, name: &TopicName, partitions: u32) -> Result<TopicSpec> {
        let mut state = self.lock();
        let topic = state.topic(name)?.clone();
        if partitions <= topic.partitions {
            return Ok(topic);
        }
        let grown = TopicSpec::new(name.clone(), partitions)?
            .with_retention(topic.retention)
            .with_max_length(topic.max_length)
            .with_dead_letter_retention(topic.dead_letter_retention)
            .with_packing(topic.packing)
            .with_dictionary(topic.dictionary)
            .with_generation(topic.generation)
            .with_earlier([topic.earlier, vec![topic.partitions]].concat());
        state.topics.insert(name.clone(), grown.clone());
        let groups = state.topic_groups.get(name).cloned().unwrap_or_default();
        for tp in grown.iter().skip(topic.partitions as usize) {
            let partition = state.partition(&tp);
            for group in &groups {
                create(partition, group, MessageId::ZERO);
            }
        }
        let now = self.now();
        for membership in state.memberships.get_mut(name).into_iter().flat_map(SortedMap::values_mut) {
            // Members learn of it by their next heartbeat.
            membership.told(now);
        }
        Ok(grown)
    }

    async fn count(
        &self,
        topic_partition: &TopicPartition,
        start: Start,
        end: Option<MessageId>,
        limit: u64,
    ) -> Result<u64> {
        let state = self.lock();
        let Some(partition) = state.peek(topic_partition) else { return Ok(0) };
        let (log, end) = (&partition.log, end.unwrap_or(MessageId::MAX));
        let between = log.count_above(log.before(start)?).saturating_sub(log.count_above(end));
        Ok(count(between).min(limit))
    }

    async fn alter_topic(&self, name: &TopicName, change: &TopicChange) -> Result<TopicSpec> {
        let mut state = self.lock();
        let changed = change.of(state.topic(name)?.clone())?;
        state.topics.insert(name.clone(), changed.clone());
        Ok(changed)
    }

    async fn store_dictionary(&self, topic: &TopicSpec, dictionary: Bytes) -> Result<DictionaryName> {
        let mut state = self.lock();
        let known = state.topic(&topic.name)?.clone();
        if known.generation != topic.generation {
            let why = format!("topic {} was deleted and created again", topic.name);
            return Err(Error::new(ErrorKind::NotFound, why).at(&topic.name));
        }
        known.check_dictionary(&dictionary)?;
        let version = known.dictionary.map_or(0, |newest| newest.version).checked_add(1);
        let name = version.and_then(|version| DictionaryName::of(version, &dictionary));
        let why = || format!("topic {} has had too many dictionaries", topic.name);
        let name = name.ok_or_else(|| Error::new(ErrorKind::InvalidConfig, why()).at(&topic.name))?;
        state.dictionaries.get_or_default(topic.name.clone()).insert(name, dictionary);
        state.topics.insert(topic.name.clone(), known.with_dictionary(Some(name)));
        Ok(name)
    }

    async fn dictionary(&self, topic: &TopicName, name: DictionaryName) -> Result<Option<Bytes>> {
        let state = self.lock();
        Ok(state.dictionaries.get(topic).and_then(|stored| stored.get(&name)).cloned())
    }

    async fn delete_topic(&self, name: &TopicName) -> Result<bool> {
        let mut state = self.lock();
        let Some(generation) = state.topics.get(name).map(|topic| topic.generation) else { return Ok(false) };
        state.forget_topic(name);
        let now = self.now();
        let deleted =
            DeletedTopic { at: now.timestamp().as_millis().max(generation), until: now.plus(REMEMBERED) };
        state.deleted_topics.insert(name.clone(), deleted);
        Ok(true)
    }

    async fn delete_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        let mut state = self.lock();
        let topic = state.topic(topic)?.clone();
        let known = state.forget_group(&topic, group);
        if known {
            let until = self.now().plus(REMEMBERED);
            state.deleted_groups.insert((topic.name, group.clone()), until);
        }
        Ok(known)
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        Ok(self.lock().topics.keys().cloned().collect())
    }

    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated> {
        let mut state = self.lock();
        // Validated before anything is registered.
        Stream::default().before(start)?;
        if !state.topic_groups.get(&topic.name).is_some_and(|groups| groups.contains(group)) {
            group.check_new()?;
        }
        state.deleted_groups.remove(&(topic.name.clone(), group.clone()));
        let new = state.topic_groups.get_or_default(topic.name.clone()).insert(group.clone());
        let mut created = GroupCreated::new(new, Vec::new());
        // The topic may have grown since the request: on new partitions the group starts at the beginning.
        let grown = state.topics.get(&topic.name).filter(|stored| stored.partitions > topic.partitions);
        for tp in grown.cloned().as_ref().unwrap_or(topic).iter() {
            let known = tp.partition.0 < topic.partitions;
            let partition = state.partition(&tp);
            // Where the group was lost, its position is unknown, so it starts at the beginning.
            let delivered = if new && known { partition.log.beginning(start)? } else { MessageId::ZERO };
            if create(partition, group, delivered) {
                created.partitions.push(tp.partition);
            }
        }
        Ok(created)
    }

    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        let state = self.lock();
        Ok(state.topic_groups.get(topic).into_iter().flatten().cloned().collect())
    }

    async fn restore_group(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<bool> {
        let mut state = self.lock();
        state.topic(&topic_partition.topic)?;
        state.not_deleted(&topic_partition.topic, group, self.now())?;
        state.topic_groups.get_or_default(topic_partition.topic.clone()).insert(group.clone());
        let partition = state.partition(topic_partition);
        // A log that ends below `after` is not the one that `after` was read from: it was deleted since. Its entries
        // may never have been read.
        let delivered = if partition.log.last() >= after { after } else { MessageId::ZERO };
        Ok(create(partition, group, delivered))
    }

    async fn set_paused(&self, topic: &TopicName, group: &GroupName, paused: bool) -> Result<bool> {
        let mut state = self.lock();
        state.topic(topic)?;
        if !state.topic_groups.get(topic).is_some_and(|groups| groups.contains(group)) {
            let why = format!("group {group} of topic {topic} does not exist");
            return Err(Error::new(ErrorKind::NotFound, why).at(topic));
        }
        let (now, key) = (self.now(), (topic.clone(), group.clone()));
        if paused == state.paused_groups.contains_key(&key) {
            return Ok(false);
        }
        if paused {
            state.paused_groups.insert(key, now.timestamp());
        } else {
            state.paused_groups.remove(&key);
        }
        state.membership(topic, group).told(now);
        Ok(true)
    }

    async fn group_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState> {
        let mut state = GroupState::new();
        state.paused = self.lock().paused_groups.get(&(topic.clone(), group.clone())).copied();
        Ok(state)
    }

    async fn stats(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionStats>> {
        let state = self.lock();
        let now = self.now();
        let stats = topic.iter().map(|tp| match state.peek(&tp) {
            Some(partition) => stats(tp.partition, partition, group, now),
            None => PartitionStats::empty(tp.partition),
        });
        Ok(stats.collect())
    }

    async fn pins(&self, topic: &TopicSpec) -> Result<Vec<Pin>> {
        let state = self.lock();
        let now = self.now();
        Ok(topic.iter().filter_map(|tp| pin(tp.partition, state.peek(&tp)?, now)).collect())
    }
}

/// Creates the group on a partition. Returns false if it exists.
fn create(partition: &mut state::Partition, group: &GroupName, delivered: MessageId) -> bool {
    let cursor = &mut partition.group(group).cursor;
    let missing = cursor.is_none();
    cursor.get_or_insert_with(|| Cursor::at(delivered));
    missing
}

fn stats(number: Partition, partition: &state::Partition, group: &GroupName, now: Now) -> PartitionStats {
    let mut stats = PartitionStats::empty(number);
    stats.length = count(partition.log.len());
    stats.appended = Some(partition.log.appended());
    stats.lag = None;
    let Some(group) = partition.groups.get(group) else { return stats };
    if let Some(cursor) = &group.cursor {
        stats.position = Some(cursor.delivered);
        stats.lag_at_least = count(partition.log.count_above(cursor.delivered));
        stats.lag = Some(stats.lag_at_least);
        let unread = partition.log.above(cursor.delivered).next().map(|(id, _)| *id);
        let next = group.parked.page(None, 1).next().map(|(due, origin, _)| (due <= now.timestamp(), origin));
        let (ready, parked) = (next.filter(|it| it.0), next.filter(|it| !it.0));
        // As on a server: the first entry that is not settled.
        let origin = |fields: &millstream_core::wire::Fields| {
            std::str::from_utf8(&fields.get(1)?.1).ok()?.parse::<MessageId>().ok()
        };
        let redelivered = group.retry.above(MessageId::ZERO).next().and_then(|(_, entry)| origin(entry));
        let retries = redelivered.into_iter().chain(ready.map(|(_, origin)| origin));
        let oldest = cursor.pending.keys().next().copied().into_iter().chain(unread).chain(retries).min();
        let age = |id: MessageId| now.timestamp().saturating_duration_since(id.timestamp());
        (stats.oldest, stats.oldest_parked) = (oldest.map(age), parked.map(|(_, origin)| age(origin)));
        stats.pending = count(cursor.pending.len());
    }
    stats.pending += count(group.retry_cursor.pending.len());
    stats.due = count(group.retry.count_above(group.retry_cursor.delivered));
    stats.retrying = count(group.parked.len()) + stats.due;
    stats.dead = count(group.dead.len());
    stats
}

fn pin(number: Partition, partition: &state::Partition, now: Now) -> Option<Pin> {
    let log = &partition.log;
    let keeping = partition.groups.iter().filter(|(name, _)| !name.is_instance());
    let groups = keeping.filter_map(|(name, group)| Some((name, group.cursor.as_ref()?)));
    let mut marks: Vec<_> = groups.map(|(name, cursor)| (cursor.watermark(log), name, cursor)).collect();
    sort_by(&mut marks, |one, other| (one.0, one.1).cmp(&(other.0, other.1)));
    let (watermark, name, cursor) = *marks.first()?;
    if log.len() == 0 || watermark > log.last() {
        return None;
    }
    let end = marks.get(1).map_or(log.last().next(), |(watermark, ..)| *watermark);
    let limit = usize::try_from(Pin::LIMIT).unwrap_or(usize::MAX);
    let mut stay = log.above(watermark.previous()).take_while(|(id, _)| *id < end);
    let oldest = log.above(watermark.previous()).next().map_or(watermark, |(id, _)| *id);
    let mut pin = Pin::new(number, name.clone(), oldest);
    for (_, fields) in stay.by_ref().take(limit) {
        pin.messages += 1;
        pin.bytes += fields.iter().map(|(name, value)| count(name.len() + value.len())).sum::<u64>();
    }
    pin.exact = stay.next().is_none();
    pin.idle = cursor.last_request().map(|last| now.since(last));
    Some(pin)
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
