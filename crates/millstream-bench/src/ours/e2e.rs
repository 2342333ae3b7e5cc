//! From the send of a message to its handler, at a fixed rate, independent of the replies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use hdrhistogram::{Histogram, RecordError};
use millstream::codec::Raw;
use millstream::{Delivery, Millstream, Outcome, Producer, Reply};

use super::explain::{Hop, Hops};
use super::{GROUP, topic, until_acked, until_owned};
use crate::args::E2e;
use crate::measure::{Measured, Stage};
use crate::pacer::{Clock, Pacer};

/// Number of messages that determine the maximum rate, and maximum number of them without a reply.
const ENOUGH: u64 = 100_000;
const WINDOW: usize = 1_000;

/// A histogram that many handlers share.
#[derive(Clone)]
pub(super) struct Latencies(Arc<Mutex<Histogram<u64>>>);

impl Latencies {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Clock::histogram()?))))
    }

    /// Records a value. Fails only if the histogram, which grows as needed, does not fit into memory.
    pub(super) fn record(&self, nanos: u64) -> Result<(), RecordError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).record(nanos)
    }

    pub(super) fn get(&self) -> Histogram<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs one producer and one consumer.
pub(crate) async fn e2e(stage: &Stage, of: &E2e, rate: f64) -> Result<Measured> {
    let mut mq = stage.connect().await?;
    let topic = topic(of.spread, false);
    let pacer = Pacer::new(rate, of.seconds);
    let (latencies, clock) = (Latencies::new()?, pacer.clock());
    let hops = of.explain.then(|| Hops::new(clock));
    if let Some(hops) = &hops {
        mq = Millstream::over(hops.over(mq.backend()));
    }
    let producer = mq.producer(topic.clone()).await?;
    let consumer =
        mq.consumer(topic, GROUP).start({
            let (latencies, hops, replies) = (latencies.clone(), hops.clone(), of.reply);
            move |delivery: Delivery<Bytes>| {
                if let Some(hops) = &hops {
                    hops.pass(Hop::Handled, &delivery.payload);
                }
                let recorded = match replies {
                    true => Ok(()),
                    false => latencies.record(clock.since(clock.now(), &delivery.payload)),
                };
                async move {
                    recorded.map_or_else(Outcome::retry, |()| Outcome::Reply(Reply::bytes(Bytes::new())))
                }
            }
        });
    let consumer = consumer.await?;
    until_owned(&consumer, of.spread.partitions).await?;
    let meter = stage.meter().await?;
    // In turn, as the baseline.
    let partitions = u64::from(of.spread.partitions);
    let (called, asked) = (hops.clone(), of.reply.then(|| latencies.clone()));
    let send = move |n, payload: Bytes| {
        let (producer, partition, called) = (producer.clone(), (n % partitions) as u32, called.clone());
        let asked = asked.clone();
        async move {
            if let Some(latencies) = asked {
                producer.send(&payload).partition(partition).reply_with(&Raw).await?;
                return Ok(latencies.record(clock.since(clock.now(), &payload))?);
            }
            if let Some(called) = called {
                called.pass(Hop::Called, &payload);
            }
            producer.send(&payload).partition(partition).await?;
            Ok(())
        }
    };
    let total = pacer.run(&stage.payload, send).await?;
    until_acked(&consumer, total).await?;
    let measured = meter.stop(total).await?.with_latency(&latencies.get());
    consumer.shutdown().await;
    if let Some(hops) = hops {
        eprint!("\n{}", hops.table());
    }
    Ok(measured)
}

/// Returns the maximum rate: messages are sent as fast as possible by the same sender while they are consumed.
/// Measured from the first send to the last ack, after as many messages to warm up.
pub(crate) async fn most(stage: &Stage, of: &E2e) -> Result<f64> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, false);
    let consumer = mq.consumer(topic.clone(), GROUP).start(|_: Delivery<Bytes>| async {}).await?;
    until_owned(&consumer, of.spread.partitions).await?;
    let producer = mq.producer(topic).await?;
    let mut rate = f64::NAN;
    for turn in 1..=2 {
        let (began, producer) = (Instant::now(), producer.clone());
        let pacer = Pacer::saturating(ENOUGH, WINDOW);
        pacer.run(&stage.payload, move |_, payload| send(producer.clone(), payload)).await?;
        until_acked(&consumer, turn * ENOUGH).await?;
        rate = ENOUGH as f64 / began.elapsed().as_secs_f64();
    }
    consumer.shutdown().await;
    stage.clear().await?;
    Ok(rate)
}

async fn send(producer: Producer<Bytes>, payload: Bytes) -> Result<()> {
    producer.send(&payload).await?;
    Ok(())
}
