//! Chaos for the roles. Every call is made with copies of its arguments, since it may outlive its caller.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::Continuity;
use millstream_core::catalog::{
    Catalog, GroupCreated, GroupState, PartitionStats, PartitionSurvey, Pin, Start,
};
use millstream_core::dead_letters::{
    Claim, DeadLetterAction, DeadLetterRetention, DeadLetters, TrimBy, TrimmedLetters,
};
use millstream_core::inspect::{Page, Range};
use millstream_core::leases::{Acquired, Holder, Leases};
use millstream_core::log::ProgressRight;
use millstream_core::log::{
    Append, Appended, Appender, Durability, Log, Measured, Reader, Receipt, Settled, Settlement, Trimmed,
    UnleasedTrim,
};
use millstream_core::members::{Assignment, GroupMembers, HeartbeatReply, Member, Members, Version, Watch};
use millstream_core::packing::DictionaryName;
use millstream_core::progress::{ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::schedule::{
    Due, Place, Placed, Promoted, RetryAction, Schedule, ScheduleId, Scheduled, Scheduling, Seen, Waiting,
};
use millstream_core::{
    DeadLetter, Error, GroupName, Lease, MessageId, Resource, Result, Retention, Timestamp, TopicChange,
    TopicName, TopicPartition, TopicSpec,
};

use super::Client;
use super::faults::Role;
use super::reading::{ChaosReader, ChaosWatch, wait};

/// Makes a call of a role that returns one result: the values are copied, and bound to the same names. An optional role
/// is written with a question mark: `shared?.extend(…)`.
macro_rules! call {
    ($client:ident, $role:ident, $field:ident.$($call:tt)*) => {
        call!(@on ($client.0.backend.$field()), $client, $role, $($call)*)
    };
    ($client:ident, $role:ident, $field:ident?.$($call:tt)*) => {
        call!(@on ($client.0.backend.$field()?), $client, $role, $($call)*)
    };
    (@on $inner:tt, $client:ident, $role:ident, $method:ident($($copied:ident),*; $($plain:expr),*)) => {{
        let inner = $inner.clone();
        $(let $copied = $copied.to_owned();)*
        $client.call(Role::$role, async move { inner.$method($(&$copied,)* $($plain),*).await }, Err).await
    }};
}

pub(super) use call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Log for Client {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        let (inner, batch, count) = (self.0.backend.log().clone(), batch.to_vec(), batch.len());
        let request = async move { inner.append(&batch).await };
        self.call(Role::Log, request, |error| (0..count).map(|_| Err(error.clone())).collect()).await
    }

    // Every append must pass through here as a separate request.
    fn appender(&self, _: Durability) -> Option<Box<dyn Appender>> {
        None
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        let opened = call!(self, Log, log.reader(lease;))?;
        Ok(Box::new(ChaosReader::new(self.clone(), opened)))
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        call!(self, Log, log.settle(lease, batch;))
    }

    async fn seek(&self, lease: &Lease, start: Start) -> Result<()> {
        call!(self, Log, log.seek(lease; start))
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        call!(self, Log, log.trim(lease; retention))
    }

    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        call!(self, Log, log.trim_unleased(topic_partition; rule))
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        let (inner, batch, count) = (self.0.backend.log().clone(), batch.to_vec(), batch.len());
        let request = async move { inner.append_measured(&batch).await };
        let failed = |error: Error| {
            let results = (0..count).map(|_| Err(error.clone())).collect();
            Measured::new(results, Vec::new())
        };
        self.call(Role::Log, request, failed).await
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        call!(self, Log, log.lengths(partitions;))
    }

    async fn result(&self, id: &ResultId, timeout: Duration) -> Result<Option<MessageResult>> {
        wait(self, Role::Log, self.0.backend.log().result(id, timeout)).await
    }

    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        call!(self, Log, log.report_progress(right, report;))
    }

    async fn progress(&self, id: &ResultId, above: u64, timeout: Duration) -> Result<Vec<ProgressLine>> {
        wait(self, Role::Log, self.0.backend.log().progress(id, above, timeout)).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Schedule for Client {
    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        call!(self, Schedule, schedule.promote(lease; limit))
    }

    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        let (inner, batch, count) = (self.0.backend.schedule().clone(), batch.to_vec(), batch.len());
        let request = async move { inner.schedule(&batch).await };
        self.call(Role::Schedule, request, |error| (0..count).map(|_| Err(error.clone())).collect()).await
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        call!(self, Schedule, schedule.cancel(place, ids;))
    }

    async fn reschedule(&self, place: &Place, ids: &[ScheduleId], due: Due) -> Result<Vec<bool>> {
        call!(self, Schedule, schedule.reschedule(place, ids; due))
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Scheduled>> {
        call!(self, Schedule, schedule.get(place, id;))
    }

    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        call!(self, Schedule, schedule.scheduled(place; after, limit))
    }

    async fn now(&self) -> Result<Timestamp> {
        call!(self, Schedule, schedule.now(;))
    }

    async fn now_at(&self, place: &Place) -> Result<Timestamp> {
        call!(self, Schedule, schedule.now_at(place;))
    }

    async fn waiting(&self, place: &Place) -> Result<Waiting> {
        call!(self, Schedule, schedule.waiting(place;))
    }

    async fn settle_retries(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origins: &[MessageId],
        action: RetryAction,
    ) -> Result<Vec<bool>> {
        call!(self, Schedule, schedule.settle_retries(topic_partition, group, origins; action))
    }

    async fn promote_delayed(&self, topic_partition: &TopicPartition, limit: usize) -> Result<Promoted> {
        call!(self, Schedule, schedule.promote_delayed(topic_partition; limit))
    }

    async fn wait(&self, topic_partition: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen> {
        wait(self, Role::Schedule, self.0.backend.schedule().wait(topic_partition, seen, timeout)).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Leases for Client {
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired> {
        let continuity = continuity.clone();
        call!(self, Leases, leases.acquire(resource, owner, nonce; ttl, &continuity))
    }

    async fn withdraw_end(&self, lease: &Lease) -> Result<()> {
        call!(self, Leases, leases.withdraw_end(lease;))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        let (inner, leases, count) = (self.0.backend.leases().clone(), leases.to_vec(), leases.len());
        let request = async move { inner.renew(&leases).await };
        self.call(Role::Leases, request, |error| (0..count).map(|_| Err(error.clone())).collect()).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        call!(self, Leases, leases.release(lease;))
    }

    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>> {
        call!(self, Leases, leases.holder(resource;))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl DeadLetters for Client {
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        range: Range,
        limit: usize,
    ) -> Result<Page<DeadLetter>> {
        call!(self, DeadLetters, dead_letters?.list(topic_partition, group; range, limit))
    }

    async fn claim(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
        claim: &Claim,
    ) -> Result<Vec<MessageId>> {
        call!(self, DeadLetters, dead_letters?.claim(tp, group, ids, claim;))
    }

    async fn settle(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        by: Option<&str>,
        deeds: &[(MessageId, DeadLetterAction)],
    ) -> Result<Vec<MessageId>> {
        let (inner, by) = (self.0.backend.dead_letters()?.clone(), by.map(str::to_owned));
        let (tp, group, deeds) = (tp.clone(), group.clone(), deeds.to_vec());
        let request = async move { inner.settle(&tp, &group, by.as_deref(), &deeds).await };
        self.call(Role::DeadLetters, request, Err).await
    }

    async fn put(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        letters: &[DeadLetter],
        again: bool,
    ) -> Result<Vec<Option<MessageId>>> {
        call!(self, DeadLetters, dead_letters?.put(tp, group, letters; again))
    }

    async fn purge_through(&self, tp: &TopicPartition, group: &GroupName, last: MessageId) -> Result<usize> {
        call!(self, DeadLetters, dead_letters?.purge_through(tp, group; last))
    }

    async fn trim(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        retention: DeadLetterRetention,
        by: TrimBy<'_>,
    ) -> Result<TrimmedLetters> {
        let (inner, tp, group) = (self.0.backend.dead_letters()?.clone(), tp.clone(), group.clone());
        let (lease, dry_run) = match by {
            TrimBy::Owner(lease) => (Some(lease.clone()), false),
            TrimBy::Operator => (None, false),
            TrimBy::DryRun => (None, true),
        };
        let request = async move {
            let by = match &lease {
                Some(lease) => TrimBy::Owner(lease),
                None if dry_run => TrimBy::DryRun,
                None => TrimBy::Operator,
            };
            inner.trim(&tp, &group, retention, by).await
        };
        self.call(Role::DeadLetters, request, Err).await
    }

    async fn replay(&self, tp: &TopicPartition, group: &GroupName, ids: &[MessageId]) -> Result<usize> {
        call!(self, DeadLetters, dead_letters?.replay(tp, group, ids;))
    }

    async fn purge(&self, tp: &TopicPartition, group: &GroupName, ids: &[MessageId]) -> Result<usize> {
        call!(self, DeadLetters, dead_letters?.purge(tp, group, ids;))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Catalog for Client {
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        call!(self, Catalog, catalog.create_topic(spec;))
    }

    async fn restore_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        call!(self, Catalog, catalog.restore_topic(spec;))
    }

    async fn expand(&self, name: &TopicName, partitions: u32) -> Result<TopicSpec> {
        call!(self, Catalog, catalog.expand(name; partitions))
    }

    async fn count(
        &self,
        topic_partition: &TopicPartition,
        start: Start,
        end: Option<MessageId>,
        limit: u64,
    ) -> Result<u64> {
        call!(self, Catalog, catalog.count(topic_partition; start, end, limit))
    }

    async fn topic(&self, name: &TopicName) -> Result<TopicSpec> {
        call!(self, Catalog, catalog.topic(name;))
    }

    async fn store_dictionary(&self, topic: &TopicSpec, dictionary: Bytes) -> Result<DictionaryName> {
        call!(self, Catalog, catalog.store_dictionary(topic; dictionary))
    }

    async fn dictionary(&self, topic: &TopicName, name: DictionaryName) -> Result<Option<Bytes>> {
        call!(self, Catalog, catalog.dictionary(topic; name))
    }

    async fn alter_topic(&self, name: &TopicName, change: &TopicChange) -> Result<TopicSpec> {
        call!(self, Catalog, catalog.alter_topic(name, change;))
    }

    async fn delete_topic(&self, name: &TopicName) -> Result<bool> {
        call!(self, Catalog, catalog.delete_topic(name;))
    }

    async fn delete_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        call!(self, Catalog, catalog.delete_group(topic, group;))
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        call!(self, Catalog, catalog.topics(;))
    }

    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated> {
        call!(self, Catalog, catalog.create_group(topic, group; start))
    }

    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        call!(self, Catalog, catalog.groups(topic;))
    }

    async fn restore_group(&self, tp: &TopicPartition, group: &GroupName, after: MessageId) -> Result<bool> {
        call!(self, Catalog, catalog.restore_group(tp, group; after))
    }

    async fn set_paused(&self, topic: &TopicName, group: &GroupName, paused: bool) -> Result<bool> {
        call!(self, Catalog, catalog.set_paused(topic, group; paused))
    }

    async fn group_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState> {
        call!(self, Catalog, catalog.group_state(topic, group;))
    }

    async fn stats(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionStats>> {
        call!(self, Catalog, catalog.stats(topic, group;))
    }

    async fn survey(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionSurvey>> {
        call!(self, Catalog, catalog.survey(topic, group;))
    }

    async fn pins(&self, topic: &TopicSpec) -> Result<Vec<Pin>> {
        call!(self, Catalog, catalog.pins(topic;))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Members for Client {
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply> {
        call!(self, Members, members.heartbeat(topic, group, member; joining))
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        call!(self, Members, members.leave(topic, group, member;))
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers> {
        call!(self, Members, members.roster(topic, group;))
    }

    async fn publish(
        &self,
        topic: &TopicName,
        group: &GroupName,
        version: Version,
        assignment: &Assignment,
    ) -> Result<bool> {
        // Written out, since the macro passes the copied arguments before the plain ones.
        let (inner, topic, group) = (self.0.backend.members().clone(), topic.clone(), group.clone());
        let assignment = assignment.clone();
        let request = async move { inner.publish(&topic, &group, version, &assignment).await };
        self.call(Role::Members, request, Err).await
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>> {
        let opened = call!(self, Members, members.watch(topic, group;))?;
        Ok(Box::new(ChaosWatch::new(self.clone(), topic.clone(), group.clone(), opened)))
    }
}
