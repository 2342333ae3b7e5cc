//! Mistakes of the catalog role.

use async_trait::async_trait;
use millstream_core::catalog::{Catalog, GroupCreated, PartitionStats, Start};
use millstream_core::{ErrorKind, GroupName, MessageId, Result, TopicName, TopicPartition, TopicSpec};

use super::{Broken, Sabotage};

#[async_trait]
impl Catalog for Broken {
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        let stored = self.inner.catalog.create_topic(spec).await?;
        Ok(if self.is(Sabotage::LastTopicWins) { spec.clone() } else { stored })
    }

    async fn topic(&self, name: &TopicName) -> Result<TopicSpec> {
        match self.inner.catalog.topic(name).await {
            Err(error) if error.kind() == ErrorKind::NotFound && self.is(Sabotage::UnknownTopicInvented) => {
                TopicSpec::new(name.clone(), 1)
            }
            other => other,
        }
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        let mut topics = self.inner.catalog.topics().await?;
        if self.is(Sabotage::ListsUnsorted) {
            topics.reverse();
        }
        Ok(topics)
    }

    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated> {
        let start = match self.sabotage {
            Sabotage::StartAlwaysLatest => Start::Latest,
            Sabotage::StartAlwaysEarliest => Start::Earliest,
            _ => start,
        };
        let mut created = self.inner.catalog.create_group(topic, group, start).await?;
        let mut memo = self.memo();
        for tp in topic.iter() {
            if !created.new && self.is(Sabotage::GroupStartsAgain) {
                memo.rewound.insert((tp.clone(), group.clone()), MessageId::ZERO);
            }
            memo.groups.insert((tp, group.clone()));
        }
        created.new |= self.is(Sabotage::GroupAlwaysNew);
        Ok(created)
    }

    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        let mut groups = self.inner.catalog.groups(topic).await?;
        if self.is(Sabotage::ListsUnsorted) {
            groups.reverse();
        }
        Ok(groups)
    }

    async fn restore_group(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<()> {
        let after = if self.is(Sabotage::RestoreForgetsWhere) { MessageId::ZERO } else { after };
        if self.is(Sabotage::RestoreRewinds) {
            self.memo().rewound.insert((topic_partition.clone(), group.clone()), after);
        }
        self.inner.catalog.restore_group(topic_partition, group, after).await
    }

    async fn stats(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionStats>> {
        let mut stats = self.inner.catalog.stats(topic, group).await?;
        if self.is(Sabotage::StatsSkipEmpty) {
            stats.retain(|stats| stats.length > 0);
        }
        for stats in &mut stats {
            match self.sabotage {
                Sabotage::StatsLie => stats.lag = stats.lag.map(|lag| lag + stats.pending),
                Sabotage::StatsForgetRetries => stats.retrying = 0,
                _ => {}
            }
        }
        Ok(stats)
    }
}
