//! How a consumer works.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::Problems;
use millstream_core::policy::{Exponential, Keep};
use millstream_core::{DeadLetterPolicy, Limits, RetryPolicy, Start};

/// How a consumer works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConsumerConfig {
    /// What people see as the owner of a partition; a unique part is added. It decides nothing. Default:
    /// `consumer`.
    pub label: String,
    /// Where a group that does not exist yet starts reading. Default: [`Start::Earliest`].
    pub start: Start,
    /// How long a partition stays owned without a renewal, and so how long its messages wait when its owner
    /// dies. It is renewed three times as often. Default: 10 s.
    pub lease_ttl: Duration,
    /// The most messages of one partition that are read and not settled yet. Default: 256.
    pub prefetch: usize,
    /// The longest wait for messages in one request. It costs nothing to wait; shorter ones cost commands.
    /// Default: 10 s.
    pub max_wait: Duration,
    /// How long handlers may take to end when the consumer is shut down. Default: 30 s, as in Kubernetes.
    pub shutdown_timeout: Duration,
    /// How large a message may be; larger ones become dead letters.
    pub limits: Limits,
    /// When a failed message comes back. Default: [`Exponential`], 10 attempts.
    pub retry: Arc<dyn RetryPolicy>,
    /// Whether a message that is given up is kept. Default: [`Keep`].
    pub dead_letters: Arc<dyn DeadLetterPolicy>,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            label: "consumer".into(),
            start: Start::default(),
            lease_ttl: Duration::from_secs(10),
            prefetch: 256,
            max_wait: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(30),
            limits: Limits::default(),
            retry: Arc::new(Exponential::default()),
            dead_letters: Arc::new(Keep),
        }
    }
}

impl ConsumerConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        problems.require(self.lease_ttl >= Duration::from_millis(100), || {
            format!("lease_ttl is {:?}, at least 100ms are needed to renew it in time", self.lease_ttl)
        });
        problems.require((1..=10_000).contains(&self.prefetch), || {
            format!("prefetch is {}, 1 to 10000 are allowed", self.prefetch)
        });
        problems.require(!self.max_wait.is_zero(), || "max_wait is zero: that is a busy loop".into());
        problems.require(self.max_wait <= Duration::from_secs(3600), || {
            format!("max_wait is {:?}, at most an hour is allowed", self.max_wait)
        });
        problems.require(self.label.len() <= 128 && !self.label.chars().any(char::is_control), || {
            "label is longer than 128 bytes or has control characters".into()
        });
    }
}
