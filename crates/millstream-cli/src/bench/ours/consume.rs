//! Consuming with a handler that does nothing.

use anyhow::Result;
use bytes::Bytes;
use millstream::Delivery;

use super::produce::fill;
use super::{create_groups, groups, topic, until_acked, until_trimmed};
use crate::bench::args::Consume;
use crate::bench::measure::{Measured, Stage};

/// Fills a topic and lets every group have all of it.
pub(in crate::bench) async fn consume(stage: &Stage, of: &Consume) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, of.keep);
    fill(&mq, stage, topic.clone(), of.messages.messages, of.spread).await?;
    create_groups(mq.backend(), &topic, of.groups).await?;
    let meter = stage.meter().await?;
    let mut consumers = Vec::new();
    for group in groups(of.groups) {
        let consumer = mq.consumer(topic.clone(), group).prefetch(of.batch as usize);
        consumers.push(consumer.start(|_: Delivery<Bytes>| async {}).await?);
    }
    for consumer in &consumers {
        until_acked(consumer, of.messages.messages).await?;
    }
    let took = meter.elapsed();
    if !of.keep {
        // Partitions are trimmed once a second: what the last trimming costs is part of the whole.
        until_trimmed(&mq, &topic).await?;
    }
    let measured = meter.stop_after(of.messages.messages * u64::from(of.groups), took).await?;
    for consumer in consumers {
        consumer.shutdown().await;
    }
    Ok(measured)
}
