//! Trimming: drops from the log what every group has settled.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::Result;
use millstream_core::event::{Event, Observer};
use millstream_core::upkeep::{Trigger, Upkeep};
use millstream_core::{Lease, Log};

/// How often at most a partition is trimmed: a call costs about as much as reading a few messages.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Trims a partition some time after something was settled in it.
pub(super) struct Trimmer(pub(super) Arc<dyn Log>);

impl fmt::Debug for Trimmer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trimmer")
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
        let messages = self.0.trim(lease).await?;
        if messages > 0 {
            let (topic_partition, _) = lease.partition()?;
            events.observe(&Event::Trimmed { topic_partition, messages });
        }
        Ok(None)
    }
}
