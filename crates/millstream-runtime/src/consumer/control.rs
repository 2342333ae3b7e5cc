//! Control of a running consumer: pause, seek, health, events.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::{HealthCheck, Start, TopicName, TopicPartition};
use tokio::time::Instant;

use crate::consumer::context::Context;
use crate::consumer::pauses::Until;
use crate::consumer::{Consumer, Events, Health, health};

impl Consumer {
    /// Pauses everything: nothing is read, and no further handler starts. Those that run end, and are settled. What
    /// was read and not started stays in hand, and the partitions stay ours. Retries become due meanwhile, and wait.
    ///
    /// It is over with [`resume`](Self::resume). A pause of the whole group, which operators make, is another one: each
    /// holds by itself.
    pub fn pause(&self) {
        self.context.pause(Until::Resumed);
    }

    /// Pauses everything for this long, or until [`resume`](Self::resume). Said again, the last time counts.
    pub fn pause_for(&self, time: Duration) {
        // A time that no clock can tell is none.
        self.context.pause(Instant::now().checked_add(time).map_or(Until::Resumed, Until::Time));
    }

    /// Ends a pause of everything: work goes on at once, in order. Partitions that are paused by themselves stay so.
    pub fn resume(&self) {
        self.context.resume();
    }

    /// Pauses one partition, of any of the topics. This instance does not work on it until it is
    /// [resumed](Self::resume_partition), also if it is not ours yet, or moves away and comes back. Another instance
    /// that gets it knows nothing of the pause.
    pub fn pause_partition(&self, topic_partition: &TopicPartition) {
        if self.context.pauses.pause_partition(topic_partition) {
            self.context.tell_paused(Some(topic_partition));
        }
    }

    /// Ends a pause of one partition. A pause of everything holds on.
    pub fn resume_partition(&self, topic_partition: &TopicPartition) {
        if self.context.pauses.resume_partition(topic_partition) {
            self.context.tell_resumed(Some(topic_partition));
        }
    }

    /// Goes on elsewhere in a partition that this instance owns: back, to handle messages again, or forward, to skip
    /// some. Handlers of it that run end first, and are settled; this waits for them. What was read and not started is
    /// forgotten. Messages that wait for a retry, and dead letters, stay as they are.
    ///
    /// A consumer that is paused moves, and stays paused. For a whole group see `Millstream::seek`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if this instance does not own the partition; [`ErrorKind::Fenced`] if it gave the
    /// partition back or lost it meanwhile: nothing was done. Transient ones: it goes on where it was, or there.
    pub async fn seek(&self, topic_partition: &TopicPartition, start: Start) -> Result<()> {
        let Some(answer) = self.context.status.seek(topic_partition, start) else {
            let group = &self.context.group;
            let why = format!("{topic_partition} of group {group} is not owned by this instance");
            return Err(Error::new(ErrorKind::NotFound, why));
        };
        answer.await.unwrap_or_else(|_| {
            let why = format!("{topic_partition} was given back or lost before it could be moved");
            Err(Error::new(ErrorKind::Fenced, why))
        })
    }

    /// How it is now.
    #[must_use]
    pub fn health(&self) -> Health {
        health::of(&self.context)
    }

    /// Can say how it is, also when it has ended. The observer is told of the same when the consumer starts.
    #[must_use]
    pub fn health_check(&self) -> Arc<dyn HealthCheck> {
        health::check(&self.context)
    }

    /// What happens to it from now on. Any number of tasks may listen.
    pub fn events(&self) -> Events {
        self.context.event_sink.listen(self.context.ended.clone())
    }
}

impl Context {
    fn pause(&self, until: Until) {
        if self.pauses.pause(until) {
            self.tell_paused(None);
        }
    }

    fn resume(&self) {
        if self.pauses.resume() {
            self.tell_resumed(None);
        }
    }

    /// Takes note of whether the whole group of a topic is paused.
    pub(in crate::consumer) fn hear_paused(&self, topic: &TopicName, paused: bool) {
        if !self.pauses.hear(topic, paused) {
            return;
        }
        let group = &self.group;
        if paused {
            tracing::info!(%topic, %group, "the group is paused");
            self.observer.observe(&Event::GroupPaused { topic, group });
        } else {
            tracing::info!(%topic, %group, "the group goes on");
            self.observer.observe(&Event::GroupResumed { topic, group });
        }
    }

    fn tell_paused(&self, topic_partition: Option<&TopicPartition>) {
        tracing::info!(group = %self.group, partition = topic_partition.map(tracing::field::display), "paused");
        self.observer.observe(&Event::Paused { group: &self.group, topic_partition });
    }

    fn tell_resumed(&self, topic_partition: Option<&TopicPartition>) {
        tracing::info!(group = %self.group, partition = topic_partition.map(tracing::field::display), "resumed");
        self.observer.observe(&Event::Resumed { group: &self.group, topic_partition });
    }

    /// Ends pauses at their time, for as long as it is polled.
    pub(in crate::consumer) async fn end_pauses(self: &Arc<Self>) {
        self.pauses.run(|| self.tell_resumed(None)).await;
    }
}
