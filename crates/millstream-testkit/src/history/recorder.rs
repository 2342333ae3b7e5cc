//! The recorder: records the operations of the server, in their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Continuity;
use millstream_core::catalog::Start;
use millstream_core::leases::{Acquired, Holder, Leases};
use millstream_core::log::ProgressRight;
use millstream_core::log::{
    Append, Appended, Appender, Durability, Fetched, Log, Measured, Reader, Receipt, Settled, Settlement,
    Source, Trimmed, UnleasedTrim,
};
use millstream_core::members::{Assignment, GroupMembers, HeartbeatReply, Member, Members, Version, Watch};
use millstream_core::progress::{ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::schedule::{
    Due, Place as Waits, Placed, Promoted, RetryAction, Schedule, ScheduleId, Scheduled, Scheduling, Seen,
    Waiting,
};
use millstream_core::{
    Backend, GroupName, Lease, Limits, MemberId, MessageId, Resource, Result, Retention, Timestamp,
    TopicName, TopicPartition, wire,
};

use super::story::Share;
use super::{Call, Event, History, Origin, Place, Told};
use crate::caller;

impl History {
    /// Wraps the backend in a recorder, which records the operations of the backend in their order. Place it below
    /// the layer that injects faults.
    #[must_use]
    pub fn around(&self, backend: impl Into<Backend>) -> Backend {
        around(self.clone(), backend.into())
    }
}

/// Wraps the roles of the backend that need a lease or grant one in a recorder.
fn around(history: History, backend: Backend) -> Backend {
    let notes = Arc::new(Notes {
        history,
        inner: backend.clone(),
        origins: Mutex::default(),
        granted: Mutex::default(),
        members: Mutex::default(),
    });
    let shares = backend.shared().is_ok();
    let recorded = backend
        .with_log(Arc::new(Recorder(notes.clone())))
        .with_leases(Arc::new(Recorder(notes.clone())))
        .with_members(Arc::new(Recorder(notes.clone())))
        .with_schedule(Arc::new(Recorder(notes.clone())));
    if shares { recorded.with_shared(Arc::new(Recorder(notes))) } else { recorded }
}

pub(super) struct Recorder(pub(super) Arc<Notes>);

pub(super) struct Notes {
    pub(super) history: History,
    pub(super) inner: Backend,
    /// The message of each redelivery.
    origins: Mutex<HashMap<(Share, MessageId), MessageId>>,
    /// The request that each epoch of a resource was granted to.
    granted: Mutex<HashMap<(Resource, u64), String>>,
    members: Mutex<BTreeMap<GroupName, Known>>,
}

/// The known members of a group.
#[derive(Default)]
struct Known {
    /// The process that last sent a heartbeat under each id.
    processes: BTreeMap<MemberId, String>,
    /// The processes whose heartbeat is recorded.
    beating: BTreeSet<String>,
}

impl Notes {
    fn appended(&self, batch: &[Append], results: &[Result<Appended>]) {
        for (entry, result) in batch.iter().zip(results) {
            let Some(stored) = result.as_ref().ok().filter(|it| !it.is_duplicate) else { continue };
            let place = Place::new(entry.topic_partition.clone(), stored.id);
            let envelope = wire::decode_body(&entry.stored_fields(), &Limits::default()).ok();
            let key = envelope.as_ref().and_then(|envelope| envelope.key.as_deref().map(text));
            let message = envelope.map(|envelope| text(&envelope.payload));
            self.history.record(Event::Appended { place, message, key });
        }
    }

    fn accepted(&self, lease: &Lease, call: Call) {
        if let Ok((topic_partition, group)) = lease.partition() {
            let (topic_partition, group) = (topic_partition.clone(), group.clone());
            self.history.record(Event::Accepted { topic_partition, group, epoch: lease.epoch, call });
        }
    }

    /// Returns the message of an entry.
    pub(super) fn origin(&self, share: &Share, receipt: Receipt) -> Option<Origin> {
        let id = match receipt.source {
            Source::Log => receipt.id,
            Source::Retry => {
                let origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
                *origins.get(&(share.clone(), receipt.id))?
            }
        };
        let (topic_partition, group) = share.clone();
        Some(Origin { group, place: Place::new(topic_partition, id) })
    }

    /// Stores the messages of redeliveries.
    pub(super) fn read(&self, share: &Share, fetched: &Fetched) {
        let mut origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in fetched.entries.iter().filter(|entry| entry.receipt.source == Source::Retry) {
            let origin = wire::decode(entry.receipt, &entry.fields, &Limits::default()).origin;
            origins.insert((share.clone(), entry.receipt.id), origin);
        }
    }

    fn fetched(&self, lease: &Lease, fetched: &Fetched) {
        self.accepted(lease, Call::Fetch);
        if let Ok((topic_partition, group)) = lease.partition() {
            self.read(&(topic_partition.clone(), group.clone()), fetched);
        }
    }

    pub(super) fn settled(&self, share: &Share, batch: &[(Receipt, Settlement)], settled: Settled) {
        if settled.applied == 0 {
            return;
        }
        for (receipt, settlement) in batch {
            let told = match settlement {
                Settlement::Ack | Settlement::AckWith(_) => Told::Ack,
                Settlement::DeadLetter { .. } => Told::Dead,
                // A signal ends a wait, and an earlier one may have begun before.
                Settlement::Retry { attempt, wait: Some(_), .. } => Told::Again(*attempt, Duration::ZERO),
                Settlement::Retry { due, attempt, .. } => Told::Again(*attempt, after(*due)),
                Settlement::Hold(note) if note.attempt > 0 => Told::Again(note.attempt, after(note.due)),
                Settlement::Hold(_) => Told::Noted,
            };
            if let Some(origin) = self.origin(share, *receipt) {
                self.history.record(Event::Settled { origin, told, certain: settled.stale == 0 });
            }
        }
    }
}

/// Returns the minimum wait, as far as a history can know it: its clock is not the server's.
fn after(due: Due) -> Duration {
    match due {
        Due::In(after) => after,
        Due::At(_) => Duration::ZERO,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.trim_ascii()).into_owned()
}

/// Appends by ids show which entries with a number were stored before.
fn by_ids(batch: &[Append]) -> Result<Vec<Append>> {
    Append::kind_of(batch)?;
    batch.iter().map(Append::by_id).collect()
}

fn told(batch: &[Append], results: Vec<Result<Appended>>) -> Vec<Result<Appended>> {
    let told = |(result, append): (Result<Appended>, &Append)| result.map(|it| append.identity.told(it));
    results.into_iter().zip(batch).map(told).collect()
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Log for Recorder {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        let by_ids = match by_ids(batch) {
            Ok(by_ids) => by_ids,
            Err(error) => return batch.iter().map(|_| Err(error.clone())).collect(),
        };
        let results = self.0.inner.log().append(&by_ids).await;
        self.0.appended(batch, &results);
        told(batch, results)
    }

    // Every append must pass through here as a separate request.
    fn appender(&self, _: Durability) -> Option<Box<dyn Appender>> {
        None
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        let inner = self.0.inner.log().reader(lease).await?;
        Ok(Box::new(RecordedReader { notes: self.0.clone(), lease: lease.clone(), inner }))
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        let settled = self.0.inner.log().settle(lease, batch).await?;
        self.0.accepted(lease, Call::Settle);
        if let Ok((topic_partition, group)) = lease.partition() {
            self.0.settled(&(topic_partition.clone(), group.clone()), batch, settled);
        }
        Ok(settled)
    }

    async fn seek(&self, lease: &Lease, start: Start) -> Result<()> {
        self.0.inner.log().seek(lease, start).await?;
        self.0.accepted(lease, Call::Seek);
        if let Ok((topic_partition, group)) = lease.partition() {
            let (topic_partition, group) = (topic_partition.clone(), group.clone());
            self.0.history.record(Event::Rewound { topic_partition, group });
        }
        Ok(())
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        let trimmed = self.0.inner.log().trim(lease, retention).await?;
        self.0.accepted(lease, Call::Trim);
        Ok(trimmed)
    }

    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        self.0.inner.log().trim_unleased(topic_partition, rule).await
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        let by_ids = match by_ids(batch) {
            Ok(by_ids) => by_ids,
            Err(error) => {
                return Measured::new(batch.iter().map(|_| Err(error.clone())).collect(), Vec::new());
            }
        };
        let mut measured = self.0.inner.log().append_measured(&by_ids).await;
        self.0.appended(batch, &measured.results);
        measured.results = told(batch, measured.results);
        measured
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        self.0.inner.log().lengths(partitions).await
    }

    async fn result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        self.0.inner.log().result(id, wait).await
    }

    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        self.0.inner.log().report_progress(right, report).await
    }

    async fn progress(&self, id: &ResultId, above: u64, wait: Duration) -> Result<Vec<ProgressLine>> {
        self.0.inner.log().progress(id, above, wait).await
    }
}

struct RecordedReader {
    notes: Arc<Notes>,
    lease: Lease,
    inner: Box<dyn Reader>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Reader for RecordedReader {
    fn start_over(&mut self) {
        self.inner.start_over();
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        let fetched = self.inner.fetch(max, wait).await?;
        self.notes.fetched(&self.lease, &fetched);
        Ok(fetched)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Schedule for Recorder {
    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        let promoted = self.0.inner.schedule().promote(lease, limit).await?;
        self.0.accepted(lease, Call::Promote);
        Ok(promoted)
    }

    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        self.0.inner.schedule().schedule(batch).await
    }

    async fn cancel(&self, place: &Waits, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        self.0.inner.schedule().cancel(place, ids).await
    }

    async fn reschedule(&self, place: &Waits, ids: &[ScheduleId], due: Due) -> Result<Vec<bool>> {
        self.0.inner.schedule().reschedule(place, ids, due).await
    }

    async fn get(&self, place: &Waits, id: &ScheduleId) -> Result<Option<Scheduled>> {
        self.0.inner.schedule().get(place, id).await
    }

    async fn scheduled(
        &self,
        place: &Waits,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        self.0.inner.schedule().scheduled(place, after, limit).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.0.inner.schedule().now().await
    }

    async fn now_at(&self, place: &Waits) -> Result<Timestamp> {
        self.0.inner.schedule().now_at(place).await
    }

    async fn waiting(&self, place: &Waits) -> Result<Waiting> {
        self.0.inner.schedule().waiting(place).await
    }

    async fn settle_retries(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origins: &[MessageId],
        action: RetryAction,
    ) -> Result<Vec<bool>> {
        self.0.inner.schedule().settle_retries(topic_partition, group, origins, action).await
    }

    async fn promote_delayed(&self, topic_partition: &TopicPartition, limit: usize) -> Result<Promoted> {
        self.0.inner.schedule().promote_delayed(topic_partition, limit).await
    }

    async fn wait(&self, topic_partition: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen> {
        self.0.inner.schedule().wait(topic_partition, seen, timeout).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Leases for Recorder {
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired> {
        let acquired = self.0.inner.leases().acquire(resource, owner, nonce, ttl, continuity).await?;
        if let Acquired::Granted(lease) = &acquired
            && let Ok((topic_partition, group)) = lease.partition()
        {
            let epoch = lease.epoch;
            let mut granted = self.0.granted.lock().unwrap_or_else(PoisonError::into_inner);
            let before = granted.insert((resource.clone(), epoch), nonce.to_owned());
            let again = before.is_some_and(|before| before == nonce);
            drop(granted);
            let (topic_partition, group) = (topic_partition.clone(), group.clone());
            let to = caller::name();
            self.0.history.record(Event::Granted { topic_partition, group, epoch, again, ttl, to });
        }
        Ok(acquired)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        let results = self.0.inner.leases().renew(leases).await;
        for (lease, result) in leases.iter().zip(&results) {
            if result.is_ok() {
                self.0.accepted(lease, Call::Renew);
            }
        }
        results
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.0.inner.leases().release(lease).await?;
        self.0.accepted(lease, Call::Release);
        Ok(())
    }

    async fn withdraw_end(&self, lease: &Lease) -> Result<()> {
        self.0.inner.leases().withdraw_end(lease).await
    }

    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>> {
        self.0.inner.leases().holder(resource).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Members for Recorder {
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply> {
        let pulse = self.0.inner.members().heartbeat(topic, group, member, joining).await?;
        if let Some(instance) = caller::name() {
            let mut members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
            let known = members.entry(group.clone()).or_default();
            known.processes.insert(member.id.clone(), instance.clone());
            let is_new = known.beating.insert(instance.clone());
            drop(members);
            if is_new {
                self.0.history.record(Event::Joined { instance, group: group.clone() });
            }
        }
        Ok(pulse)
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        self.0.inner.members().leave(topic, group, member).await
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers> {
        self.0.inner.members().roster(topic, group).await
    }

    async fn publish(
        &self,
        topic: &TopicName,
        group: &GroupName,
        version: Version,
        assignment: &Assignment,
    ) -> Result<bool> {
        let published = self.0.inner.members().publish(topic, group, version, assignment).await?;
        if published {
            let mut members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
            let known = members.entry(group.clone()).or_default();
            let numbers = |(id, list): (&MemberId, &Vec<millstream_core::Partition>)| {
                let process = known.processes.get(id)?.clone();
                Some((process, list.iter().map(|partition| partition.0).collect::<Vec<_>>()))
            };
            let shares: Vec<_> = assignment.iter().filter_map(numbers).collect();
            known.beating.retain(|process| shares.iter().any(|(other, _)| other == process));
            drop(members);
            self.0.history.record(Event::Published { group: group.clone(), shares });
        }
        Ok(published)
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>> {
        self.0.inner.members().watch(topic, group).await
    }
}
