//! A link between one instance and the backend: it counts requests, loses some, or is cut.

mod batches;
mod cancels;
mod permits;
mod steps;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Continuity;
use millstream_core::leases::{Acquired, Holder};
use millstream_core::log::ProgressRight;
use millstream_core::log::{Append, Appended, Fetched, Measured, Receipt, Settled, Trimmed, UnleasedTrim};
use millstream_core::members::{
    Assignment, GroupMembers, HeartbeatReply, Member, Members, Revision, Version, Watch,
};
use millstream_core::progress::{ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::schedule::{
    Due, Place, Placed, Promoted, RetryAction, Schedule, ScheduleId, Scheduled, Scheduling, Seen, Waiting,
};
use millstream_core::shared::{Claimed, Shared, SharedMember, SharedReader};
use millstream_core::{
    Backend, Error, ErrorKind, GroupName, Lease, Leases, Log, MemberId, MessageId, Partition, Reader,
    Resource, Result, Retention, Settlement, Start, Timestamp, TopicName, TopicPartition,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What is between one instance and everybody else.
#[derive(Default)]
pub struct Link {
    cut: CancellationToken,
    /// So many renewals are lost.
    pub lose_renewals: AtomicUsize,
    /// Requests of the members role fail.
    pub members_fail: AtomicBool,
    /// All requests fail: the server is away.
    pub away: AtomicBool,
    /// Requests of this kind are never answered.
    hangs: Mutex<Option<&'static str>>,
    /// The next request of this kind fails, or all fail for good.
    fails: Mutex<Option<(&'static str, ErrorKind)>>,
    /// So many replies to requests for a lease are lost.
    pub lose_grants: AtomicUsize,
    /// So many replies that bring what was claimed are lost.
    pub lose_claims: AtomicUsize,
    /// How many milliseconds replies that bring what was claimed take longer.
    pub delay_claims: AtomicU64,
    /// How many milliseconds a request takes to get through, at most.
    pub latency: AtomicU64,
    /// A partition whose log is of another type for those that trim.
    pub not_trimmed: Mutex<Option<Partition>>,
    /// Marks of cancelled messages cannot be answered.
    pub answers_of_cancels_wait: AtomicBool,
    /// How many milliseconds the clocks of other nodes are ahead of that of the partitions.
    pub other_clock_ahead: AtomicU64,
    /// While this holds, nothing is sent and no answer is seen, as in a process that is stopped.
    frozen: watch::Sender<bool>,
    calls: Mutex<BTreeMap<&'static str, u64>>,
    /// When the last request of each kind was sent that was answered.
    answered: Mutex<BTreeMap<&'static str, Instant>>,
}

impl Link {
    /// From now on nothing gets through: to all others the instance is dead.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    pub fn hang(&self, what: &'static str) {
        *self.hangs.lock().expect("lock") = Some(what);
    }

    /// The next request of this kind fails.
    pub fn fail_once(&self, what: &'static str) {
        *self.fails.lock().expect("lock") = Some((what, ErrorKind::Unavailable));
    }

    /// From now on requests of this kind are refused.
    pub fn refuse(&self, what: &'static str) {
        *self.fails.lock().expect("lock") = Some((what, ErrorKind::Denied));
    }

    /// Waits while it is frozen.
    pub async fn awake(&self) {
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    /// How many requests of each kind were made since the last look.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut *self.calls.lock().expect("lock"))
    }

    /// When the last request of this kind was sent that was answered.
    pub fn last_answered(&self, what: &str) -> Option<Instant> {
        self.answered.lock().expect("lock").get(what).copied()
    }

    async fn pass<T>(&self, what: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        *self.calls.lock().expect("lock").entry(what).or_default() += 1;
        if self.away.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "told to fail"));
        }
        let fails = self.fails.lock().expect("lock").take_if(|it| it.0 == what && it.1 != ErrorKind::Denied);
        let refuses = *self.fails.lock().expect("lock") == Some((what, ErrorKind::Denied));
        if let Some(kind) = fails.map(|it| it.1).or(refuses.then_some(ErrorKind::Denied)) {
            return Err(Error::new(kind, "told to fail"));
        }
        let hangs = *self.hangs.lock().expect("lock") == Some(what);
        if hangs {
            std::future::pending::<()>().await;
        }
        let (asked, latency) = (Instant::now(), self.latency.load(Ordering::Relaxed));
        let answer = async {
            self.awake().await;
            if latency > 0 {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..=latency))).await;
            }
            let answer = call.await;
            self.awake().await;
            self.answered.lock().expect("lock").insert(what, asked);
            answer
        };
        tokio::select! {
            biased;
            () = self.cut.cancelled() => Err(Error::new(ErrorKind::Unavailable, "cut")),
            answer = answer => answer,
        }
    }

    async fn member<T>(&self, what: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        if self.members_fail.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "told to fail"));
        }
        self.pass(what, call).await
    }
}

fn one_less(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
}

/// One role behind a link.
struct Linked<R: ?Sized> {
    link: Arc<Link>,
    role: Arc<R>,
}

/// The same backend behind a link.
pub fn link(backend: &Backend) -> (Arc<Link>, Backend) {
    let link = Arc::new(Link::default());
    let (shared, permits) = (backend.shared().expect("shared mode"), backend.permits().expect("permits"));
    let (cancels, batches) = (backend.cancels().expect("cancels"), backend.batches().expect("batches"));
    let steps = backend.steps().expect("steps");
    let linked = backend
        .clone()
        .with_log(Arc::new(Linked { link: link.clone(), role: backend.log().clone() }))
        .with_schedule(Arc::new(Linked { link: link.clone(), role: backend.schedule().clone() }))
        .with_leases(Arc::new(Linked { link: link.clone(), role: backend.leases().clone() }))
        .with_members(Arc::new(Linked { link: link.clone(), role: backend.members().clone() }))
        .with_shared(Arc::new(Linked { link: link.clone(), role: shared.clone() }))
        .with_permits(Arc::new(Linked { link: link.clone(), role: permits.clone() }))
        .with_cancels(Arc::new(Linked { link: link.clone(), role: cancels.clone() }))
        .with_batches(Arc::new(Linked { link: link.clone(), role: batches.clone() }))
        .with_steps(Arc::new(Linked { link: link.clone(), role: steps.clone() }));
    (link, linked)
}

#[async_trait]
impl Leases for Linked<dyn Leases> {
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired> {
        let acquired =
            self.link.pass("acquire", self.role.acquire(resource, owner, nonce, ttl, continuity)).await?;
        if matches!(acquired, Acquired::Granted(_)) && one_less(&self.link.lose_grants) {
            return Err(Error::new(ErrorKind::Unconfirmed, "the reply is lost"));
        }
        Ok(acquired)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        let lost = || leases.iter().map(|_| Err(Error::new(ErrorKind::Unavailable, "lost"))).collect();
        if one_less(&self.link.lose_renewals) {
            return lost();
        }
        let renew = async { Ok(self.role.renew(leases).await) };
        self.link.pass("renew", renew).await.unwrap_or_else(|_| lost())
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.link.pass("release", self.role.release(lease)).await
    }

    async fn withdraw_end(&self, lease: &Lease) -> Result<()> {
        self.link.pass("withdraw_end", self.role.withdraw_end(lease)).await
    }

    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>> {
        self.link.pass("holder", self.role.holder(resource)).await
    }
}

#[async_trait]
impl Members for Linked<dyn Members> {
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply> {
        self.link.member("heartbeat", self.role.heartbeat(topic, group, member, joining)).await
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        self.link.member("leave", self.role.leave(topic, group, member)).await
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers> {
        self.link.member("roster", self.role.roster(topic, group)).await
    }

    async fn publish(
        &self,
        topic: &TopicName,
        group: &GroupName,
        version: Version,
        assignment: &Assignment,
    ) -> Result<bool> {
        self.link.member("publish", self.role.publish(topic, group, version, assignment)).await
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>> {
        let watch = self.link.member("open watch", self.role.watch(topic, group)).await?;
        Ok(Box::new(LinkedWatch { link: self.link.clone(), watch }))
    }
}

struct LinkedWatch {
    link: Arc<Link>,
    watch: Box<dyn Watch>,
}

#[async_trait]
impl Watch for LinkedWatch {
    async fn changed(&mut self, seen: Revision, wait: Duration) -> Result<()> {
        self.link.member("watch", self.watch.changed(seen, wait)).await
    }
}

#[async_trait]
impl Log for Linked<dyn Log> {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        self.role.append(batch).await
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        let reader = self.link.pass("open reader", self.role.reader(lease)).await?;
        Ok(Box::new(LinkedReader { link: self.link.clone(), reader }))
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        self.link.pass("settle", self.role.settle(lease, batch)).await
    }

    async fn seek(&self, lease: &Lease, start: Start) -> Result<()> {
        self.link.pass("seek", self.role.seek(lease, start)).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.link.pass("trim", self.role.trim(lease, retention)).await
    }

    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        if *self.link.not_trimmed.lock().expect("lock") == Some(topic_partition.partition) {
            return Err(Error::new(ErrorKind::WrongType, "told to fail"));
        }
        self.link.pass("trim_unleased", self.role.trim_unleased(topic_partition, rule)).await
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        self.role.append_measured(batch).await
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        self.role.lengths(partitions).await
    }

    async fn result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        self.link.pass("result", self.role.result(id, wait)).await
    }

    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        self.link.pass("report_progress", self.role.report_progress(right, report)).await
    }

    async fn progress(&self, id: &ResultId, above: u64, wait: Duration) -> Result<Vec<ProgressLine>> {
        self.link.pass("progress", self.role.progress(id, above, wait)).await
    }
}

struct LinkedReader {
    link: Arc<Link>,
    reader: Box<dyn Reader>,
}

#[async_trait]
impl Reader for LinkedReader {
    fn start_over(&mut self) {
        self.reader.start_over();
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        self.link.pass("fetch", self.reader.fetch(max, wait)).await
    }
}

#[async_trait]
impl Schedule for Linked<dyn Schedule> {
    async fn settle_retries(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origins: &[MessageId],
        action: RetryAction,
    ) -> Result<Vec<bool>> {
        self.role.settle_retries(topic_partition, group, origins, action).await
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        self.link.pass("promote", self.role.promote(lease, limit)).await
    }

    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        self.role.schedule(batch).await
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        self.link.pass("cancel", self.role.cancel(place, ids)).await
    }

    async fn reschedule(&self, place: &Place, ids: &[ScheduleId], due: Due) -> Result<Vec<bool>> {
        self.link.pass("reschedule", self.role.reschedule(place, ids, due)).await
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Scheduled>> {
        self.link.pass("get", self.role.get(place, id)).await
    }

    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        self.link.pass("scheduled", self.role.scheduled(place, after, limit)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        let ahead = Duration::from_millis(self.link.other_clock_ahead.load(Ordering::SeqCst));
        Ok(self.role.now().await?.saturating_add(ahead))
    }

    async fn now_at(&self, place: &Place) -> Result<Timestamp> {
        self.role.now_at(place).await
    }

    async fn waiting(&self, place: &Place) -> Result<Waiting> {
        self.link.pass("waiting", self.role.waiting(place)).await
    }

    async fn promote_delayed(&self, topic_partition: &TopicPartition, limit: usize) -> Result<Promoted> {
        self.link.pass("promote delayed", self.role.promote_delayed(topic_partition, limit)).await
    }

    async fn wait(&self, topic_partition: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen> {
        self.link.pass("wait", self.role.wait(topic_partition, seen, timeout)).await
    }
}

#[async_trait]
impl Shared for Linked<dyn Shared> {
    async fn shared_reader(
        &self,
        member: &SharedMember,
        partitions: &[Partition],
    ) -> Result<Box<dyn SharedReader>> {
        let reader = self.link.pass("open reader", self.role.shared_reader(member, partitions)).await?;
        Ok(Box::new(LinkedSharedReader { link: self.link.clone(), reader }))
    }

    async fn settle_shared(
        &self,
        member: &SharedMember,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        self.link.pass("settle", self.role.settle_shared(member, partition, batch)).await
    }

    async fn extend(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<Vec<Receipt>> {
        if one_less(&self.link.lose_renewals) {
            return Err(Error::new(ErrorKind::Unavailable, "lost"));
        }
        self.link.pass("extend", self.role.extend(member, partition, entries)).await
    }

    async fn give_back(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<()> {
        self.link.pass("give back", self.role.give_back(member, partition, entries)).await
    }

    async fn claim(
        &self,
        member: &SharedMember,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<Claimed> {
        let claimed =
            self.link.pass("claim", self.role.claim(member, partition, alive, idle, max, continuity)).await?;
        if !claimed.abandoned.entries.is_empty() && one_less(&self.link.lose_claims) {
            return Err(Error::new(ErrorKind::Unconfirmed, "the reply is lost"));
        }
        let delay = self.link.delay_claims.load(Ordering::Relaxed);
        if !claimed.abandoned.entries.is_empty() && delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        Ok(claimed)
    }

    async fn adopt(
        &self,
        lease: &Lease,
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<usize> {
        self.link.pass("adopt", self.role.adopt(lease, idle, max, continuity)).await
    }
}

struct LinkedSharedReader {
    link: Arc<Link>,
    reader: Box<dyn SharedReader>,
}

#[async_trait]
impl SharedReader for LinkedSharedReader {
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Vec<(Partition, Fetched)>> {
        self.link.pass("fetch", self.reader.fetch(max, wait)).await
    }

    async fn fetch_beside(&mut self, max: usize, full: &[Partition]) -> Result<Vec<(Partition, Fetched)>> {
        self.link.pass("fetch", self.reader.fetch_beside(max, full)).await
    }
}
