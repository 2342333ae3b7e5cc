//! Mistakes of the roles that look: inspect and audit.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::audit::{Audit, Audited, Check, Fault, Finding, Scope};
use millstream_core::inspect::{
    Inspect, MAX_PAGE, Overview, OverviewQuery, Ownership, Page, Parked, Pending, Range, Reading, Server,
    Stored, Stream, Usage,
};
use millstream_core::log::Source;
use millstream_core::tasks::{FoundTask, TaskPlace};
use millstream_core::{
    Capability, GroupName, MessageId, Resource, Result, ScheduleId, Shard, Timestamp, TopicName,
    TopicPartition, TopicSpec,
};

use super::{Broken, Mutant};

#[async_trait]
impl Inspect for Broken {
    async fn entries(
        &self,
        topic_partition: &TopicPartition,
        stream: &Stream,
        range: Range,
        limit: usize,
    ) -> Result<Page<Stored>> {
        let range = match self.sabotage {
            Mutant::LookUnpaged => Range { newest_first: range.newest_first, ..Range::ALL },
            Mutant::LookForward => Range { newest_first: false, ..range },
            _ => range,
        };
        let limit = if self.is(Mutant::LookLimitIgnored) { MAX_PAGE } else { limit };
        let mut page = self.inner.inspect()?.entries(topic_partition, stream, range, limit).await?;
        if self.is(Mutant::LookMangles) {
            for (name, value) in page.items.iter_mut().flat_map(|stored| &mut stored.fields) {
                for bytes in [name, value] {
                    *bytes = Bytes::from(String::from_utf8_lossy(bytes).into_owned());
                }
            }
        }
        Ok(page)
    }

    async fn pending(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        source: Source,
        after: MessageId,
        limit: usize,
    ) -> Result<Page<Pending>> {
        if self.is(Mutant::LookTakes) {
            let resource = Resource::partition(topic_partition.clone(), group.clone());
            let granted = self.memo().granted.get(&resource).cloned();
            if let Some(lease) = granted {
                self.inner.log().reader(&lease).await?.fetch(100, Duration::ZERO).await?;
            }
        }
        let after = if self.is(Mutant::PendingUnpaged) { MessageId::ZERO } else { after };
        let inner = self.inner.inspect()?;
        let mut page = inner.pending(topic_partition, group, source, after, limit).await?;
        for pending in &mut page.items {
            match self.sabotage {
                Mutant::LookHidesNotes => pending.note = None,
                Mutant::LookHidesDeliveries => pending.deliveries = 1,
                Mutant::LookHidesIdle => pending.idle = Duration::ZERO,
                _ => {}
            }
        }
        Ok(page)
    }

    async fn parked(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: Option<(Timestamp, MessageId)>,
        limit: usize,
    ) -> Result<Page<Parked>> {
        let after = after.filter(|_| !self.is(Mutant::ParkedUnpaged));
        let mut page = self.inner.inspect()?.parked(topic_partition, group, after, limit).await?;
        match self.sabotage {
            Mutant::ParkedReversed => page.items.reverse(),
            Mutant::ParkedWithoutBody => page.items.iter_mut().for_each(|parked| parked.body.clear()),
            _ => {}
        }
        Ok(page)
    }

    async fn owners(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<Ownership>> {
        let mut owners = self.inner.inspect()?.owners(topic, group).await?;
        match self.sabotage {
            Mutant::OwnersHidden => owners.iter_mut().for_each(|owner| owner.holder = None),
            Mutant::OwnersEndsHidden => owners.iter_mut().for_each(|owner| owner.ends = 0),
            Mutant::FreeNotShown => owners.retain(|owner| owner.holder.is_some()),
            _ => {}
        }
        Ok(owners)
    }

    async fn overview(&self, topics: &[TopicName], query: &OverviewQuery) -> Option<Vec<Result<Overview>>> {
        let told = match self.sabotage {
            Mutant::OverviewMiscounts | Mutant::OverviewSkipsTopics => {
                self.inner.overview(topics, query).await
            }
            // The roles are asked for one part after the other, with their mistakes.
            _ => return None,
        };
        let mut told: Vec<_> =
            told.into_iter().filter(|it| !self.is(Mutant::OverviewSkipsTopics) || it.is_ok()).collect();
        if self.is(Mutant::OverviewMiscounts) {
            for group in told.iter_mut().flatten().flat_map(|overview| &mut overview.groups) {
                group.members = group.members.clone().map(|members| members.saturating_sub(1));
            }
        }
        Some(told)
    }

    async fn consumers(&self, topic_partition: &TopicPartition, group: &GroupName) -> Result<Vec<Reading>> {
        let mut readings = self.inner.inspect()?.consumers(topic_partition, group).await?;
        if self.is(Mutant::ConsumersHidden) {
            readings.clear();
        }
        Ok(readings)
    }

    async fn server(&self) -> Result<Server> {
        let mut server = self.inner.inspect()?.server().await?;
        if self.is(Mutant::ServerUnnamed) {
            server.kind.clear();
        }
        Ok(server)
    }

    async fn servers(&self) -> Result<Vec<Server>> {
        let mut servers = self.inner.inspect()?.servers().await?;
        if self.is(Mutant::ServerUnnamed) {
            servers.iter_mut().for_each(|server| server.kind.clear());
        }
        Ok(servers)
    }

    async fn usage(&self, partitions: &[TopicPartition], groups: &[GroupName]) -> Result<Vec<Usage>> {
        let mut usage = self.inner.inspect()?.usage(partitions, groups).await?;
        if self.is(Mutant::UsageStuck) {
            usage.iter_mut().for_each(|usage| usage.bytes = 1);
        }
        Ok(usage)
    }
}

#[async_trait]
impl Audit for Broken {
    async fn audit(&self, scope: &Scope, check: Check, after: Option<&str>) -> Result<Audited> {
        let mut page = self.inner.audit()?.audit(scope, check, after).await?;
        match self.sabotage {
            Mutant::AuditBlind => page.findings.clear(),
            Mutant::AuditSuspects if page.findings.is_empty() && page.looked_at > 0 => {
                page.findings.push(Finding::new(Fault::Ghost, scope, "log:1-1", "made up"));
            }
            _ => {}
        }
        Ok(page)
    }

    async fn repair(&self, finding: &Finding) -> Result<bool> {
        match self.sabotage {
            Mutant::RepairForgotten => Ok(true),
            Mutant::RepairAlways => self.inner.audit()?.repair(finding).await.map(|_| true),
            _ => self.inner.audit()?.repair(finding).await,
        }
    }
}

impl Broken {
    /// Returns the oldest entry that is pending in any group.
    pub(super) async fn oldest_pending(&self, tp: &TopicPartition) -> Result<Option<MessageId>> {
        let mut oldest = None;
        for group in self.inner.catalog().groups(&tp.topic).await? {
            let page = self.inner.inspect()?.pending(tp, &group, Source::Log, MessageId::ZERO, 1).await?;
            oldest = oldest.into_iter().chain(page.items.first().map(|pending| pending.id)).min();
        }
        Ok(oldest)
    }
}

/// Finding tasks.
impl Broken {
    pub(super) async fn broken_find(&self, shard: &Shard, id: &ScheduleId) -> Result<Option<FoundTask>> {
        self.supports(Capability::FindTasks)?;
        let mut found = self.inner.tasks()?.find(shard, id).await?;
        let state = found.as_ref().map(|task| task.state);
        match (self.sabotage, state, &mut found) {
            (Mutant::FoundTaskForgetsStory, _, Some(task)) => (task.attempt, task.error) = (1, String::new()),
            (Mutant::ClaimedTaskIsNowhere, Some(TaskPlace::Claimed(_)), _)
            | (Mutant::FinishedTaskIsNowhere, Some(TaskPlace::Finished(_)), _) => found = None,
            _ => {}
        }
        Ok(found)
    }
}
