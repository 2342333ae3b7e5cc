//! Reads the work of groups for autoscalers: not more often than once a second, and within a time limit.

use std::fmt;
use std::time::Duration;

use millstream_core::{Backend, Error, ErrorKind, GroupName, Result, TopicName};
use tokio::time::timeout;

use crate::sampling::cache::Cache;
use crate::sampling::lag::{self, Lag, Lags};

/// Reads the work of groups from a backend. What was read is reused for a second, also an error: many autoscalers ask for the same.
pub struct LagReader {
    backend: Backend,
    timeout: Duration,
    all: Cache<(), Result<Lags>>,
    one: Cache<(TopicName, GroupName), Result<Lag>>,
}

impl LagReader {
    /// Creates a reader.
    #[must_use]
    pub fn new(backend: Backend) -> Self {
        let fresh = Duration::from_secs(1);
        let timeout = Duration::from_secs(2);
        Self { backend, timeout, all: Cache::new(fresh), one: Cache::new(fresh) }
    }

    /// Sets the time for which an answer is reused. Default: 1 s.
    #[must_use]
    pub fn fresh(self, fresh: Duration) -> Self {
        Self { all: Cache::new(fresh), one: Cache::new(fresh), ..self }
    }

    /// Sets the time limit of a read. Default: 2 s.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the backend.
    #[must_use]
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Returns the work of one group of one topic.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such topic or group; [`ErrorKind::Unavailable`] after the time limit;
    /// [`ErrorKind::WrongType`] if a part cannot be read; those of the backend.
    pub async fn lag(&self, topic: &TopicName, group: &GroupName) -> Result<Lag> {
        let read = self.within(async {
            let found = lag::one(&self.backend, topic, group).await?;
            found.ok_or_else(|| {
                let text = format!("topic {topic} has no group {group}, or does not exist");
                Error::new(ErrorKind::NotFound, text)
            })
        });
        self.one.get((topic.clone(), group.clone()), read).await
    }

    /// Returns the work of every group of every topic. A topic that cannot be read does not prevent the others.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] after the time limit; those of the backend, if the state of no topic is known.
    pub async fn lags(&self) -> Result<Lags> {
        self.all.get((), self.within(lag::all(&self.backend))).await
    }

    /// Limits the time of a read: autoscalers do not wait long, and one request that hangs must not block all others.
    async fn within<T>(&self, read: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(self.timeout, read).await.unwrap_or_else(|_| {
            let text = format!("the backend gave no answer within {:?}", self.timeout);
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }
}

impl fmt::Debug for LagReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LagReader").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
