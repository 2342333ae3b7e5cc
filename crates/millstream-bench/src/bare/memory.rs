//! The minimum memory that a message needs on the server.

use anyhow::Result;

use super::{connect, delay, fill};
use crate::args::{Memory, Place};
use crate::measure::{Measured, Stage};

/// Measures a bare stream entry for messages in a log, and an item with its due time for all delayed ones.
pub(crate) async fn memory(stage: &Stage, of: &Memory, place: Place) -> Result<Measured> {
    let messages = of.messages.messages;
    let mut connection = connect(&stage.url).await?;
    let meter = stage.meter().await?;
    match place {
        Place::Waiting => fill(stage, messages, of.spread).await?,
        Place::Parked | Place::Delayed | Place::Task => {
            delay::add(&mut connection, stage, of.spread, 0..messages).await?;
        }
    }
    meter.stop_memory(messages).await
}
