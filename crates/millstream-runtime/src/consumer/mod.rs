//! The consumer: reads topics on behalf of a group.

mod batch;
mod builder;
mod config;
mod context;
mod control;
mod events;
mod group;
mod health;
mod maintenance;
mod partition;
mod pauses;
mod pull;
mod router;
mod shared;
mod status;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::schedule::Place;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use builder::ConsumerBuilder;
pub use config::{Concurrency, ConsumerConfig, RetryOrder, Sharing};
pub use events::{ConsumerEvent, Events};
pub use millstream_core::health::{ConsumerState, Health, LoopFailure, LoopHealth, TopicHealth};
pub use pull::{Pulled, Puller};
pub use router::Router;

use context::{Context, Subscription};
use group::lease_keeper::renew_leases;
use group::lease_table::LeaseTable;
use group::membership::{Membership, Target};
use group::ownership::Ownership;
use millstream_engine::Scope;
use millstream_engine::markers::{MarkerTable, extend_markers};

use crate::report::Report;

/// First pause between two questions of [`Consumer::wait_idle`].
const IDLE_PAUSE: Duration = Duration::from_millis(20);
/// Longest of these pauses, or a 64th of the time waited, if that is longer: each question is a few requests for each partition.
const MAX_IDLE_PAUSE: Duration = Duration::from_secs(1);

/// A running consumer. Server errors never end it: it reports them, pauses and tries again.
///
/// Dropping it stops it in the background, as [`shutdown`](Consumer::shutdown) does, but without waiting.
#[must_use = "a consumer that is dropped stops: keep it, and end it with `shutdown`"]
pub struct Consumer {
    context: Arc<Context>,
    task: Option<JoinHandle<()>>,
}

/// How long a consumer that ends waits until notes of members of batches are taken away.
const LAST_NOTES: Duration = Duration::from_secs(1);

impl Consumer {
    /// Starts the loops of every topic.
    fn spawn(context: Arc<Context>, subscriptions: Vec<(Subscription, Option<MarkerTable>)>) -> Self {
        let control = context.control.clone();
        for (subscription, _) in &subscriptions {
            context.status.consumes(&subscription.topic.name);
            if subscription.config.sharing == Sharing::Shared {
                // Nobody is assigned partitions here, so only the pause state of the group has to be known before reading
                // starts.
                context.pauses.wait_for(&subscription.topic.name);
            }
        }
        let (group, member, health) = (&context.group, &context.member, &health::check(&context));
        context.observer.observe(&Event::ConsumerStarted { group, member, health });
        let run = |(subscription, markers): (Subscription, Option<MarkerTable>)| {
            let subscription = Arc::new(subscription);
            let table = LeaseTable::default();
            let (aim, target) = watch::channel(Target::Unknown);
            let renewals = renew_leases(subscription.clone(), table.clone());
            let membership = Membership::new(subscription.clone(), aim);
            let ownership = Ownership::new(subscription.clone(), table, target);
            let markers = markers.map(|markers| {
                let (keeper, monitor) = (subscription.keeper(), subscription.monitor("extend_markers"));
                let (backend, observer) = (subscription.backend.clone(), subscription.observer.clone());
                extend_markers(backend, keeper, monitor, observer, markers, "heartbeat")
            });
            let control = control.clone();
            let topic = async move {
                // The keeper runs to the very end: a partition is ours until its worker has released the lease.
                let _renewals = control.spawn(renewals.boxed());
                let _membership = control.spawn(membership.run().boxed());
                let _markers = markers.map(|markers| control.spawn(markers.boxed()));
                match subscription.config.sharing {
                    Sharing::Exclusive => ownership.run().await,
                    Sharing::Shared => drop(tokio::join!(ownership.run(), shared::run(subscription))),
                }
            };
            topic.boxed()
        };
        // They are for all topics, and are shown at the first one.
        let first = subscriptions.first().map(|(subscription, _)| subscription.topic.name.clone());
        let topics: Vec<_> = subscriptions.into_iter().map(run).collect();
        let ended = context.ended.clone().drop_guard();
        let shared = context.clone();
        let pool = context.permits.as_ref().zip(first.map(Scope::Topic));
        let pool = pool.map(|(pool, first)| pool.spawn(&control, &context.loops, &first, &context.observer));
        let run = async move {
            let _ended = ended;
            tokio::select! {
                biased;
                _ = join_all(topics) => {}
                () = shared.end_pauses() => {}
            }
            if let Some(pool) = pool {
                pool.end().await;
            }
            if let Some(notes) = &shared.notes {
                notes.finish(LAST_NOTES).await;
            }
            shared.event_sink.end();
        };
        let task = tokio::spawn(run.boxed());
        Self { context, task: Some(task) }
    }

    /// Leaves the group, settles what was handled and releases the partitions.
    ///
    /// It first announces that it leaves and keeps working until other instances have been assigned its partitions. That
    /// takes at most 1 s; it takes no time if there are no other instances, or if this one has a member id and is
    /// therefore expected back. Then it stops reading, waits for the handlers that have started, writes their settlements
    /// and releases the partitions. Messages that were read and not started go to the next owner first. All this takes at
    /// most the [shutdown timeout](ConsumerConfig::shutdown_timeout), also if the server is away. Handlers that still run after
    /// four fifths of it (5 s before its end, if it is long) are dropped. What it left is [`Report::unsettled`], and logged.
    pub async fn shutdown(self) -> Report {
        let timeout = self.context.config.shutdown_timeout;
        self.shutdown_within(timeout).await
    }

    /// Does the same as [`shutdown`](Self::shutdown), with another timeout than the configured one. Settling has at least 1 s in
    /// any case.
    pub async fn shutdown_within(mut self, timeout: Duration) -> Report {
        self.context.stop_within(timeout);
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the consumer ended abnormally");
        }
        let report = self.context.counts.report();
        if report.unsettled > 0 {
            let (group, messages) = (&self.context.group, report.unsettled);
            tracing::warn!(%group, messages, "the consumer ended with unsettled messages: they are handled again");
        }
        report
    }

    /// Waits until the consumer has ended. It ends by itself only if another process consumes under the same member id,
    /// or if one of its topics, or its group there, was deleted: [`cause`](Self::cause) then returns the error, and the
    /// observer gets an event.
    pub async fn ended(&self) {
        self.context.ended.cancelled().await;
    }

    /// Waits until its group has nothing left to do in its topics: nothing unread, nothing in flight, and no retry that is parked, even if it
    /// is due in an hour. For tests and for jobs that end. Delayed messages that are not due are not waited for:
    /// [`wait_idle_with_delayed`](Self::wait_idle_with_delayed) does.
    ///
    /// It asks the backend every 20 ms at first and every second later, and believes two answers in a row between which nothing was handled
    /// here, so it is not deceived by handlers that send to the same topics. Those of other instances of the group may deceive it.
    /// Cancel safe.
    ///
    /// # Errors
    /// The error for which the consumer ended by itself; [`Closed`](ErrorKind::Closed) if it was stopped;
    /// [`Unsupported`](ErrorKind::Unsupported) if the backend does not count. While the backend cannot be reached, it waits.
    pub async fn wait_idle(&self) -> Result<()> {
        self.wait_until_idle(false).await
    }

    /// Does the same as [`wait_idle`](Self::wait_idle), and waits for delayed messages of its topics too: until none waits for its time.
    /// Recurring rules are not waited for, since they never end.
    ///
    /// # Errors
    /// As [`wait_idle`](Self::wait_idle); [`Unsupported`](ErrorKind::Unsupported) if the backend does not list delayed messages.
    pub async fn wait_idle_with_delayed(&self) -> Result<()> {
        self.wait_until_idle(true).await
    }

    async fn wait_until_idle(&self, delayed: bool) -> Result<()> {
        let (mut pause, mut idle, started) = (IDLE_PAUSE, None, Instant::now());
        loop {
            self.context.check()?;
            if self.context.stop.is_cancelled() {
                return Err(Error::new(
                    ErrorKind::Closed,
                    "the consumer was stopped while something was left",
                ));
            }
            let is_idle = match self.has_nothing_left(delayed).await {
                Err(error) if error.is_transient() => false,
                other => other?,
            };
            let report = self.report();
            if is_idle && idle == Some(report) {
                return Ok(());
            }
            idle = is_idle.then_some(report);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.context.stop.cancelled() => {}
            }
            // The second answer is wanted soon.
            let longest = MAX_IDLE_PAUSE.max(started.elapsed() / 64);
            pause = if is_idle { IDLE_PAUSE } else { (pause * 2).min(longest) };
        }
    }

    async fn has_nothing_left(&self, delayed: bool) -> Result<bool> {
        let (catalog, schedule) = (self.context.backend.catalog(), self.context.backend.schedule());
        for topic in self.context.status.topics().keys() {
            let topic = catalog.topic(topic).await?;
            // Before the log: a message that moves there meanwhile is found in one of both.
            for partition in topic.iter().filter(|_| delayed) {
                if schedule.waiting(&Place::Partition(partition)).await?.total > 0 {
                    return Ok(false);
                }
            }
            let stats = catalog.stats(&topic, &self.context.group).await?;
            if stats.iter().any(|it| it.lag != Some(0) || it.pending > 0 || it.retrying > 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns why the consumer ended, or is ending, by itself: [`ErrorKind::Fenced`] if another process consumes under
    /// the same member id, [`ErrorKind::Deleted`] if a topic or group was deleted. `None` if it did not end by itself.
    ///
    /// [`ErrorKind::Fenced`]: millstream_core::ErrorKind::Fenced
    /// [`ErrorKind::Deleted`]: millstream_core::ErrorKind::Deleted
    #[must_use]
    pub fn cause(&self) -> Option<Error> {
        self.context.cause().cloned()
    }

    /// Waits until `shutdown` is ready or the consumer has ended by itself, then shuts it down.
    async fn until(self, shutdown: impl Future<Output = ()>) -> Result<Report> {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.ended() => {}
        }
        let context = self.context.clone();
        let report = self.shutdown().await;
        context.check()?;
        Ok(report)
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.context.counts.report()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.context.stop.cancel();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("group", &self.context.group)
            .field("member", &self.context.member)
            .finish_non_exhaustive()
    }
}
