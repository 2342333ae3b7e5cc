//! Reads of the queue, shared by all tabs.

pub(crate) mod batches;
pub(crate) mod budget;
pub(crate) mod cached;
pub(crate) mod counts;
pub(crate) mod health;
pub(crate) mod sampler;
pub(crate) mod snapshots;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use millstream::admin::{
    Admin, Cursor, LimitRules, LockCursor, LockPage, Memory, Messages, OpenBreaker, Owners, PermitState,
    Server, ShelfFilter,
};
use millstream::crates::core::{Limits, QueueName};
use millstream::delay::DelayQueue;
use millstream::{BatchId, Error, ErrorKind, GroupName, Millstream, Timestamp, TopicName};

use crate::access::Access;
use crate::audit::Audit;
use crate::failure::Failure;
use crate::view::Page;
use batches::Batch;
use budget::Budget;
use cached::Cached;
use counts::{FilterKey, LetterCount, LetterCounts};
use sampler::{Queue, Sampler};
use snapshots::{Snapshot, Snapshots};

/// Age of what changes all the time.
const LIVE: Duration = Duration::from_secs(2);
/// Age of what is read with more requests.
const SLOW: Duration = Duration::from_secs(10);
/// Commands for the owners of a group, beside those of its partitions.
const OF_OWNERS: u64 = 6;
/// Maximum number of topics whose last state is kept.
const TOPICS: usize = 20_000;
/// Number of entries of the audit log that are read together.
const AUDITED: usize = 200;
/// Number of batches that are kept: a large one has thousands of blocks.
const BATCHES: usize = 200;
/// Keys of limits with one beginning that are read at most.
const LIMITED: usize = 10_000;
/// Time after which the rates of a group that nobody looks at are forgotten.
const UNUSED: Duration = Duration::from_secs(600);

/// Reads of the queue, shared by all tabs.
pub(crate) struct Reading {
    mq: Millstream,
    reader: Snapshots,
    topics: Cached<(), Vec<TopicName>>,
    /// Topics of the last reading.
    seen: Mutex<Vec<TopicName>>,
    snapshots: Cached<TopicName, Snapshot>,
    owners: Cached<(TopicName, GroupName), Owners>,
    counts: LetterCounts,
    queues: Cached<(), Vec<QueueName>>,
    servers: Cached<(), Vec<Server>>,
    memory: Cached<TopicName, Memory>,
    /// By the number of changes by users of this process, so that they see what they did, and the beginning of the keys.
    limits: Cached<(u64, String), LimitsInUse>,
    locks: Cached<Option<LockCursor>, LockPage>,
    /// By the number of changes by users of this process, so that they see what they did.
    batches: Cached<(u64, BatchId), Batch>,
    /// By the number of entries that this process had written, so that its users see what they did.
    audit: Cached<(u64, TopicName, Option<Cursor>), Option<Messages>>,
    /// Whole pages that are refreshed, by address and rights, so that tabs cost nothing.
    pages: Cached<(u64, String, Access), Page, Failure>,
    /// Number of changes by users of this process: pages from before one are not shown after it.
    changes: AtomicU64,
    budget: Arc<Budget>,
    /// What was read in the background.
    pub(crate) sampler: Sampler,
    tasks: Cached<QueueName, Queue>,
}

/// Keys of limits that are in use or waited for, and the rules.
pub(crate) struct LimitsInUse {
    pub(crate) breakers: Vec<OpenBreaker>,
    pub(crate) keys: Vec<PermitState>,
    pub(crate) rules: LimitRules,
    /// Whether there are more keys than were read.
    pub(crate) more: bool,
}

impl LimitsInUse {
    async fn read(admin: &Admin, prefix: &str) -> Result<Self, Error> {
        let (rules, mut keys, mut from) = (admin.limit_rules().await?, Vec::new(), Some(0));
        while keys.len() < LIMITED
            && let Some(at) = from
        {
            let page = admin.limits_in_use(at, 500).await?;
            keys.extend(page.keys.into_iter().filter(|state| state.key.as_str().starts_with(prefix)));
            from = page.next;
        }
        // One that is in two parts of the list is shown once.
        keys.sort_by(|one, other| one.key.cmp(&other.key));
        keys.dedup_by(|one, other| one.key == other.key);
        let mut breakers = admin.open_breakers().await?;
        breakers.retain(|it| it.key.as_str().starts_with(prefix));
        Ok(Self { breakers, keys, rules, more: from.is_some() })
    }
}

impl Reading {
    pub(crate) fn new(mq: &Millstream, audit: &Arc<Audit>, late_after: Duration) -> Self {
        let budget = Arc::<Budget>::default();
        Self {
            mq: mq.clone(),
            reader: Snapshots::new(mq, audit, late_after),
            topics: Cached::new(LIVE),
            seen: Mutex::default(),
            snapshots: Cached::new(LIVE).keeping(TOPICS),
            owners: Cached::new(LIVE),
            counts: LetterCounts::new(budget.clone()),
            queues: Cached::new(LIVE),
            servers: Cached::new(SLOW),
            memory: Cached::new(SLOW * 3),
            limits: Cached::new(LIVE),
            locks: Cached::new(LIVE),
            batches: Cached::new(LIVE).keeping(BATCHES),
            audit: Cached::new(LIVE),
            pages: Cached::new(LIVE).without_errors(),
            changes: AtomicU64::new(0),
            budget,
            sampler: Sampler::default(),
            tasks: Cached::new(LIVE),
        }
    }

    /// Returns the topics that are listed, and those that were, and are still there: the pages of these say what is wrong.
    ///
    /// # Errors
    /// Those of `Admin::topics`.
    pub(crate) async fn topics(&self) -> Result<Arc<Vec<TopicName>>, Error> {
        self.topics.get(&(), async || self.listed_topics().await).await
    }

    async fn listed_topics(&self) -> Result<Vec<TopicName>, Error> {
        let mut names = self.mq.admin().topics().await?;
        let mut before = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        before.retain(|name| names.binary_search(name).is_err());
        for name in before {
            match self.mq.admin().topic(&name).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                _ => names.push(name),
            }
        }
        names.sort_unstable();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = names.clone();
        Ok(names)
    }

    /// Reads a topic, no more often than its commands allow.
    ///
    /// # Errors
    /// Those of `Admin::survey`.
    pub(crate) async fn topic(&self, name: &TopicName) -> Result<Arc<Snapshot>, Error> {
        let mut read = self.topics_of(std::slice::from_ref(name)).await;
        read.remove(name).unwrap_or_else(|| Err(Error::new(ErrorKind::Protocol, "no topic was read")))
    }

    /// Reads topics together, each no more often than its commands allow.
    pub(crate) async fn topics_of(
        &self,
        names: &[TopicName],
    ) -> BTreeMap<TopicName, Result<Arc<Snapshot>, Error>> {
        self.reader.forget(UNUSED);
        let pace = |it: &Snapshot| Some(self.budget.charge(&it.topic.name, it.commands()));
        let read = async |asked: Vec<(TopicName, Option<Arc<Snapshot>>)>| {
            // Its curves begin with what was read in the background.
            let asked = asked.into_iter().map(|(name, last)| {
                let last = last.or_else(|| self.sampler.topic(&name));
                (name, last)
            });
            self.reader.read(asked.collect()).await
        };
        let read = self.snapshots.get_many(names, pace, read).await;
        self.sampler.keep(&read);
        read
    }

    /// Lists the topics for the background, and reads the delay queues.
    async fn all_topics(&self) -> Result<Vec<TopicName>, Error> {
        let names = self.listed_topics().await?;
        self.sampler.retain(&names);
        // Queues that cannot be listed hide no topic.
        if let Ok(tasks) = self.mq.backend().tasks()
            && let Ok(listed) = tasks.queues().await
        {
            let mut queues = BTreeMap::new();
            for name in listed {
                let known = self.count_tasks(&name).await;
                queues.insert(name, known);
            }
            self.sampler.keep_queues(queues);
        }
        Ok(names)
    }

    /// Reads topics for the background, and returns the number of commands. Pages still read by themselves when they are first
    /// looked at; both together cost no more than the commands of a topic allow.
    async fn in_background(&self, names: &[TopicName]) -> u64 {
        let asked: Vec<_> = names.iter().map(|name| (name.clone(), self.sampler.topic(name))).collect();
        let read = self.reader.read(asked).await;
        let read = names.iter().cloned().zip(read.into_iter().map(|it| it.map(Arc::new))).collect();
        self.sampler.keep(&read);
        let commands = read.values().flatten().map(|it: &Arc<Snapshot>| {
            self.budget.charge(&it.topic.name, it.commands());
            it.commands()
        });
        commands.sum()
    }

    /// Counts the tasks of a delay queue.
    pub(crate) async fn queue(&self, name: &QueueName) -> Result<Arc<Queue>, Error> {
        self.tasks.get(name, async || self.count_tasks(name).await).await
    }

    async fn count_tasks(&self, name: &QueueName) -> Result<Queue, Error> {
        let backend = self.mq.backend();
        let shards = backend.tasks()?.queue(name).await?.shards;
        let queue = DelayQueue::raw(name.as_str()).shards(shards).limits(Limits::NONE).open(backend).await?;
        let (counts, rules) = (queue.count().await?, queue.recurring_list().await?);
        let at = Timestamp::from(SystemTime::now());
        let next = rules.into_iter().filter(|rule| !rule.paused).filter_map(|rule| rule.next);
        Ok(Queue { shards, counts, late_rules: health::late(next, at), at })
    }

    /// Reads a topic that has this group. One that was created since the last reading is found.
    ///
    /// # Errors
    /// A group that does not exist; those of [`topic`](Self::topic).
    pub(crate) async fn of_group(
        &self,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<Arc<Snapshot>, Failure> {
        let snapshot = self.topic(topic).await?;
        if snapshot.groups.contains_key(group) {
            return Ok(snapshot);
        }
        if self.mq.backend().catalog().groups(topic).await?.contains(group) {
            self.snapshots.expire(topic);
            return Ok(self.topic(topic).await?);
        }
        Err(Failure::missing(format!("group {group} of topic {topic} does not exist")))
    }

    pub(crate) async fn owners(&self, topic: &TopicName, group: &GroupName) -> Result<Arc<Owners>, Error> {
        let key = (topic.clone(), group.clone());
        let commands = |it: &Owners| OF_OWNERS + snapshots::OF_OWNER * it.partitions.len() as u64;
        let pace = |it: &Owners| Some(self.budget.charge(topic, commands(it)));
        self.owners.get_paced(&key, pace, async || self.mq.admin().owners(topic, group).await).await
    }

    /// Counts the dead letters that match a filter. `key` is the filter as the parameters of the page have it.
    ///
    /// # Errors
    /// Those of `Admin::dead_letters` and of `ShelfWalk::run_once`.
    pub(crate) async fn letters(
        &self,
        topic: &TopicName,
        group: &GroupName,
        (key, filter): (FilterKey, &ShelfFilter),
    ) -> Result<Arc<LetterCount>, Error> {
        let open = async || self.mq.admin().dead_letters(topic, group).await;
        self.counts.get((topic, group, key), filter, open).await
    }

    pub(crate) async fn queues(&self) -> Result<Arc<Vec<QueueName>>, Error> {
        self.queues.get(&(), async || self.mq.backend().tasks()?.queues().await).await
    }

    pub(crate) async fn servers(&self) -> Result<Arc<Vec<Server>>, Error> {
        self.servers.get(&(), async || self.mq.admin().servers().await).await
    }

    pub(crate) async fn memory(&self, topic: &TopicName) -> Result<Arc<Memory>, Error> {
        self.memory.get(topic, async || self.mq.admin().memory(topic).await).await
    }

    pub(crate) async fn limits(&self, prefix: &str) -> Result<Arc<LimitsInUse>, Error> {
        let key = (self.changes.load(Ordering::Relaxed), prefix.to_owned());
        self.limits.get(&key, async || LimitsInUse::read(&self.mq.admin(), prefix).await).await
    }

    pub(crate) async fn locks(&self, from: Option<LockCursor>) -> Result<Arc<LockPage>, Error> {
        self.locks.get(&from, async || self.mq.admin().locks(from.as_ref(), 200).await).await
    }

    /// Reads a batch, no more often than the commands of its topic allow.
    ///
    /// # Errors
    /// Those of `Admin::batch`.
    pub(crate) async fn batch(&self, id: &BatchId) -> Result<Arc<Batch>, Error> {
        let key = (self.changes.load(Ordering::Relaxed), id.clone());
        let pace = |it: &Batch| Some(self.budget.charge(&id.place.topic, it.commands));
        self.batches.get_paced(&key, pace, async || Batch::read(&self.mq, id).await).await
    }

    pub(crate) async fn audit(
        &self,
        audit: &Audit,
        topic: &TopicName,
        after: Option<Cursor>,
    ) -> Result<Arc<Option<Messages>>, Error> {
        let key = (audit.written(), topic.clone(), after);
        self.audit.get(&key, async || audit.read(topic, after, AUDITED).await).await
    }

    /// Returns a page that is refreshed, made at most once for all tabs with the same address and rights. `commands` are those
    /// that it costs beside the readings above.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) async fn page(
        &self,
        (address, access): (String, Access),
        topic: Option<(TopicName, u64)>,
        make: impl AsyncFnOnce() -> Result<Page, Failure>,
    ) -> Result<Arc<Page>, Failure> {
        let pace = |page: &Page| {
            let charged = topic.as_ref().map(|(topic, commands)| self.budget.charge(topic, *commands));
            page.live.then(|| charged.unwrap_or_default())
        };
        let key = (self.changes.load(Ordering::Relaxed), address, access);
        self.pages.get_paced(&key, pace, make).await
    }

    /// Makes pages anew after a change by a user.
    pub(crate) fn acted(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the next page show a topic that was created or deleted.
    pub(crate) fn listed(&self, topic: &TopicName) {
        self.topics.expire(&());
        self.changed(topic, None);
    }

    /// Makes the next page show what was changed.
    pub(crate) fn changed(&self, topic: &TopicName, group: Option<&GroupName>) {
        self.acted();
        self.snapshots.expire(topic);
        if let Some(group) = group {
            let key = (topic.clone(), group.clone());
            self.owners.expire(&key);
            self.counts.expire(topic, group);
        }
    }
}
