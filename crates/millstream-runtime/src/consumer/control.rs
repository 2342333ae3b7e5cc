//! Control of a running consumer: pause, seek, health, events.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::{Capability, HealthCheck, Start, TopicName, TopicPartition};
use tokio::time::Instant;

use crate::consumer::context::Context;
use crate::consumer::pauses::Until;
use crate::consumer::{Consumer, Events, Health, health};

impl Consumer {
    /// Pauses the whole consumer: nothing is read, and no further handler starts. Handlers that run finish, and their
    /// messages are settled. Messages that were read and not started stay in flight, and this instance keeps its
    /// partitions. Retries that become due meanwhile wait.
    ///
    /// The pause ends with [`resume`](Self::resume). It is independent of a pause of the whole group by an operator: work
    /// goes on only when neither holds.
    pub fn pause(&self) {
        self.context.pause(Until::Resumed);
    }

    /// [Pauses](Self::pause) the whole consumer, and waits until no handler runs. From then on none starts until it is resumed. A
    /// pulled message counts as a running handler until it is settled. Cancel safe: it stays paused.
    pub async fn pause_and_wait(&self) {
        self.context.pause(Until::Resumed);
        self.context.status.quiet().await;
    }

    /// Pauses the whole consumer for this long, or until [`resume`](Self::resume). A later call replaces the time.
    pub fn pause_for(&self, time: Duration) {
        // A time beyond the range of the clock means no end.
        self.context.pause(Instant::now().checked_add(time).map_or(Until::Resumed, Until::Time));
    }

    /// Ends a pause of the whole consumer: work goes on at once, in order. Partitions that were paused individually stay
    /// paused.
    pub fn resume(&self) {
        self.context.resume();
    }

    /// Pauses one partition of any of the topics. This instance does not work on it until it is
    /// [resumed](Self::resume_partition), even if it does not own the partition yet, or loses it and gets it back.
    /// Another instance that gets the partition does not know of the pause.
    pub fn pause_partition(&self, topic_partition: &TopicPartition) {
        if self.context.pauses.pause_partition(topic_partition) {
            self.context.tell_paused(Some(topic_partition));
        }
    }

    /// Ends a pause of one partition. A pause of the whole consumer stays in effect.
    pub fn resume_partition(&self, topic_partition: &TopicPartition) {
        if self.context.pauses.resume_partition(topic_partition) {
            self.context.tell_resumed(Some(topic_partition));
        }
    }

    /// Moves the group's position in a partition that this instance owns: back, to handle messages again, or forward, to
    /// skip some. Waits for the running handlers of the partition and settles their messages first. Messages that were
    /// read and not started are discarded from memory. Scheduled retries and dead letters do not change.
    ///
    /// A paused consumer moves as well, and stays paused. To move a whole group see `Millstream::seek`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if this instance does not own the partition; [`ErrorKind::Fenced`] if it released or lost
    /// the partition meanwhile: nothing was done. After a transient error the position is either the old or the new one.
    /// [`ErrorKind::Unsupported`] if the backend does not support it.
    pub async fn seek(&self, topic_partition: &TopicPartition, start: Start) -> Result<()> {
        self.context.backend.require(Capability::Seek)?;
        let Some(answer) = self.context.status.seek(topic_partition, start) else {
            let group = &self.context.group;
            let why = format!("{topic_partition} of group {group} is not owned by this instance");
            return Err(Error::new(ErrorKind::NotFound, why).at(topic_partition));
        };
        answer.await.unwrap_or_else(|_| {
            let why = format!("{topic_partition} was released or lost before it could be moved");
            Err(Error::new(ErrorKind::Fenced, why).at(topic_partition))
        })
    }

    /// Returns the current health.
    #[must_use]
    pub fn health(&self) -> Health {
        health::of(&self.context)
    }

    /// Returns a health check, which also works after the consumer has ended. The observer gets the same one when the
    /// consumer starts.
    #[must_use]
    pub fn health_check(&self) -> Arc<dyn HealthCheck> {
        health::check(&self.context)
    }

    /// Subscribes to the consumer's events from now on. Any number of tasks may subscribe.
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

    /// Records whether the whole group of a topic is paused.
    pub(in crate::consumer) fn record_group_pause(&self, topic: &TopicName, paused: bool) {
        if !self.pauses.record_group(topic, paused) {
            return;
        }
        let group = &self.group;
        if paused {
            tracing::info!(%topic, %group, "the group is paused");
            self.observer.observe(&Event::GroupPaused { topic, group });
        } else {
            tracing::info!(%topic, %group, "the group is resumed");
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

    /// Ends pauses when their time is over, for as long as it is polled.
    pub(in crate::consumer) async fn end_pauses(self: &Arc<Self>) {
        self.pauses.run(|| self.tell_resumed(None)).await;
    }
}
