//! Topics that rows name, as a relay knows them.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Observer;
use millstream_core::panics::choose_partition;
use millstream_core::{Catalog, Partition, Partitioner, TopicName, TopicSpec};
use tokio::time::Instant;

use crate::outbox::row::Message;

/// Interval at which a topic is read again: that of producers.
const REFRESH: Duration = Duration::from_secs(60);

/// Time within which all relays and producers notice that a topic has grown: ten times the interval.
const NOTICED: Duration = Duration::from_secs(600);

/// Topics by name.
pub(super) struct Topics {
    catalog: Arc<dyn Catalog>,
    partitioner: Arc<dyn Partitioner>,
    /// The dedup window.
    window: Duration,
    known: HashMap<TopicName, Known>,
}

/// Topic that exists.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) spec: TopicSpec,
    count: NonZeroU32,
    /// Earlier numbers of partitions, by which a row may have been stored before, with the times at which each was found to
    /// be too low.
    earlier: Vec<(NonZeroU32, Instant)>,
    read: Instant,
}

impl Topics {
    pub(super) fn new(
        catalog: Arc<dyn Catalog>,
        partitioner: Arc<dyn Partitioner>,
        window: Duration,
    ) -> Self {
        Self { catalog, partitioner, window, known: HashMap::new() }
    }

    /// Creates a topic unless it exists.
    pub(super) async fn declare(&mut self, spec: &TopicSpec) -> Result<()> {
        let stored = self.catalog.create_topic(spec).await?;
        self.remember(stored).map(drop)
    }

    /// Returns a topic. One that was lost with the data is created again, if this relay has known it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] and [`ErrorKind::Deleted`] if it does not exist; those of the catalog.
    pub(super) async fn get(&mut self, name: &TopicName) -> Result<Known> {
        let known = self.known.get(name);
        if let Some(fresh) = known.filter(|known| known.read.elapsed() < REFRESH) {
            return Ok(fresh.clone());
        }
        let stored = match (self.catalog.topic(name).await, known) {
            (Err(error), Some(known)) if error.kind() == ErrorKind::NotFound => {
                let restored = self.catalog.restore_topic(&known.spec).await;
                match restored {
                    Ok(restored) => {
                        tracing::warn!(topic = %name, "the topic was missing and has been created again");
                        restored
                    }
                    Err(gone) if [ErrorKind::Deleted, ErrorKind::Unsupported].contains(&gone.kind()) => {
                        self.known.remove(name);
                        return Err(if gone.kind() == ErrorKind::Deleted { gone } else { error });
                    }
                    Err(error) => return Err(error),
                }
            }
            (stored, _) => stored?,
        };
        self.remember(stored)
    }

    /// Whether a topic may drop what is not settled, as far as this relay knows.
    pub(super) fn is_lossy(&self, name: &TopicName) -> bool {
        self.known.get(name).is_some_and(|known| known.spec.retention.is_lossy())
    }

    /// Forgets when it was read, so that it is read again before it is next used.
    pub(super) fn expire(&mut self, name: &TopicName) {
        if let Some(known) = self.known.get_mut(name)
            && let Some(long_ago) = Instant::now().checked_sub(REFRESH)
        {
            known.read = long_ago;
        }
    }

    fn remember(&mut self, spec: TopicSpec) -> Result<Known> {
        let count = NonZeroU32::new(spec.partitions).ok_or_else(|| {
            Error::new(ErrorKind::Protocol, format!("topic {} has no partitions", spec.name)).at(&spec.name)
        })?;
        let mut earlier = Vec::new();
        // A topic that was deleted and created again has none of the earlier entries.
        if let Some(before) = self.known.get(&spec.name).filter(|it| it.spec.generation == spec.generation) {
            earlier.clone_from(&before.earlier);
            earlier.retain(|(_, since): &(_, Instant)| since.elapsed() < self.window + NOTICED);
            if before.count != count {
                earlier.push((before.count, Instant::now()));
            }
        }
        let known = Known { count, earlier, read: Instant::now(), spec };
        self.known.insert(known.spec.name.clone(), known.clone());
        Ok(known)
    }

    /// Returns the partition of a message and those that it may have had before, in the way of producers: by its key, or,
    /// without a key, by its id.
    pub(super) fn place(
        &self,
        topic: &Known,
        message: &Message,
        observer: &dyn Observer,
    ) -> Result<(Partition, Vec<Partition>)> {
        let by = message.envelope.key.as_deref().unwrap_or(message.id.as_bytes());
        let choose = |count| choose_partition(&*self.partitioner, Some(by), count, observer);
        let earlier = topic.earlier.iter().map(|(count, _)| choose(*count)).collect::<Result<_>>()?;
        Ok((choose(topic.count)?, earlier))
    }
}
