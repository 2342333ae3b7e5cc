//! Chaos for the inspect and audit roles.

use async_trait::async_trait;
use millstream_core::audit::{Audit, Audited, Check, Finding, Scope};
use millstream_core::inspect::{
    Inspect, Overview, OverviewQuery, Ownership, Page, Parked, Pending, Range, Reading, Server, Stored,
    Stream, Usage,
};
use millstream_core::log::Source;
use millstream_core::{GroupName, MessageId, Result, Timestamp, TopicName, TopicPartition, TopicSpec};

use super::Client;
use super::faults::Role;
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Inspect for Client {
    async fn entries(
        &self,
        topic_partition: &TopicPartition,
        stream: &Stream,
        range: Range,
        limit: usize,
    ) -> Result<Page<Stored>> {
        call!(self, Inspect, inspect?.entries(topic_partition, stream; range, limit))
    }

    async fn pending(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        source: Source,
        after: MessageId,
        limit: usize,
    ) -> Result<Page<Pending>> {
        call!(self, Inspect, inspect?.pending(topic_partition, group; source, after, limit))
    }

    async fn parked(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: Option<(Timestamp, MessageId)>,
        limit: usize,
    ) -> Result<Page<Parked>> {
        call!(self, Inspect, inspect?.parked(topic_partition, group; after, limit))
    }

    async fn owners(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<Ownership>> {
        call!(self, Inspect, inspect?.owners(topic, group;))
    }

    async fn overview(&self, _: &[TopicName], _: &OverviewQuery) -> Option<Vec<Result<Overview>>> {
        // The roles are asked for one part after the other, and each request has its faults.
        None
    }

    async fn consumers(&self, topic_partition: &TopicPartition, group: &GroupName) -> Result<Vec<Reading>> {
        call!(self, Inspect, inspect?.consumers(topic_partition, group;))
    }

    async fn server(&self) -> Result<Server> {
        call!(self, Inspect, inspect?.server(;))
    }

    async fn servers(&self) -> Result<Vec<Server>> {
        call!(self, Inspect, inspect?.servers(;))
    }

    async fn usage(&self, partitions: &[TopicPartition], groups: &[GroupName]) -> Result<Vec<Usage>> {
        call!(self, Inspect, inspect?.usage(partitions, groups;))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Audit for Client {
    async fn audit(&self, scope: &Scope, check: Check, after: Option<&str>) -> Result<Audited> {
        let (inner, scope, after) =
            (self.0.backend.audit()?.clone(), scope.clone(), after.map(str::to_owned));
        let request = async move { inner.audit(&scope, check, after.as_deref()).await };
        self.call(Role::Audit, request, Err).await
    }

    async fn repair(&self, finding: &Finding) -> Result<bool> {
        call!(self, Audit, audit?.repair(finding;))
    }
}
