//! Looks for notes of members of batches that others have left.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Lease;
use millstream_core::error::Result;
use millstream_core::event::Observer;
use millstream_core::upkeep::{Trigger, Upkeep};
use millstream_engine::batches::LOOK_EVERY;

use crate::consumer::context::Context;

/// Has the notes of a partition taken away when it was acquired, and every five minutes. What is settled here is taken away at once.
pub(in crate::consumer) struct NoteLook(pub(in crate::consumer) Arc<Context>);

impl fmt::Debug for NoteLook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoteLook")
    }
}

#[async_trait]
impl Upkeep for NoteLook {
    fn name(&self) -> &'static str {
        "look for notes"
    }

    fn trigger(&self) -> Trigger {
        Trigger::Settled { at_most_every: LOOK_EVERY }
    }

    async fn run_once(&self, lease: &Lease, _: &dyn Observer) -> Result<Option<Duration>> {
        let (topic_partition, _) = lease.partition()?;
        if let Some(notes) = &self.0.notes {
            notes.wake(topic_partition.clone());
        }
        Ok(Some(if self.0.backend.is_lasting() { LOOK_EVERY * 12 } else { LOOK_EVERY }))
    }
}
