//! What the least of a message costs the server's memory.

use anyhow::Result;

use super::{connect, delay, fill};
use crate::bench::args::{Memory, Place};
use crate::bench::measure::{Measured, Stage};

/// A bare stream entry for what waits in a log; an item and its due time for everything that waits for its time.
pub(in crate::bench) async fn memory(stage: &Stage, of: &Memory, place: Place) -> Result<Measured> {
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
