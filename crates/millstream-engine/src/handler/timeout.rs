//! Time limit of the layers inside of it and of the handler.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::Verdict;
use super::layer::{Answer, Layer, Next};
use crate::delivery::Delivery;

/// Layer with a time limit for the layers inside of it and the handler.
///
/// A handler that takes longer is dropped at the `await` where it waits, and the attempt has failed with the cause
/// [`Timeout`](millstream_core::event::Cause::Timeout) and the error `handler timed out after 2s`: the retry policy decides whether the
/// message comes back. It is the same result as that of `handler_timeout`, which covers all
/// layers too; use this one if a layer outside of it, for example one that waits for a permit, must not use up the handler's time. If both
/// are set, the one that ends first counts.
///
/// Dropping a handler does not undo what it began. Code that blocks the thread, or that runs in a task of its own, is not
/// stopped. Not for pulled messages: the time would begin when a message is offered, and not when it is
/// pulled.
///
/// ```
/// # use std::time::Duration;
/// # use millstream_engine::Timeout;
/// // mq.consumer(CHARGES, "billing").layer(limit).start(charge)
/// let limit = Timeout::new(Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    limit: Duration,
}

impl Timeout {
    /// Creates a time limit. With zero, only a handler that never waits can succeed.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self { limit }
    }
}

#[async_trait]
impl Layer for Timeout {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        match tokio::time::timeout(self.limit, next.run(delivery)).await {
            Ok(answer) => answer,
            Err(_) => Answer::new(Verdict::TimedOut(self.limit)),
        }
    }
}
