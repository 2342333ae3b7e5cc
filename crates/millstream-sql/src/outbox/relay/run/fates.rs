//! What a relay remembers about rows: those that wait, and those whose fate is known and not written yet.

use millstream_core::error::{Error, Result};
use millstream_core::event::Event;
use millstream_core::log::full;
use millstream_core::{TopicName, TopicPartition, wire};
use tokio::time::Instant;

use super::{Fates, Hold, Run};
use crate::outbox::row::RowName;
use crate::outbox::store::Failed;

impl Run {
    /// Gives a row up.
    pub(super) fn fail(&mut self, row: RowName, topic: Option<&TopicName>, error: &Error) {
        tracing::warn!(row = row.id, %error, "a row of the outbox cannot be sent, and is kept as dead");
        if let Some(topic) = topic {
            self.observer.observe(&Event::ProduceFailed { topic, messages: 1, error });
        }
        let text = wire::cut(&error.to_string()).to_owned();
        self.fates.failed.push(Failed { row, kind: error.kind(), error: text });
    }

    /// Has the rows of a topic or partition wait.
    pub(super) fn hold(&mut self, place: (TopicName, Option<u32>), error: &Error) {
        if !self.holds.contains_key(&place) {
            let pause = self.monitor.failed(error, &*self.observer);
            self.holds.insert(place, Hold { until: Instant::now() + pause });
        }
    }

    pub(super) fn is_held(&self, place: &TopicPartition) -> bool {
        let of = |partition| self.holds.contains_key(&(place.topic.clone(), partition));
        !self.holds.is_empty() && (of(None) || of(Some(place.partition.0)))
    }

    pub(super) async fn has_room(&self, place: &TopicPartition, bound: u64) -> Result<()> {
        let lengths = self.log.lengths(std::slice::from_ref(place)).await?;
        if lengths.first().is_some_and(|length| *length < bound) {
            return Ok(());
        }
        Err(full(place, bound))
    }

    /// Deletes what was stored, and records what failed.
    pub(super) async fn write_fates(&mut self) -> Result<()> {
        if self.fates.stored.is_empty() && self.fates.failed.is_empty() {
            return Ok(());
        }
        let Fates { stored, failed } = &self.fates;
        let held = self
            .answers
            .to(self.store.settle(&self.me, self.config.ttl, &self.grants, stored, failed))
            .await?;
        // What is not deleted because its shard was lost is appended again by the next relay, and recognised.
        self.fates = Fates::default();
        let before = self.grants.len();
        self.grants.retain(|grant| held.contains(&grant.shard));
        if self.grants.len() < before {
            tracing::info!(
                shards = before - self.grants.len(),
                "shards of the outbox belong to another relay now"
            );
            self.renew_at = Instant::now();
        }
        Ok(())
    }

    pub(super) async fn leave(&mut self) -> Result<()> {
        self.write_fates().await?;
        self.answers.to(self.store.leave(&self.me)).await
    }
}
