//! A backend in memory, with producers and consumers of it.

use std::sync::Arc;
use std::time::Duration;

use millstream_admin::{Admin, DeadLetterQueue};
use millstream_core::event::{Ignore, Observer};
use millstream_core::{Backend, Topic};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, Producer, ProducerBuilder};

pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;

pub(crate) const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(1);

pub(crate) struct Bench {
    pub(crate) backend: Backend,
}

pub(crate) fn bench() -> Bench {
    Bench { backend: Backend::from(MemoryBackend::new()) }
}

impl Bench {
    pub(crate) async fn producer<T: Sync>(&self, topic: Topic<T>) -> Producer<T> {
        ProducerBuilder::new(self.backend.clone(), topic, Arc::new(Ignore)).await.expect("a producer")
    }

    pub(crate) fn consumer<T: Send>(&self, topic: Topic<T>, group: &str) -> ConsumerBuilder<T> {
        self.observed(topic, group, Arc::new(Ignore))
    }

    pub(crate) fn observed<T: Send>(
        &self,
        topic: Topic<T>,
        group: &str,
        observer: Arc<dyn Observer>,
    ) -> ConsumerBuilder<T> {
        let promoter = Promoter::new(&self.backend, PromoterConfig::default());
        ConsumerBuilder::new(self.backend.clone(), topic, group, observer).upkeep(promoter)
    }

    /// Sends the numbers from 0 on.
    pub(crate) async fn produce(&self, count: u64) {
        let producer = self.producer(NUMBERS).await;
        for number in 0..count {
            producer.send(&number).await.expect("stored");
        }
    }

    /// The dead letters of a group of the topic `numbers`.
    pub(crate) async fn dead(&self, group: &str) -> DeadLetterQueue {
        let (topic, group) = ("numbers".parse().expect("name"), group.parse().expect("name"));
        Admin::new(self.backend.clone()).dead_letters(&topic, &group).await.expect("a topic")
    }
}
