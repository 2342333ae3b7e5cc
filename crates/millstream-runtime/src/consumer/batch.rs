//! Consumers with batch handlers.

use millstream_core::IntoBatchOutcome;
use millstream_core::error::Result;
use millstream_engine::handler::batch::erase;
use millstream_engine::{Batch, BatchConfig, Delivery};

use crate::consumer::{Consumer, ConsumerBuilder};
use crate::report::Report;

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// Starts the consumer in the background, with a handler that gets several messages of one partition at once: up to
    /// `size` messages, or those that arrived within `wait` after the first.
    ///
    /// The handler returns one outcome for all messages, or a `Vec` with one for each. With
    /// [`Serial`](crate::consumer::Concurrency::Serial) one batch of a partition is handled at a time; otherwise as many
    /// batches as the concurrency allows. Where messages are kept in order by key (`PerKey`, or `BlockKey`), no two
    /// messages of a key are in one batch. Messages that the codec cannot decode are given up and left out.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn start_batch<F, Fut>(self, batch: impl Into<BatchConfig>, handler: F) -> Result<Consumer>
    where
        F: Fn(Batch<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoBatchOutcome,
    {
        let handler = erase::<Delivery<T>, _, _, _>(self.codec(), batch.into(), handler);
        self.launch(handler).await
    }

    /// Does the same as [`start_batch`](Self::start_batch), until `shutdown` is ready.
    ///
    /// # Errors
    /// Those of [`run_until`](Self::run_until).
    pub async fn run_batch_until<F, Fut>(
        self,
        shutdown: impl Future<Output = ()>,
        batch: impl Into<BatchConfig>,
        handler: F,
    ) -> Result<Report>
    where
        F: Fn(Batch<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoBatchOutcome,
    {
        self.start_batch(batch, handler).await?.until(shutdown).await
    }

    /// Does the same as [`start_batch`](Self::start_batch), until this future is dropped; the consumer then stops in the
    /// background.
    ///
    /// # Errors
    /// Those of [`run_until`](Self::run_until).
    pub async fn run_batch<F, Fut>(self, batch: impl Into<BatchConfig>, handler: F) -> Result<Report>
    where
        F: Fn(Batch<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoBatchOutcome,
    {
        self.run_batch_until(std::future::pending(), batch, handler).await
    }
}
