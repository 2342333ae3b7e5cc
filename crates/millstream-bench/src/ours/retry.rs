//! Retrying: every message fails once.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use millstream::{Delivery, Fixed, Millstream, Outcome};

use super::produce::fill;
use super::{GROUP, topic, until, until_acked, until_trimmed};
use crate::args::{Retry, Spread};
use crate::measure::{Measured, Stage};
use crate::work::AN_HOUR;

/// Lets every message fail once, come back and be acknowledged.
pub(crate) async fn retry(stage: &Stage, of: &Retry) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, false);
    if of.parked > 0 {
        park(&mq, stage, of.spread, of.parked).await?;
    }
    fill(&mq, stage, topic.clone(), of.messages.messages, of.spread).await?;
    let meter = stage.meter().await?;
    let consumer =
        mq.consumer(topic.clone(), GROUP).retry(Fixed::new(Duration::from_millis(of.delay.into())));
    let consumer = consumer.start(|delivery: Delivery<Bytes>| {
        let first = delivery.attempt() == 1;
        async move { if first { Err("the first attempt fails") } else { Ok(()) } }
    });
    let consumer = consumer.await?;
    until_acked(&consumer, of.messages.messages).await?;
    let took = meter.elapsed();
    until_trimmed(&mq, &topic).await?;
    let measured = meter.stop_after(of.messages.messages, took).await?;
    consumer.shutdown().await;
    Ok(measured)
}

/// Lets this many messages fail with a delay of an hour, until they are stored only as retries.
pub(super) async fn park(mq: &Millstream, stage: &Stage, spread: Spread, messages: u64) -> Result<()> {
    let topic = topic(spread, false);
    fill(mq, stage, topic.clone(), messages, spread).await?;
    let consumer = mq
        .consumer(topic.clone(), GROUP)
        .start(|_: Delivery<Bytes>| async { Outcome::retry_after(AN_HOUR, "not before an hour has passed") });
    let consumer = consumer.await?;
    until(&consumer, |it| it.report().retried >= messages && it.health().in_flight == 0).await?;
    until_trimmed(mq, &topic).await?;
    consumer.shutdown().await;
    Ok(())
}
