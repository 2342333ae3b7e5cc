//! Waiting, while nothing happens.

use anyhow::Result;
use bytes::Bytes;
use millstream::Delivery;

use super::{groups, topic, until_owned};
use crate::bench::args::Idle;
use crate::bench::measure::{Measured, Stage};

/// Waits, and counts what the server is asked meanwhile.
pub(in crate::bench) async fn idle(stage: &Stage, of: &Idle) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, false);
    let mut consumers = Vec::new();
    for group in groups(of.groups) {
        consumers.push(mq.consumer(topic.clone(), group).start(|_: Delivery<Bytes>| async {}).await?);
    }
    for consumer in &consumers {
        until_owned(consumer, of.spread.partitions).await?;
    }
    let meter = stage.meter().await?;
    tokio::time::sleep(of.seconds).await;
    let measured = meter.stop_idle(of.spread.partitions * of.groups).await?;
    for consumer in consumers {
        consumer.shutdown().await;
    }
    Ok(measured)
}
