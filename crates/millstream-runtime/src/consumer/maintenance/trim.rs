//! Trimming: drops log entries according to the topic's retention, for all of its groups.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::Result;
use millstream_core::event::Observer;
use millstream_core::upkeep::{Trigger, Upkeep};
use millstream_core::{Lease, Retention};

use super::settings::TopicSettings;
use crate::trimming::emit_trimmed;

/// Minimum time between two trims of a partition: a call costs about as much as reading a few messages.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// Maximum time between two trims by age.
const AGED_EVERY: Duration = Duration::from_secs(60);
/// Period for a log with bounded length, whether anything is settled or not.
const BOUNDED_EVERY: Duration = Duration::from_secs(5);
/// Pause before the next call if there is more to trim.
const AT_ONCE: Duration = Duration::from_millis(10);

/// Trims the partitions of one topic, some time after a settlement, and periodically.
pub(in crate::consumer) struct Trimmer {
    settings: Arc<TopicSettings>,
}

impl Trimmer {
    pub(in crate::consumer) fn new(settings: Arc<TopicSettings>) -> Self {
        Self { settings }
    }
}

impl fmt::Debug for Trimmer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trimmer").field("topic", &self.settings.topic).finish_non_exhaustive()
    }
}

/// Returns the time until the next trim if nothing is settled; `otherwise` where nothing but settlements leaves something to drop.
fn period(retention: Retention, otherwise: Duration) -> Duration {
    match retention {
        // Being late by a tenth of the age does no harm.
        Retention::ConsumedAfter(age) | Retention::Age(age) => (age / 10).clamp(AT_MOST_EVERY, AGED_EVERY),
        Retention::Length(_) => BOUNDED_EVERY,
        Retention::Consumed | Retention::Keep => otherwise,
    }
}

#[async_trait]
impl Upkeep for Trimmer {
    fn name(&self) -> &'static str {
        "trim"
    }

    fn trigger(&self) -> Trigger {
        Trigger::Settled { at_most_every: AT_MOST_EVERY }
    }

    async fn run_once(&self, lease: &Lease, events: &dyn Observer) -> Result<Option<Duration>> {
        let retention = self.settings.get().await?.retention;
        let otherwise = self.settings.at_least_every();
        if retention == Retention::Keep {
            return Ok(Some(otherwise));
        }
        let trimmed = self.settings.backend.log().trim(lease, retention).await?;
        emit_trimmed(lease.partition()?.0, &trimmed, retention, true, events);
        Ok(Some(if trimmed.more { AT_ONCE } else { period(retention, otherwise) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_old_is_looked_at_in_time_and_not_too_often() {
        let seconds = Duration::from_secs;
        for (retention, expected) in [
            (Retention::Consumed, seconds(60)),
            (Retention::Length(7), seconds(5)),
            (Retention::Age(Duration::from_millis(1)), seconds(1)),
            (Retention::Age(seconds(100)), seconds(10)),
            (Retention::ConsumedAfter(seconds(86_400)), seconds(60)),
        ] {
            assert_eq!(period(retention, seconds(60)), expected, "{retention}");
        }
    }
}
