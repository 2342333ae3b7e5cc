//! The consumer: a group's work on a topic.

mod batch;
mod builder;
mod config;
mod context;
mod control;
mod events;
mod group;
mod handler;
mod health;
mod maintenance;
mod partition;
mod pauses;
mod pull;
mod shared;
mod status;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::error::{Error, Result};
use millstream_core::event::Event;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use batch::{Batch, BatchConfig, BatchOutcome, IntoBatchOutcome};
pub use builder::ConsumerBuilder;
pub use config::{Concurrency, ConsumerConfig, RetryOrder, Sharing};
pub use events::{ConsumerEvent, Events};
pub use millstream_core::health::{ConsumerState, Failure, Health, LoopHealth, TopicHealth};
pub use pull::{Pulled, Puller};

pub(crate) use partition::PartitionHandle;

use context::{Context, Subscription};
use group::lease_keeper::LeaseKeeper;
use group::lease_table::LeaseTable;
use group::membership::{Membership, Target};
use group::ownership::Ownership;

use crate::report::Report;

/// A running consumer. Errors of the server never end it: it tells, pauses and goes on.
///
/// Dropping it stops it in the background, as [`shutdown`](Consumer::shutdown) does without the waiting.
#[must_use = "a consumer that is dropped stops: keep it, and end it with `shutdown`"]
pub struct Consumer {
    context: Arc<Context>,
    task: Option<JoinHandle<()>>,
}

impl Consumer {
    /// Starts the loops of every topic.
    fn spawn(context: Arc<Context>, subscriptions: Vec<Subscription>) -> Self {
        let control = context.control.clone();
        for subscription in &subscriptions {
            context.status.consumes(&subscription.topic.name);
            if subscription.config.sharing == Sharing::Shared {
                // Without owners there is nothing to be heard of before reading, but whether the group is paused.
                context.pauses.wait_for(&subscription.topic.name);
            }
        }
        let (group, member, health) = (&context.group, &context.member, &health::check(&context));
        context.observer.observe(&Event::ConsumerStarted { group, member, health });
        let run = |subscription: Subscription| {
            let subscription = Arc::new(subscription);
            let held = LeaseTable::default();
            let (aim, target) = watch::channel(Target::Unknown);
            let renewer = LeaseKeeper::new(subscription.clone(), held.clone());
            let membership = Membership::new(subscription.clone(), aim);
            let ownership = Ownership::new(subscription.clone(), held, target);
            let control = control.clone();
            async move {
                // Renewed to the very end: a partition is ours until its worker has given it back.
                let _renewals = control.spawn(renewer.run());
                let _membership = control.spawn(membership.run());
                match subscription.config.sharing {
                    Sharing::Exclusive => ownership.run().await,
                    Sharing::Shared => drop(tokio::join!(ownership.run(), shared::run(subscription))),
                }
            }
        };
        let topics: Vec<_> = subscriptions.into_iter().map(run).collect();
        let ended = context.ended.clone().drop_guard();
        let shared = context.clone();
        let task = tokio::spawn(async move {
            let _ended = ended;
            tokio::select! {
                biased;
                _ = join_all(topics) => {}
                () = shared.end_pauses() => {}
            }
            shared.event_sink.end();
        });
        Self { context, task: Some(task) }
    }

    /// Says that it leaves, and goes on until other instances know what they are to take over (1 s at most; no time if
    /// there are none, or if it has a member id and so is expected back). Then it stops reading, lets the handlers that
    /// have started end, settles what they said, and gives the partitions back. What was read and not started goes to
    /// the next owner first. All this takes up to the shutdown timeout; then handlers are given up.
    pub async fn shutdown(self) -> Report {
        let timeout = self.context.config.shutdown_timeout;
        self.shutdown_within(timeout).await
    }

    /// [`shutdown`](Self::shutdown) with another timeout than the one that is set.
    pub async fn shutdown_within(mut self, timeout: Duration) -> Report {
        self.context.stop_within(timeout);
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the consumer ended abnormally");
        }
        self.context.counts.report()
    }

    /// Waits until it has ended. It does so by itself only if another process consumes under the same member id, or one of
    /// its topics, or its group there, was deleted: [`cause`](Self::cause) says so, and the observer is told.
    pub async fn ended(&self) {
        self.context.ended.cancelled().await;
    }

    /// Why it ended, or is ending, by itself: [`ErrorKind::Fenced`] if another process consumes under the same member id,
    /// [`ErrorKind::Deleted`] if a topic or group was deleted. `None` if it did not.
    ///
    /// [`ErrorKind::Fenced`]: millstream_core::ErrorKind::Fenced
    /// [`ErrorKind::Deleted`]: millstream_core::ErrorKind::Deleted
    #[must_use]
    pub fn cause(&self) -> Option<Error> {
        self.context.cause().map(Error::duplicate)
    }

    /// Waits until `shutdown` is ready, or it has ended by itself, and shuts down.
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

    /// What it did so far.
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
