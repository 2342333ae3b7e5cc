//! The promoter without a lease: moves the delayed messages of a whole topic, for topics that have no consumers (yet)
//! or whose consumers are not to do it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::error::Result;
use millstream_core::event::{Event, Ignore, Observer};
use millstream_core::panics::Careful;
use millstream_core::schedule::{Promoted, Seen};
use millstream_core::{Backend, Capability, TopicPartition, TopicSpec};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::expected::Expected;
use crate::fire::Firings;
use crate::promoter::{LONGEST_BREATH, PromoterConfig};
use crate::sleep::Sleep;
use millstream_engine::catch_panic;
use millstream_engine::{Loops, Scope};

/// Interval at which the number of partitions of the topic is read again.
const REFRESH: Duration = Duration::from_secs(60);

/// Promoter for a whole topic, without a lease: moves the delayed messages of all partitions into their logs when they
/// are due, and fires recurring messages. It does not move retries of groups: the owners of their partitions do.
///
/// Any number may run at once, also beside consumers, which do the same for the partitions that they own: each message
/// is moved once. So no election is needed; to run only one all the same, elect it with a lease.
pub struct DelayedPromoter {
    backend: Backend,
    topic: TopicSpec,
    config: PromoterConfig,
    observer: Arc<dyn Observer>,
    firings: Firings,
    expected: Expected,
    sleep: Sleep,
    loops: Loops,
}

/// Wait of one partition's loop for messages that are due before all others.
#[derive(Default)]
struct Ear {
    /// State that was known before the last call: changes after it are not missed.
    seen: Option<Seen>,
    /// Pending wait, kept over many rounds: a cancelled wait costs a connection.
    waiting: Option<BoxFuture<'static, Result<Seen>>>,
}

impl DelayedPromoter {
    /// Returns a promoter for `topic`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig), as for a
    /// [`Promoter`](crate::Promoter::new); [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) for a
    /// backend that promotes under a lease only.
    pub fn new(backend: &Backend, topic: TopicSpec, config: PromoterConfig) -> Result<Self> {
        config.check()?;
        backend.require(Capability::PromoteDelayed)?;
        let (backend, sleep) = (backend.clone(), Sleep::beside(backend));
        let (observer, firings, expected) = (Arc::new(Ignore), Firings::default(), Expected::default());
        let loops = Loops::default();
        Ok(Self { backend, topic, config, observer, firings, expected, sleep, loops })
    }

    /// Sets the observer, which receives the events of this promoter.
    #[must_use]
    pub fn observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Careful::over(Arc::new(observer)), ..self }
    }

    /// Moves until `shutdown` completes. Errors do not end it: it reports the error, pauses and continues. Partitions
    /// that are added to the topic are included within a minute.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = Arc::new(self).all() => {}
        }
    }

    /// Moves until this future is dropped.
    pub async fn run(self) {
        self.run_until(std::future::pending()).await;
    }

    async fn all(self: Arc<Self>) {
        let mut partitions: Vec<_> = self.topic.iter().collect();
        let mut loops = JoinSet::new();
        let monitor = self.loops.monitor("refresh", Scope::Topic(self.topic.name.clone()));
        self.loops.announce(None, &*self.observer);
        let mut running = 0;
        loop {
            for topic_partition in partitions.drain(..).skip(running) {
                running += 1;
                loops.spawn(self.clone().partition(topic_partition));
            }
            tokio::time::sleep(REFRESH).await;
            match catch_panic(self.backend.catalog().topic(&self.topic.name)).await {
                Ok(topic) => {
                    monitor.succeeded(&*self.observer);
                    partitions = topic.iter().collect();
                }
                // The next refresh is soon enough.
                Err(error) => drop(monitor.failed(&error, &*self.observer)),
            }
        }
    }

    async fn partition(self: Arc<Self>, topic_partition: TopicPartition) {
        let monitor = self.loops.monitor("promote", Scope::Partition(topic_partition.clone()));
        let mut ear = Ear::default();
        loop {
            let pause = match catch_panic(self.round(&topic_partition, &mut ear)).await {
                Ok(()) => {
                    monitor.succeeded(&*self.observer);
                    continue;
                }
                Err(error) => monitor.failed(&error, &*self.observer),
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Moves due messages, and sleeps until the next due time, or until a message with an earlier one arrives.
    async fn round(&self, topic_partition: &TopicPartition, ear: &mut Ear) -> Result<()> {
        let schedule = self.backend.schedule();
        let known = match &ear.seen {
            Some(known) => known.clone(),
            None => schedule.wait(topic_partition, &Seen::default(), Duration::ZERO).await?,
        };
        ear.seen = Some(known.clone());
        let pause = self.run_once(topic_partition).await?;
        let over = self.sleep.until(Instant::now() + pause);
        if pause <= LONGEST_BREATH {
            over.await;
            // Yields to other tasks, also where no await is ever pending.
            tokio::task::yield_now().await;
            return Ok(());
        }
        tokio::pin!(over);
        loop {
            let waiting = ear.waiting.get_or_insert_with(|| {
                let (schedule, topic_partition) = (Arc::clone(schedule), topic_partition.clone());
                let (known, timeout) = (known.clone(), self.config.longest_sleep);
                Box::pin(catch_panic(async move { schedule.wait(&topic_partition, &known, timeout).await }))
            });
            let woken = tokio::select! {
                biased;
                woken = waiting => woken,
                () = &mut over => return Ok(()),
            };
            ear.waiting = None;
            let earlier = woken?;
            if earlier != known {
                ear.seen = Some(earlier);
                return Ok(());
            }
        }
    }

    /// Moves due messages of a partition once, at most as many as fit in one call. Returns the time until the next call.
    ///
    /// # Errors
    /// Those of [`Schedule::promote_delayed`](millstream_core::Schedule::promote_delayed). A failure to fire a
    /// recurring message is reported to the observer, and tried again later.
    pub async fn run_once(&self, topic_partition: &TopicPartition) -> Result<Duration> {
        let started = Instant::now();
        let promoted = self.backend.schedule().promote_delayed(topic_partition, self.config.limit).await?;
        let Promoted { moved: messages, orphans, next, recurring } = promoted;
        let late = self.expected.answered(topic_partition, messages + orphans, next);
        if messages + orphans > 0 {
            self.observer.observe(&Event::DelayedPromoted { topic_partition, messages, orphans, late });
        }
        let again = self.firings.round(recurring, &self.backend, topic_partition, &*self.observer).await;
        Ok(self.config.pause(PromoterConfig::next(messages + orphans, next, again), started))
    }
}

impl fmt::Debug for DelayedPromoter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayedPromoter")
            .field("topic", &self.topic)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
