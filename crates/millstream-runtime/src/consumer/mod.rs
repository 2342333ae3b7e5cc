//! The consumer: a group's work on a topic.

mod assign;
mod batch;
mod builder;
mod chase;
mod config;
mod context;
mod decide;
mod dispatch;
mod fetch;
mod gates;
mod guard;
mod handler;
mod heart;
mod held;
mod in_flight;
mod job;
mod lanes;
mod membership;
mod owned;
mod ownership;
mod pull;
mod renew;
mod settle;
mod suspects;
mod trim;
mod upkeep;
mod waits;
mod worker;

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use millstream_core::error::Result;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use batch::{Batch, BatchConfig, BatchOutcome, IntoBatchOutcome};
pub use builder::ConsumerBuilder;
pub use config::{Concurrency, ConsumerConfig, RetryOrder};
pub use pull::{Pulled, Puller};

pub(crate) use owned::Owned;

use context::{Context, Subscription};
use held::Held;
use membership::{Membership, Target};
use ownership::Ownership;
use renew::Renewer;

use crate::report::Report;

/// A running consumer. Errors of the server never end it: it tells, pauses and goes on.
///
/// Dropping it stops it in the background, as [`shutdown`](Consumer::shutdown) does without the waiting.
pub struct Consumer {
    context: Arc<Context>,
    task: Option<JoinHandle<()>>,
}

impl Consumer {
    /// Starts the loops of every topic.
    fn spawn(context: Arc<Context>, subscriptions: Vec<Subscription>) -> Self {
        let heart = context.heart.clone();
        let run = |subscription: Subscription| {
            let subscription = Arc::new(subscription);
            let held = Held::default();
            let (aim, target) = watch::channel(Target::Unknown);
            let renewer = Renewer::new(subscription.clone(), held.clone());
            let membership = Membership::new(subscription.clone(), aim);
            let ownership = Ownership::new(subscription, held, target);
            let heart = heart.clone();
            async move {
                // Renewed to the very end: a partition is ours until its worker has given it back.
                let _renewals = heart.spawn(renewer.run());
                let _membership = heart.spawn(membership.run());
                ownership.run().await;
            }
        };
        let topics: Vec<_> = subscriptions.into_iter().map(run).collect();
        let ended = context.ended.clone().drop_guard();
        let task = tokio::spawn(async move {
            let _ended = ended;
            join_all(topics).await;
        });
        Self { context, task: Some(task) }
    }

    /// Stops reading, lets the handlers that have started end (up to the shutdown timeout), settles what they said,
    /// and gives the partitions back. What was read and not started goes to the next owner first.
    pub async fn shutdown(mut self) -> Report {
        self.context.stop.cancel();
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the consumer ended abnormally");
        }
        self.context.counts.report()
    }

    /// Waits until it has ended. It does so by itself only if another process consumes under the same member id; the
    /// observer is told.
    pub async fn ended(&self) {
        self.context.ended.cancelled().await;
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
