//! The harness of a case: a backend, unique names, and a deadline.

pub(crate) mod continuity;
pub mod owner;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::Continuity;
use millstream_core::catalog::Start;
use millstream_core::inspect::Range;
use millstream_core::leases::Acquired;
use millstream_core::log::{Append, Trimmed};
use millstream_core::packing::Packing;
use millstream_core::schedule::{Place, ScheduleId, Shard};
use millstream_core::tasks::QueueSpec;
use millstream_core::wire::{self, Fields};
use millstream_core::{
    Backend, Capability, DeadLetter, Envelope, GroupName, Lease, MessageId, QueueName, Resource, Retention,
    Timestamp, TopicName, TopicPartition, TopicSpec,
};
use tokio::time::Instant;

use self::owner::Owner;
use crate::violation::{Verdict, Violation, ensure};

/// Lease ttl that no case outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Lease ttl that a case waits out. Long enough for a few requests to a busy server.
pub(crate) const BRIEF: Duration = Duration::from_millis(150);
/// Time without a result after which a case concludes that none will come.
pub(crate) const QUIET: Duration = Duration::from_millis(30);
/// Interval between two checks of a condition that is to become true.
const POLL: Duration = Duration::from_millis(2);

/// Operations that an operator can perform on a store, bypassing the backend. Used by cases that [need
/// one](crate::Case::needs_operator); backends where this cannot happen omit those cases.
#[async_trait]
pub trait Operator: Send + Sync {
    /// Destroys a group on one partition's log, including its pending entries.
    ///
    /// # Errors
    /// Any error; the case fails with it.
    async fn destroy_group(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
    ) -> Result<(), Violation>;

    /// Deletes one entry of a log.
    ///
    /// # Errors
    /// Any error; the case fails with it.
    async fn delete_entry(&self, topic_partition: &TopicPartition, id: MessageId) -> Result<(), Violation>;

    /// Sets a group's position in one partition's log, regardless of its pending entries.
    ///
    /// # Errors
    /// Any error; the case fails with it.
    async fn set_position(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        id: MessageId,
    ) -> Result<(), Violation>;

    /// Deletes the body of a parked retry, and leaves its due time.
    ///
    /// # Errors
    /// Any error; the case fails with it.
    async fn delete_parked(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origin: MessageId,
    ) -> Result<(), Violation>;

    /// Deletes the body of a scheduled message or task, and leaves its due time.
    ///
    /// # Errors
    /// Any error; the case fails with it.
    async fn delete_scheduled(&self, place: &Place, id: &ScheduleId) -> Result<(), Violation>;
}

/// The backend under test, with topic names that are unique across harnesses and processes.
#[derive(Clone)]
pub struct Harness {
    /// The backend under test.
    pub backend: Backend,
    deadline: Duration,
    operator: Option<Arc<dyn Operator>>,
    packing: Option<Packing>,
}

impl Harness {
    /// Creates a harness for one case. Many harnesses can share a backend, also at the same time.
    #[must_use]
    pub fn new(backend: impl Into<Backend>) -> Self {
        Self { backend: backend.into(), deadline: Duration::from_secs(10), operator: None, packing: None }
    }

    /// Sets how long to wait for something that must happen eventually. Default: 10 s. Lower it where failing fast
    /// matters more than tolerating a slow machine.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the packing of the topics that the cases create. Default: none.
    #[must_use]
    pub fn with_packing(mut self, packing: Packing) -> Self {
        self.packing = Some(packing);
        self
    }

    /// Sets the operator that deletes data without the backend. Default: none, and the cases that need one fail.
    #[must_use]
    pub fn with_operator(mut self, operator: impl Operator + 'static) -> Self {
        self.operator = Some(Arc::new(operator));
        self
    }

    pub(crate) fn operator(&self) -> Result<&dyn Operator, Violation> {
        self.operator.as_deref().ok_or_else(|| Violation::new("this case needs Harness::with_operator"))
    }

    /// Returns how long something that must happen may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns a name that was never used before.
    #[must_use]
    pub fn unique(&self, what: &str) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        format!("{what}-{time:x}-{:x}-{count:x}", std::process::id())
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// The errors of [`create_topic`](millstream_core::Catalog::create_topic).
    pub async fn topic(&self, partitions: u32) -> Result<TopicSpec, Violation> {
        let name = TopicName::new(self.unique("topic"))?;
        let spec = TopicSpec::new(name, partitions)?.with_packing(self.packing);
        Ok(self.backend.catalog().create_topic(&spec).await?)
    }

    /// Returns the only partition of a new topic.
    ///
    /// # Errors
    /// The errors of [`create_topic`](millstream_core::Catalog::create_topic).
    pub async fn partition(&self) -> Result<TopicPartition, Violation> {
        Ok(TopicPartition::new(self.topic(1).await?.name, 0))
    }

    /// Creates a delay queue.
    ///
    /// # Errors
    /// The errors of [`create_queue`](millstream_core::Tasks::create_queue).
    pub async fn queue(&self, shards: u32) -> Result<QueueSpec, Violation> {
        let name = QueueName::new(self.unique("queue"))?;
        Ok(self.backend.tasks()?.create_queue(&QueueSpec::new(name, shards)).await?)
    }

    /// Returns a shard of a new delay queue.
    pub(crate) async fn shard(&self) -> Result<Place, Violation> {
        Ok(Shard::new(self.queue(1).await?.name, 0).into())
    }

    /// Returns a place of each kind that the backend has: a partition of a new topic, and a shard of a new delay queue.
    pub(crate) async fn places(&self) -> Result<Vec<Place>, Violation> {
        let mut places = vec![self.partition().await?.into()];
        if self.backend.supports(Capability::Tasks) {
            places.push(self.shard().await?);
        }
        Ok(places)
    }

    /// Returns the server's time.
    pub(crate) async fn now(&self) -> Result<Timestamp, Violation> {
        Ok(self.backend.schedule().now().await?)
    }

    /// Waits until the server's clock has reached `time`.
    pub(crate) async fn reaches(&self, time: Timestamp) -> Verdict {
        let mut deadline = self.wait_for("the server's clock to go on");
        while self.now().await? < time {
            deadline.pause().await?;
        }
        Ok(())
    }

    /// Returns the result of a future that must end within the deadline.
    pub(crate) async fn soon<T>(
        &self,
        what: &str,
        future: impl Future<Output = millstream_core::Result<T>>,
    ) -> Result<T, Violation> {
        match tokio::time::timeout(self.deadline, future).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Violation::new(format!("waited in vain for {what}"))),
        }
    }

    /// Returns the dead letters of a group in a partition; `None` if the backend cannot list them.
    pub(crate) async fn letters(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
    ) -> Result<Option<Vec<DeadLetter>>, Violation> {
        if !self.backend.supports(Capability::DeadLetters) {
            return Ok(None);
        }
        Ok(Some(self.backend.dead_letters()?.list(tp, group, Range::ALL, 10).await?.items))
    }

    /// Returns the number of entries in a log; `None` if the backend cannot count them.
    pub(crate) async fn length(&self, tp: &TopicPartition) -> Result<Option<u64>, Violation> {
        if !self.backend.supports(Capability::Lengths) {
            return Ok(None);
        }
        Ok(Some(self.backend.log().lengths(std::slice::from_ref(tp)).await?.iter().sum()))
    }

    /// Expects this number of entries in a log, if the backend can count them.
    pub(crate) async fn expect_length(&self, tp: &TopicPartition, expected: u64, what: &str) -> Verdict {
        let length = self.length(tp).await?;
        ensure!(length.is_none_or(|length| length == expected), "{what}: {length:?}, expected {expected}");
        Ok(())
    }

    /// Expects this number of messages that wait, if the backend can count them.
    pub(crate) async fn expect_waiting(&self, place: &Place, expected: u64, what: &str) -> Verdict {
        if self.backend.supports(Capability::ListScheduled) {
            let total = self.backend.schedule().waiting(place).await?.total;
            ensure!(total == expected, "{what}: {total}, expected {expected}");
        }
        Ok(())
    }

    /// Appends one entry per item and expects each to succeed.
    ///
    /// # Errors
    /// The first error of an entry.
    pub async fn append(
        &self,
        topic_partition: &TopicPartition,
        entries: impl IntoIterator<Item = Fields>,
    ) -> Result<Vec<MessageId>, Violation> {
        let entry = |fields| Append::new(topic_partition.clone(), fields);
        let batch: Vec<_> = entries.into_iter().map(entry).collect();
        let results = self.backend.log().append(&batch).await;
        ensure!(results.len() == batch.len(), "{} results for {} entries", results.len(), batch.len());
        let ids = results.into_iter().map(|result| result.map(|appended| appended.id));
        Ok(ids.collect::<Result<_, _>>()?)
    }

    /// Appends `count` different messages.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub async fn append_n(&self, tp: &TopicPartition, count: usize) -> Result<Vec<MessageId>, Violation> {
        self.append(tp, (0..count).map(message)).await
    }

    /// Same as [`append_n`](Self::append_n), where a case is about entries: one after the other on a packed topic, so that each message
    /// is an entry of its own.
    pub(crate) async fn append_each(
        &self,
        tp: &TopicPartition,
        count: usize,
    ) -> Result<Vec<MessageId>, Violation> {
        if self.packing.is_none() {
            return self.append_n(tp, count).await;
        }
        let mut ids = Vec::with_capacity(count);
        for n in 0..count {
            ids.extend(self.append(tp, [message(n)]).await?);
        }
        Ok(ids)
    }

    /// Returns the server's time, read from an entry appended to the log.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub async fn clock(&self, topic_partition: &TopicPartition) -> Result<Timestamp, Violation> {
        let ids = self.append(topic_partition, [message(usize::MAX)]).await?;
        Ok(ids[0].timestamp())
    }

    /// Waits until the server's clock is past `time`, as seen in the ids of entries that it appends.
    ///
    /// # Errors
    /// If the clock does not get there within the deadline.
    pub async fn clock_passes(&self, tp: &TopicPartition, time: Timestamp) -> Verdict {
        let mut deadline = self.wait_for("the server's clock to go on");
        while self.clock(tp).await? <= time {
            deadline.pause().await?;
        }
        Ok(())
    }

    /// Acquires a partition for a group, which is created to start with the oldest entry, and returns the owner.
    ///
    /// # Errors
    /// If another owner has the partition.
    pub async fn owner(&self, tp: &TopicPartition, group: &str) -> Result<Owner, Violation> {
        self.brief_owner(tp, group, LONG).await
    }

    /// Same as [`owner`](Self::owner), under a lease that expires soon.
    ///
    /// # Errors
    /// If another owner has the partition.
    pub async fn brief_owner(
        &self,
        topic_partition: &TopicPartition,
        group: &str,
        ttl: Duration,
    ) -> Result<Owner, Violation> {
        let group = GroupName::new(group)?;
        let topic = TopicSpec::new(topic_partition.topic.clone(), topic_partition.partition.0 + 1)?;
        self.backend.catalog().create_group(&topic, &group, Start::Earliest).await?;
        self.own(topic_partition, &group, ttl).await
    }

    /// Acquires a partition for a group that is not created here, and returns the owner.
    ///
    /// # Errors
    /// If another owner has the partition.
    pub async fn own(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        ttl: Duration,
    ) -> Result<Owner, Violation> {
        let resource = Resource::partition(tp.clone(), group.clone());
        self.owner_by(self.granted(&resource, ttl).await?).await
    }

    /// Acquires the partition of `lease` after that lease has expired, and returns the new owner.
    ///
    /// # Errors
    /// If the lease does not expire within the deadline.
    pub async fn takeover(&self, lease: &Lease) -> Result<Owner, Violation> {
        self.owner_by(self.eventually_granted(&lease.resource, LONG).await?).await
    }

    pub(crate) async fn owner_by(&self, lease: Lease) -> Result<Owner, Violation> {
        let reader = self.backend.log().reader(&lease).await?;
        Ok(Owner { lease, reader, harness: self.clone() })
    }

    /// Requests a lease once, under a new nonce.
    ///
    /// # Errors
    /// If another owner has it.
    pub async fn granted(&self, resource: &Resource, ttl: Duration) -> Result<Lease, Violation> {
        match self.acquire(resource, ttl).await? {
            Acquired::Granted(lease) => Ok(lease),
            Acquired::Held(holder) => Err(Violation::new(format!("{resource} is held: {holder:?}"))),
        }
    }

    /// Requests a lease until it is granted.
    ///
    /// # Errors
    /// If it is not granted within the deadline.
    pub async fn eventually_granted(&self, resource: &Resource, ttl: Duration) -> Result<Lease, Violation> {
        let mut deadline = self.wait_for("a lease to run out");
        loop {
            if let Acquired::Granted(lease) = self.acquire(resource, ttl).await? {
                return Ok(lease);
            }
            deadline.pause().await?;
        }
    }

    pub(crate) async fn acquire(&self, resource: &Resource, ttl: Duration) -> Result<Acquired, Violation> {
        let nonce = self.unique("nonce");
        Ok(self.backend.leases().acquire(resource, "testkit", &nonce, ttl, &Continuity::assured()).await?)
    }

    /// Drops what all groups have settled, and returns the number of dropped entries.
    pub(crate) async fn trim(&self, lease: &Lease) -> Result<usize, Violation> {
        Ok(self.trim_by(lease, Retention::Consumed).await?.dropped)
    }

    /// Drops everything that a retention allows to drop.
    pub(crate) async fn trim_by(&self, lease: &Lease, retention: Retention) -> Result<Trimmed, Violation> {
        let mut all = Trimmed::default();
        loop {
            let Trimmed { dropped, lost, more, .. } = self.backend.log().trim(lease, retention).await?;
            all.dropped += dropped;
            all.lost.extend(lost);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Renews one lease and returns the reply.
    pub(crate) async fn renew(&self, lease: &Lease) -> Result<millstream_core::Result<()>, Violation> {
        let mut answers = self.backend.leases().renew(std::slice::from_ref(lease)).await;
        ensure!(answers.len() == 1, "{} answers to one renewal", answers.len());
        Ok(answers.remove(0))
    }

    /// Starts to wait for a condition.
    #[must_use]
    pub fn wait_for(&self, what: &str) -> Deadline {
        Deadline { until: Instant::now() + self.deadline, what: what.to_owned() }
    }
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A wait for a condition that must become true, in small steps and up to a deadline.
#[derive(Debug)]
pub struct Deadline {
    until: Instant,
    what: String,
}

impl Deadline {
    /// Waits for one step.
    ///
    /// # Errors
    /// If the deadline has passed.
    pub async fn pause(&mut self) -> Verdict {
        ensure!(Instant::now() < self.until, "waited in vain for {}", self.what);
        tokio::time::sleep(POLL).await;
        Ok(())
    }
}

/// Returns a message whose payload contains its number.
pub(crate) fn message(n: usize) -> Fields {
    wire::encode(&Envelope::new(format!("message {n}")))
}

/// Number of [`large`] entries that exceed one page.
pub(crate) const LARGE: usize = 12;

/// Returns an entry of 1 MiB that contains its number. All share the same bytes.
pub(crate) fn large(n: usize) -> Fields {
    static BYTES: LazyLock<Bytes> = LazyLock::new(|| vec![0xa5; 1 << 20].into());
    vec![("payload".into(), BYTES.clone()), ("n".into(), n.to_string().into())]
}

/// Returns fields as a foreign program may write them: without payload, with duplicate names, empty, not UTF-8, and
/// unsorted.
pub(crate) fn foreign() -> Fields {
    let pairs: [(&[u8], &[u8]); 6] = [
        (b"zebra", b"\x00\xff\r\n"),
        (b"twice", b"1"),
        (b"\xff\xfe", b"name that is no text"),
        (b"empty", b""),
        (b"twice", b"2"),
        (b"", b"empty name"),
    ];
    pairs.map(|(name, value)| (Bytes::from_static(name), Bytes::from_static(value))).into()
}
