//! Trimming of dead letters: drops those of the own group that the topic's retention of dead letters does not keep.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Lease;
use millstream_core::dead_letters::{TrimBy, TrimmedLetters};
use millstream_core::error::Result;
use millstream_core::event::{Event, Observer};
use millstream_core::upkeep::{Trigger, Upkeep};

use super::settings::TopicSettings;

/// Minimum time between two trims after settlements: among these may be dead letters, which may be too many.
const AT_MOST_EVERY: Duration = Duration::from_secs(5);
/// Pause before the next call if there is more to drop.
const AT_ONCE: Duration = Duration::from_millis(10);

/// Trims the dead letters of one group in the partitions of one topic, some time after a settlement, and periodically.
pub(in crate::consumer) struct DeadLetterTrimmer {
    settings: Arc<TopicSettings>,
}

impl DeadLetterTrimmer {
    pub(in crate::consumer) fn new(settings: Arc<TopicSettings>) -> Self {
        Self { settings }
    }
}

impl fmt::Debug for DeadLetterTrimmer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterTrimmer").field("topic", &self.settings.topic).finish_non_exhaustive()
    }
}

#[async_trait]
impl Upkeep for DeadLetterTrimmer {
    fn name(&self) -> &'static str {
        "trim dead letters"
    }

    fn trigger(&self) -> Trigger {
        Trigger::Settled { at_most_every: AT_MOST_EVERY }
    }

    async fn run_once(&self, lease: &Lease, events: &dyn Observer) -> Result<Option<Duration>> {
        let retention = self.settings.get().await?.dead_letters;
        if retention.is_keep() {
            return Ok(Some(self.settings.at_least_every()));
        }
        let (topic_partition, group) = lease.partition()?;
        let role = self.settings.backend.dead_letters()?;
        let TrimmedLetters { aged, excess, more, .. } =
            role.trim(topic_partition, group, retention, TrimBy::Owner(lease)).await?;
        if aged + excess > 0 {
            tracing::warn!(%topic_partition, %group, aged, excess, %retention, "dead letters were dropped");
            events.observe(&Event::DeadLettersDropped { topic_partition, group, aged, excess });
        }
        Ok(Some(if more { AT_ONCE } else { retention.period() }))
    }
}
