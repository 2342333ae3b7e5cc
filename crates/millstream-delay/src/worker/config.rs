//! How a worker works.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::Problems;
use millstream_core::policy::{Exponential, Keep};
use millstream_core::{DeadLetterPolicy, RetryPolicy};

use crate::sleep::LONGEST_SLEEP;

/// How a [`Worker`](crate::Worker) works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// What people see as who looks out for what is due; a unique part is added. It decides nothing. At most 64
    /// characters without spaces. Default: `worker`.
    pub label: String,
    /// The most tasks in its hands at once, over all shards, from claim to settlement. Nothing is read ahead. Default: 16.
    pub concurrency: usize,
    /// How long a task stays ours without a renewal, and so how long it waits when its worker dies. It is renewed three
    /// times as often. Default: 30 s.
    pub hold: Duration,
    /// A task over which so many workers died (or stood still for as long as they hold it) becomes a dead task with the
    /// reason `crashed` instead of being worked on again; at least 2, since one end cannot tell the culprit among the tasks
    /// that the worker had; 0 for never. What ran out during an outage, or was never begun, does not count. Default: 3.
    pub crash_limit: u32,
    /// How long a handler may take, its check included. One that takes longer is dropped, and that is a failed attempt
    /// ([`FailureKind::Timeout`](millstream_core::policy::FailureKind::Timeout)). Default: any time.
    pub handler_timeout: Option<Duration>,
    /// How long a shutdown may take. Handlers have four fifths of it to end (all but the last 5 s of a long one); the
    /// rest, at least 250 ms, is for telling the server what became of their tasks. Default: 25 s, which fits into the 30 s
    /// that Kubernetes gives.
    pub shutdown_timeout: Duration,
    /// The longest sleep, and so the most that a lost wake-up can cost. Each costs two commands per shard. 10 ms to a
    /// day. Default: 15 s.
    pub longest_sleep: Duration,
    /// When a failed task comes back. Default: [`Exponential`], 10 attempts.
    pub retry: Arc<dyn RetryPolicy>,
    /// Whether a task that is given up is kept. Default: [`Keep`].
    pub dead_letters: Arc<dyn DeadLetterPolicy>,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            label: "worker".into(),
            concurrency: 16,
            hold: Duration::from_secs(30),
            crash_limit: 3,
            handler_timeout: None,
            shutdown_timeout: Duration::from_secs(25),
            longest_sleep: Duration::from_secs(15),
            retry: Arc::new(Exponential::default()),
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
