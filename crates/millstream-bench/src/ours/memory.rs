//! The memory of a message on the server, in each place where it can wait.

use anyhow::Result;

use super::delay::{fill_queue, fill_topic};
use super::produce::fill;
use super::retry::park;
use super::topic;
use crate::args::{Memory, Place};
use crate::measure::{Measured, Stage};

/// Leaves messages waiting in one kind of place.
pub(crate) async fn memory(stage: &Stage, of: &Memory, place: Place) -> Result<Measured> {
    let (mq, messages) = (stage.connect().await?, of.messages.messages);
    let meter = stage.meter().await?;
    match place {
        Place::Waiting => fill(&mq, stage, topic(of.spread, false), messages, of.spread).await?,
        Place::Parked => park(&mq, stage, of.spread, messages).await?,
        Place::Delayed => fill_topic(&mq, stage, of.spread, messages).await?,
        Place::Task => fill_queue(&mq, stage, of.spread, messages).await?,
    }
    meter.stop_memory(messages).await
}
