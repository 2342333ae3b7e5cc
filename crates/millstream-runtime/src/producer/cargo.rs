//! What a batcher carries, and where it brings it.

use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::error::Result;
use millstream_core::event::{Event, Observer};
use millstream_core::log::Append;
use millstream_core::schedule::{Placed, Schedule, Scheduling};
use millstream_core::{MessageId, TopicName};

use super::bound::Bounded;

/// What a message costs in the buffer beside its bytes: about what its entry in the queue takes.
const OVERHEAD: usize = 128;

/// A message on its way to the server.
pub(super) trait Cargo: Send + Sync + 'static {
    /// What the server answers.
    type Done: Send + 'static;

    /// What it takes of the buffer.
    fn charge(&self) -> usize;
}

impl Cargo for Append {
    type Done = MessageId;

    fn charge(&self) -> usize {
        OVERHEAD + self.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }
}

impl Cargo for Scheduling {
    type Done = Placed;

    fn charge(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        OVERHEAD + self.id.as_str().len() + fields
    }
}

/// Where messages go.
#[async_trait]
pub(super) trait Sink<C: Cargo>: Send + Sync {
    /// One request: a result for each.
    async fn put(&self, batch: &[C]) -> Vec<Result<C::Done>>;

    /// So many were stored.
    fn stored(&self, topic: &TopicName, messages: usize, observer: &dyn Observer);
}

/// Into the log, to be read at once.
pub(super) struct ToLog(pub(super) Bounded);

#[async_trait]
impl Sink<Append> for ToLog {
    async fn put(&self, batch: &[Append]) -> Vec<Result<MessageId>> {
        self.0.append(batch).await
    }

    fn stored(&self, topic: &TopicName, messages: usize, observer: &dyn Observer) {
        observer.observe(&Event::Produced { topic, messages });
    }
}

/// Into the schedule, to be read when due.
pub(super) struct ToSchedule(pub(super) Arc<dyn Schedule>);

#[async_trait]
impl Sink<Scheduling> for ToSchedule {
    async fn put(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        self.0.schedule(batch).await
    }

    fn stored(&self, topic: &TopicName, messages: usize, observer: &dyn Observer) {
        observer.observe(&Event::Delayed { topic, messages });
    }
}
