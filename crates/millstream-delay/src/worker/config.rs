//! The configuration of a worker.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::Problems;
use millstream_core::policy::{Exponential, Keep};
use millstream_core::tasks::MAX_WINDOW;
use millstream_core::{DeadLetterPolicy, RetryPolicy};

use millstream_engine::limits::LimitSet;

use crate::sleep::LONGEST_SLEEP;

/// Configuration of a [`Worker`](crate::Worker).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// Label in the worker's name: people see it as the worker that waits for due tasks. A unique part is appended. It
    /// has no other effect. At most 64 characters without spaces. Default: `worker`.
    pub label: String,
    /// Maximum number of tasks held at once, over all shards, from claim to settlement. Nothing is read ahead. Those that wait for
    /// [limits](crate::WorkerBuilder::limit) do not count. Default: 16.
    pub concurrency: usize,
    /// Limits across processes.
    pub(super) limits: LimitSet,
    /// Maximum number of tasks that wait for [limits](crate::WorkerBuilder::limit), over all shards. They are claimed, and no other worker has
    /// them meanwhile. When the maximum is reached, or 64 MiB of their bodies, no more are claimed until some can begin; it may be
    /// exceeded by [`concurrency`](Self::concurrency). Their claims are renewed like all others. 1 to 10,000. Default: 1,000.
    pub max_blocked: usize,
    /// How long a claim is valid without a renewal, which is also how long a task waits when its worker dies. Claims
    /// are renewed three times within this time. Default: 30 s.
    pub hold: Duration,
    /// Number of workers that may die during one task, or stall for longer than the hold time. At this number the task
    /// becomes a dead task with the reason `crashed` and is not worked on again. At least 2, since one death does not
    /// identify the culprit among the tasks of that worker; 0 for no limit. A claim that ran out during an outage, or
    /// whose handler never began, does not count. Default: 3.
    pub crash_limit: u32,
    /// Time limit of a handler, its check included. After it the handler is dropped, which counts as a failed attempt
    /// ([`FailureKind::Timeout`](millstream_core::policy::FailureKind::Timeout)). Default: no limit.
    pub handler_timeout: Option<Duration>,
    /// How long the id of a completed task stays in use: a task that is scheduled under it meanwhile is
    /// [`Placed::Done`](millstream_core::schedule::Placed::Done) and not stored. By the server's clock, 1 ms to 30 days.
    /// Costs about 145 bytes of the server's memory for each task and window, with ids of 32 bytes on Redis 7.0. All workers of a
    /// queue should have the same.
    /// Default: none, an id is free once its task is done.
    pub done_window: Option<Duration>,
    /// Time limit of a shutdown. Handlers have four fifths of it to end (all but the last 5 s of a long one). The rest,
    /// at least 250 ms, is for settling their tasks. Default: 25 s, which fits into the 30 s that Kubernetes allows.
    pub shutdown_timeout: Duration,
    /// Longest sleep, which is the maximum delay that a lost wake-up can cause. Each sleep costs two commands per
    /// shard. 10 ms to a day. Default: 15 s. Over a [backend](millstream_core::Backend::is_lasting) that ends with the process, as
    /// `memory://`, no wake-up is lost, and it is a day.
    pub longest_sleep: Duration,
    /// Policy that decides when a failed task is retried. Default: [`Exponential`], 10 attempts.
    pub retry: Arc<dyn RetryPolicy>,
    /// Whether the [results](millstream_core::results) of tasks that failed, or were done without a reply, are stored too. A handler whose return
    /// type is a [`Reply`](millstream_core::Reply) does so in any case. Default: no: a reply that a handler returns is stored, and nothing else.
    pub replies: bool,
    /// Policy that decides whether a task that is given up is kept. Default: [`Keep`].
    pub dead_letters: Arc<dyn DeadLetterPolicy>,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            label: "worker".into(),
            concurrency: 16,
            limits: LimitSet::default(),
            max_blocked: 1_000,
            hold: Duration::from_secs(30),
            crash_limit: 3,
            handler_timeout: None,
            done_window: None,
            shutdown_timeout: Duration::from_secs(25),
            longest_sleep: Duration::from_secs(15),
            retry: Arc::new(Exponential::default()),
            replies: false,
            dead_letters: Arc::new(Keep),
        }
    }
}

impl WorkerConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        if let Err(why) = self.retry.check() {
            problems.require(false, || format!("retry: {why}"));
        }
        problems.require((1..=10_000).contains(&self.concurrency), || {
            format!("concurrency is {}, 1 to 10000 are allowed", self.concurrency)
        });
        problems.require((1..=10_000).contains(&self.max_blocked), || {
            format!("max_blocked is {}, 1 to 10000 are allowed", self.max_blocked)
        });
        self.limits.check(problems);
        problems.require(!self.limits.cancels(), || {
            "or_cancel is not for tasks: one that comes back would cancel a newer one".into()
        });
        problems.require(self.hold >= Duration::from_millis(100), || {
            format!("hold is {:?}, at least 100ms are needed to renew it in time", self.hold)
        });
        problems.require(self.hold <= Duration::from_secs(24 * 3_600), || {
            format!("hold is {:?}, at most a day is allowed", self.hold)
        });
        problems.require(self.crash_limit != 1, || {
            "crash_limit is 1, at least 2 are needed to know the culprit (0 for none)".into()
        });
        problems.require(!self.handler_timeout.is_some_and(|timeout| timeout.is_zero()), || {
            "handler_timeout is zero".into()
        });
        let allowed = Duration::from_millis(1)..=MAX_WINDOW;
        problems.require(self.done_window.is_none_or(|window| allowed.contains(&window)), || {
            format!(
                "done_window is {:?}, 1ms to {MAX_WINDOW:?} are allowed",
                self.done_window.unwrap_or_default()
            )
        });
        problems.require(self.longest_sleep >= Duration::from_millis(10), || {
            format!("longest_sleep is {:?}, at least 10ms are needed", self.longest_sleep)
        });
        problems.require(self.longest_sleep <= LONGEST_SLEEP, || {
            format!("longest_sleep is {:?}, at most a day is allowed", self.longest_sleep)
        });
        let label = (1..=64).contains(&self.label.len()) && !self.label.contains(char::is_whitespace);
        problems.require(label && !self.label.contains(char::is_control), || {
            format!("label {:?} is not 1 to 64 characters without spaces", self.label)
        });
    }
}
