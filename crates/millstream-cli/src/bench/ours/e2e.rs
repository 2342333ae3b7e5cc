//! From the send of a message to its handler, at a fixed rate, whatever the answers.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use hdrhistogram::{Histogram, RecordError};
use millstream::Delivery;

use super::produce::send_each;
use super::{GROUP, topic, until_acked, until_owned};
use crate::bench::args::E2e;
use crate::bench::measure::{Measured, Stage};
use crate::bench::pacer::{Clock, Pacer};

/// How many messages show what can be reached at most, and how many tasks send them, one by one as in the open loop.
const ENOUGH: u64 = 200_000;
const SENDERS: u64 = 1_000;

/// A histogram that many handlers share.
#[derive(Clone)]
pub(super) struct Latencies(Arc<Mutex<Histogram<u64>>>);

impl Latencies {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Clock::histogram()?))))
    }

    /// Fails only when a value does not fit into memory: the histogram grows by itself.
    pub(super) fn record(&self, nanos: u64) -> Result<(), RecordError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).record(nanos)
    }

    pub(super) fn get(&self) -> Histogram<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One producer and one consumer.
pub(in crate::bench) async fn e2e(stage: &Stage, of: &E2e, rate: f64) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, false);
    let producer = mq.producer(topic.clone()).await?;
    let pacer = Pacer::new(rate, of.seconds);
    let (latencies, clock) = (Latencies::new()?, pacer.clock());
    let consumer = mq.consumer(topic, GROUP).start({
        let latencies = latencies.clone();
        move |delivery: Delivery<Bytes>| {
            let recorded = latencies.record(clock.since(clock.now(), &delivery.payload));
            async move { recorded }
        }
    });
    let consumer = consumer.await?;
    until_owned(&consumer, of.spread.partitions).await?;
    let meter = stage.meter().await?;
    let sent = pacer.run(&stage.payload, move |_, payload| {
        let producer = producer.clone();
        async move {
            producer.send(&payload).await?;
            Ok(())
        }
    });
    let total = sent.await?;
    until_acked(&consumer, total).await?;
    let measured = meter.stop(total).await?.with_latency(&latencies.get());
    consumer.shutdown().await;
    Ok(measured)
}

/// The rate at which messages go through when many tasks send them as fast as they can while they are consumed.
pub(in crate::bench) async fn most(stage: &Stage, of: &E2e) -> Result<f64> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, false);
    let consumer = mq.consumer(topic.clone(), GROUP).start(|_: Delivery<Bytes>| async {}).await?;
    until_owned(&consumer, of.spread.partitions).await?;
    let meter = stage.meter().await?;
    let producer = mq.producer(topic).await?;
    send_each(&producer, &stage.payload, ENOUGH, SENDERS, of.spread.keys).await?;
    until_acked(&consumer, ENOUGH).await?;
    let rate = ENOUGH as f64 / meter.elapsed().as_secs_f64();
    consumer.shutdown().await;
    stage.clear().await?;
    Ok(rate)
}
