//! Mistakes of the catalog role.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::catalog::{Catalog, GroupCreated, GroupState, PartitionStats, Pin, Start};
use millstream_core::inspect::Range;
use millstream_core::log::Source;
use millstream_core::packing::DictionaryName;
use millstream_core::topic::MAX_PARTITIONS;
use millstream_core::{
    Capability, Error, ErrorKind, GroupName, MessageId, Result, TopicChange, TopicName, TopicPartition,
    TopicSpec,
};

use super::{Broken, Mutant};

#[async_trait]
impl Catalog for Broken {
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        let stored = self.inner.catalog().create_topic(spec).await?;
        let haunted = self.memo().haunted.remove(&spec.name);
        for group in haunted.into_iter().flatten() {
            self.inner.catalog().create_group(&stored, &group, Start::Earliest).await?;
        }
        Ok(match self.sabotage {
            Mutant::LastTopicWins => spec.clone().with_generation(stored.generation),
            Mutant::RebornUntold => stored.with_generation(0),
            _ => stored,
        })
    }

    async fn restore_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        self.supports(Capability::Restore)?;
        match self.sabotage {
            Mutant::RestoreUndeletes => self.inner.catalog().create_topic(spec).await,
            Mutant::RestoreForgotten => Ok(spec.clone()),
            Mutant::DeletedForEver if self.memo().deleted.contains(spec.name.as_str()) => {
                Err(Error::new(ErrorKind::Deleted, "for ever"))
            }
            _ => self.inner.catalog().restore_topic(spec).await,
        }
    }

    async fn topic(&self, name: &TopicName) -> Result<TopicSpec> {
        match self.inner.catalog().topic(name).await {
            Err(error) if error.kind() == ErrorKind::NotFound && self.is(Mutant::UnknownTopicInvented) => {
                TopicSpec::new(name.clone(), 1)
            }
            Ok(stored) if self.is(Mutant::RebornUntold) => Ok(stored.with_generation(0)),
            other => other,
        }
    }

    async fn expand(&self, name: &TopicName, partitions: u32) -> Result<TopicSpec> {
        self.supports(Capability::Expand)?;
        let inner = self.inner.catalog();
        let mut partitions = partitions;
        match self.sabotage {
            Mutant::ExpandStopsAtLimit => partitions = partitions.min(MAX_PARTITIONS),
            Mutant::ExpandForgotten => {
                let stored = inner.topic(name).await?;
                return TopicSpec::new(name.clone(), partitions.max(stored.partitions));
            }
            Mutant::ExpandShrinks => {
                inner.expand(name, partitions).await?;
                return TopicSpec::new(name.clone(), partitions);
            }
            Mutant::UnknownTopicInvented => {
                inner.create_topic(&TopicSpec::new(name.clone(), 1)?).await?;
            }
            _ => {}
        }
        let before = inner.topic(name).await?.partitions;
        let grown = inner.expand(name, partitions).await?;
        if self.is(Mutant::ExpandWithoutGroups) {
            let groups = inner.groups(name).await?;
            let new = grown.iter().skip(before as usize);
            let missing = new.flat_map(|tp| groups.iter().map(move |group| (tp.clone(), group.clone())));
            self.memo().missing.extend(missing);
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
        self.supports(Capability::Count)?;
        let count =
            async |start, end, limit| self.inner.catalog().count(topic_partition, start, end, limit).await;
        match (self.sabotage, start) {
            (Mutant::CountIgnoresLimit, _) => count(start, end, u64::MAX).await,
            (Mutant::CountIgnoresEnd, _) => count(start, None, limit).await,
            (Mutant::CountIncludesStart, Start::After(id)) => {
                count(Start::At(id.timestamp()), end, limit).await
            }
            _ => count(start, end, limit).await,
        }
    }

    async fn alter_topic(&self, name: &TopicName, change: &TopicChange) -> Result<TopicSpec> {
        self.supports(Capability::AlterTopic)?;
        let inner = self.inner.catalog();
        let mut change = *change;
        match self.sabotage {
            Mutant::AlterForgotten => return change.of(inner.topic(name).await?),
            Mutant::AlterResets => {
                change = TopicChange::new()
                    .retention(change.retention.unwrap_or_default())
                    .max_length(change.max_length.flatten())
                    .dead_letter_retention(change.dead_letter_retention.unwrap_or_default());
            }
            Mutant::AlterUnchecked if change.of(inner.topic(name).await?).is_err() => {
                return inner.topic(name).await;
            }
            Mutant::AlterKeepsPacking => change.packing = None,
            Mutant::AlterPacksAny => {
                let known = inner.topic(name).await?;
                if change.packing.is_some() && known.packing.is_none() {
                    return Ok(known.with_packing(change.packing));
                }
            }
            Mutant::UnknownTopicInvented => {
                inner.create_topic(&TopicSpec::new(name.clone(), 1)?).await?;
            }
            _ => {}
        }
        inner.alter_topic(name, &change).await
    }

    async fn store_dictionary(&self, topic: &TopicSpec, dictionary: Bytes) -> Result<DictionaryName> {
        self.supports(Capability::Dictionaries)?;
        let topic = match self.inner.catalog().topic(&topic.name).await {
            Ok(known) if self.is(Mutant::DictionaryOfAnyGeneration) => known,
            _ => topic.clone(),
        };
        let stored = self.inner.catalog().store_dictionary(&topic, dictionary).await;
        match stored {
            Ok(name) => {
                self.memo().dictionary = Some((topic.name.clone(), name));
                Ok(name)
            }
            Err(error)
                if error.kind() == ErrorKind::InvalidConfig && self.is(Mutant::DictionaryUnchecked) =>
            {
                Ok(DictionaryName { version: 1, id: 1 })
            }
            error => error,
        }
    }

    async fn dictionary(&self, topic: &TopicName, name: DictionaryName) -> Result<Option<Bytes>> {
        self.supports(Capability::Dictionaries)?;
        let last = self.memo().dictionary.clone();
        match (self.sabotage, last) {
            (Mutant::DictionaryOverwritten, Some((of, newest))) if of == *topic => {
                self.inner.catalog().dictionary(topic, newest).await
            }
            (Mutant::DictionaryOfAnyId, Some((of, newest)))
                if of == *topic && newest.version == name.version =>
            {
                self.inner.catalog().dictionary(topic, newest).await
            }
            (Mutant::DictionaryOfAnyTopic, Some((of, _))) => self.inner.catalog().dictionary(&of, name).await,
            _ => self.inner.catalog().dictionary(topic, name).await,
        }
    }

    async fn delete_topic(&self, name: &TopicName) -> Result<bool> {
        let inner = self.inner.catalog();
        let known = match self.sabotage {
            Mutant::DeleteForgotten => return inner.topic(name).await.map(|_| true).or(Ok(false)),
            Mutant::DeleteKeepsTheKeys => {
                let groups = inner.groups(name).await?;
                let known = inner.delete_topic(name).await?;
                if known {
                    self.memo().haunted.insert(name.clone(), groups);
                }
                known
            }
            Mutant::DeleteByPrefix => {
                let mut known = false;
                for topic in inner.topics().await? {
                    if topic.as_str().starts_with(name.as_str()) {
                        known |= inner.delete_topic(&topic).await?;
                    }
                }
                known
            }
            _ => inner.delete_topic(name).await?,
        };
        self.memo().deleted.insert(name.to_string());
        Ok(known || self.is(Mutant::DeletedAlways))
    }

    async fn delete_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        let inner = self.inner.catalog();
        self.memo().deleted.insert(format!("{topic} {group}"));
        match self.sabotage {
            Mutant::DeleteTakesOthers => {
                for group in inner.groups(topic).await? {
                    inner.delete_group(topic, &group).await?;
                }
            }
            Mutant::DeleteUnknownPassed if inner.topic(topic).await.is_err() => return Ok(false),
            Mutant::DeleteKeepsRetries => {
                let spec = inner.topic(topic).await?;
                let mut kept = Vec::new();
                for tp in spec.iter() {
                    kept.extend(self.inner.dead_letters()?.list(&tp, group, Range::ALL, 100).await?.items);
                }
                let known = inner.delete_group(topic, group).await?;
                self.memo().replayed.extend(kept);
                return Ok(known);
            }
            _ => {}
        }
        Ok(inner.delete_group(topic, group).await? || self.is(Mutant::DeletedAlways))
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        let mut topics = self.inner.catalog().topics().await?;
        if self.is(Mutant::ListsUnsorted) {
            topics.reverse();
        }
        Ok(topics)
    }

    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated> {
        let start = match self.sabotage {
            Mutant::StartAlwaysLatest => Start::Latest,
            Mutant::StartAlwaysEarliest => Start::Earliest,
            Mutant::BeyondTheEndIsTheBeginning => match topic.iter().next() {
                Some(tp) => self.not_beyond(&tp, start).await?,
                None => start,
            },
            _ => start,
        };
        let mut created = self.inner.catalog().create_group(topic, group, start).await?;
        let ends = self.is(Mutant::PauseEndsWithCreate);
        let lasts = self.is(Mutant::PauseOutlivesGroup)
            && self.memo().paused.contains(&(topic.name.clone(), group.clone()));
        if ends || lasts {
            self.inner.catalog().set_paused(&topic.name, group, lasts).await?;
        }
        if self.is(Mutant::GroupMissesGrowth) {
            let grown = self.inner.catalog().topic(&topic.name).await?;
            let new = grown.iter().skip(topic.partitions as usize);
            self.memo().missing.extend(new.map(|tp| (tp, group.clone())));
        }
        let mut memo = self.memo();
        for tp in topic.iter() {
            if !created.new && self.is(Mutant::GroupStartsAgain) {
                memo.rewound.insert((tp.clone(), group.clone()), MessageId::ZERO);
            }
            memo.groups.insert((tp, group.clone()));
        }
        created.new |= self.is(Mutant::GroupAlwaysNew);
        Ok(created)
    }

    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        let mut groups = self.inner.catalog().groups(topic).await?;
        if self.is(Mutant::ListsUnsorted) {
            groups.reverse();
        }
        Ok(groups)
    }

    async fn restore_group(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<bool> {
        self.supports(Capability::Restore)?;
        if self.is(Mutant::RestoreUnchecked) {
            self.inner.catalog().create_topic(&TopicSpec::new(topic_partition.topic.clone(), 1)?).await?;
        }
        let after = if self.is(Mutant::RestoreForgetsWhere) { MessageId::ZERO } else { after };
        if self.is(Mutant::RestoreRewinds) {
            self.memo().rewound.insert((topic_partition.clone(), group.clone()), after);
        }
        if self.is(Mutant::RestoreUndeletes) {
            let topic = TopicSpec::new(topic_partition.topic.clone(), 1)?;
            self.inner.catalog().create_group(&topic, group, Start::Earliest).await?;
        }
        let gone = format!("{} {group}", topic_partition.topic);
        if self.is(Mutant::DeletedForEver) && self.memo().deleted.contains(&gone) {
            return Err(Error::new(ErrorKind::Deleted, "for ever"));
        }
        let missing = self.inner.catalog().restore_group(topic_partition, group, after).await?;
        Ok(missing || self.is(Mutant::RestoredAlways))
    }

    async fn set_paused(&self, topic: &TopicName, group: &GroupName, paused: bool) -> Result<bool> {
        self.supports(Capability::Pause)?;
        let inner = self.inner.catalog();
        match self.sabotage {
            Mutant::GroupPauseForgotten => return inner.group_state(topic, group).await.map(|_| true),
            Mutant::PauseTakesOthers => {
                for other in inner.groups(topic).await?.iter().filter(|other| *other != group) {
                    inner.set_paused(topic, other, paused).await?;
                }
            }
            Mutant::PauseUnknownPassed if !inner.groups(topic).await?.contains(group) => return Ok(false),
            _ => {}
        }
        self.memo().paused.insert((topic.clone(), group.clone()));
        inner.set_paused(topic, group, paused).await
    }

    async fn group_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState> {
        self.inner.catalog().group_state(topic, group).await
    }

    async fn stats(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionStats>> {
        self.supports(Capability::Stats)?;
        let mut stats = self.inner.catalog().stats(topic, group).await?;
        if self.is(Mutant::StatsSkipEmpty) {
            stats.retain(|stats| stats.length > 0);
        }
        for stats in &mut stats {
            match self.sabotage {
                Mutant::StatsLie => stats.lag = stats.lag.map(|lag| lag + stats.pending),
                Mutant::StatsForgetRetries => stats.retrying = 0,
                Mutant::StatsForgetPosition => stats.position = None,
                Mutant::LagByIds => {
                    stats.lag = stats.lag.map(|lag| lag.max(stats.length.saturating_sub(stats.pending)));
                }
                Mutant::OldestOfTheLog if stats.oldest.is_none() && stats.length > 0 => {
                    stats.oldest = Some(std::time::Duration::ZERO);
                }
                Mutant::OldestForgetsPending if stats.lag == Some(0) => stats.oldest = None,
                _ => {}
            }
        }
        Ok(stats)
    }

    async fn pins(&self, topic: &TopicSpec) -> Result<Vec<Pin>> {
        self.supports(Capability::Pins)?;
        let inner = self.inner.catalog();
        let mut pins = inner.pins(topic).await?;
        match self.sabotage {
            Mutant::PinsTheFastest => {
                let fastest = inner.groups(&topic.name).await?.pop();
                pins.iter_mut().zip(fastest).for_each(|(pin, group)| pin.group = group);
            }
            Mutant::PinsCountAll => {
                let all = inner.groups(&topic.name).await?.into_iter().next();
                for (pin, group) in pins.iter_mut().zip(all) {
                    pin.messages += inner.stats(topic, &group).await?.len() as u64;
                }
            }
            Mutant::PinsAlways if pins.is_empty() => {
                let groups = inner.groups(&topic.name).await?;
                let named = topic.iter().zip(groups);
                pins.extend(named.map(|(tp, group)| Pin::new(tp.partition, group, MessageId::ZERO)));
            }
            Mutant::PinsForgetUnread => {
                for pin in &mut pins {
                    let tp = TopicPartition { topic: topic.name.clone(), partition: pin.partition };
                    let inspect = self.inner.inspect()?;
                    let page = inspect.pending(&tp, &pin.group, Source::Log, MessageId::ZERO, 1).await?;
                    pin.watermark = page.items.first().map_or(pin.watermark, |oldest| oldest.id);
                }
            }
            Mutant::PinsWithoutIdle => pins.iter_mut().for_each(|pin| pin.idle = None),
            _ => {}
        }
        Ok(pins)
    }
}
