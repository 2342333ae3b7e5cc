//! Scheduling in bulk, and the lateness of due messages.

use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use millstream::delay::{DelayQueue, Task, TaskRecord};
use millstream::{Delivery, Millstream, Record};

use super::e2e::Latencies;
use super::{GROUP, POLL, PORTION, Stall, topic, until_acked, until_owned};
use crate::args::{Delay, Spread};
use crate::measure::{Measured, Stage};
use crate::pacer::{Clock, Pacer};
use crate::work::AN_HOUR;

/// Delay of messages whose lateness is measured.
const WAIT: Duration = Duration::from_secs(1);
/// Number of concurrent handlers of a worker of a delay queue.
const HANDLERS: usize = 256;

/// Schedules messages that are due in an hour.
pub(crate) async fn schedule(stage: &Stage, of: &Delay) -> Result<Measured> {
    let mq = stage.connect().await?;
    let fill = async |count| match of.queue {
        true => fill_queue(&mq, stage, of.spread, count).await,
        false => fill_topic(&mq, stage, of.spread, count).await,
    };
    fill(of.waiting).await?;
    let meter = stage.meter().await?;
    fill(of.messages.messages).await?;
    meter.stop(of.messages.messages).await
}

/// Schedules messages of a topic.
pub(super) async fn fill_topic(mq: &Millstream, stage: &Stage, spread: Spread, messages: u64) -> Result<()> {
    let producer = mq.producer(topic(spread, false)).await?;
    for count in portions(messages) {
        let records = (0..count).map(|_| Record::new(&stage.payload).delay(AN_HOUR));
        for sent in producer.send_all_delayed(records).await {
            sent?;
        }
    }
    Ok(())
}

/// Schedules tasks of a delay queue.
pub(super) async fn fill_queue(mq: &Millstream, stage: &Stage, spread: Spread, messages: u64) -> Result<()> {
    let queue = DelayQueue::raw("bench").shards(spread.partitions).open(mq.backend()).await?;
    for count in portions(messages) {
        let records = (0..count).map(|_| TaskRecord::new(&stage.payload).delay(AN_HOUR));
        for scheduled in queue.schedule_all(records).await {
            scheduled?;
        }
    }
    Ok(())
}

fn portions(messages: u64) -> impl Iterator<Item = u64> {
    (0..messages).step_by(PORTION as usize).map(move |n| (messages - n).min(PORTION))
}

/// Schedules messages at a fixed rate, each due one second later. The latency is the time beyond that second.
pub(crate) async fn late(stage: &Stage, of: &Delay, rate: f64) -> Result<Measured> {
    let mq = stage.connect().await?;
    let pacer = Pacer::new(rate, of.seconds);
    let (latencies, clock) = (Latencies::new()?, pacer.clock());
    let record = {
        let latencies = latencies.clone();
        move |payload: &[u8]| {
            let since = clock.since(clock.now(), payload);
            latencies.record(since.saturating_sub(Clock::nanos(WAIT)))
        }
    };
    let measured = if of.queue {
        let queue = DelayQueue::raw("bench").shards(of.spread.partitions).open(mq.backend()).await?;
        fill_queue(&mq, stage, of.spread, of.waiting).await?;
        let worker = queue.worker().concurrency(HANDLERS).start(move |task: Task<Bytes>| {
            let recorded = record(&task.payload);
            async move { recorded }
        });
        let (worker, meter) = (worker.await?, stage.meter().await?);
        let sent = pacer.run(&stage.payload, move |_, payload| {
            let queue = queue.clone();
            async move {
                queue.schedule(&payload).delay(WAIT).await?;
                Ok(())
            }
        });
        let total = sent.await?;
        let mut stall = Stall::new(worker.report());
        while worker.report().done < total {
            stall.check(worker.report())?;
            let ended = tokio::time::timeout(POLL, worker.ended()).await;
            ensure!(ended.is_err(), "the worker ended by itself");
        }
        let measured = meter.stop(total).await?;
        worker.shutdown().await;
        measured
    } else {
        let topic = topic(of.spread, false);
        fill_topic(&mq, stage, of.spread, of.waiting).await?;
        let producer = mq.producer(topic.clone()).await?;
        let consumer = mq.consumer(topic, GROUP).start(move |delivery: Delivery<Bytes>| {
            let recorded = record(&delivery.payload);
            async move { recorded }
        });
        let consumer = consumer.await?;
        until_owned(&consumer, of.spread.partitions).await?;
        let meter = stage.meter().await?;
        let sent = pacer.run(&stage.payload, move |_, payload| {
            let producer = producer.clone();
            async move {
                producer.send(&payload).delay(WAIT).await?;
                Ok(())
            }
        });
        let total = sent.await?;
        until_acked(&consumer, total).await?;
        let measured = meter.stop(total).await?;
        consumer.shutdown().await;
        measured
    };
    Ok(measured.with_latency(&latencies.get()))
}
