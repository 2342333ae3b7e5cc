//! Producing: in bulk, or one by one from many tasks.

use std::time::UNIX_EPOCH;

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use millstream::codec::BoxError;
use millstream::layer::AsyncProducerLayer;
use millstream::{Envelope, Millstream, Producer, Record, Topic};

use super::{PORTION, topic};
use crate::args::{AsyncLayer, Produce, Spread};
use crate::measure::{Measured, Stage};
use crate::work::{event, key_of};

/// Sends in bulk.
pub(crate) async fn bulk(stage: &Stage, of: &Produce) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, false);
    let producer = producer(&mq, topic, of).await?;
    let meter = stage.meter().await?;
    let (messages, chunk) = (of.messages.messages, of.chunk.into());
    send_all(&producer, &stage.payload, messages, chunk, of.spread, ids_of_a_run(of)).await?;
    meter.stop(of.messages.messages).await
}

async fn producer(mq: &Millstream, topic: Topic<Bytes>, of: &Produce) -> Result<Producer<Bytes>> {
    let builder = mq.producer(topic).max_batch(of.batch as usize).idempotent(of.dedup);
    Ok(match of.async_layer {
        Some(way) => builder.async_layer(PassOn(way)).await?,
        None => builder.await?,
    })
}

/// A layer that changes nothing.
struct PassOn(AsyncLayer);

#[async_trait]
impl AsyncProducerLayer for PassOn {
    fn applies(&self, _: &Envelope) -> bool {
        self.0 != AsyncLayer::Passes
    }

    async fn send(&self, _: &mut Envelope) -> Result<(), BoxError> {
        if self.0 == AsyncLayer::Yields {
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// Fills a topic, without measuring.
pub(super) async fn fill(
    mq: &Millstream,
    stage: &Stage,
    topic: Topic<Bytes>,
    messages: u64,
    spread: Spread,
) -> Result<()> {
    send_all(&mq.producer(topic).await?, &stage.payload, messages, PORTION, spread, None).await
}

/// Returns what the ids of a run begin with, if its messages have any: they count longer than it lasts.
fn ids_of_a_run(of: &Produce) -> Option<u128> {
    of.ids.then(|| UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos()))
}

async fn send_all(
    producer: &Producer<Bytes>,
    payload: &Bytes,
    messages: u64,
    chunk: u64,
    spread: Spread,
    ids: Option<u128>,
) -> Result<()> {
    let mut n = 0;
    while n < messages {
        let count = (messages - n).min(chunk);
        let (first, packed) = (n, spread.packed.is_some());
        let events: Vec<Bytes> = (n..n + count).filter(|_| packed).map(|n| event(n, payload.len())).collect();
        let records = (n..n + count).map(|n| {
            let payload = usize::try_from(n - first).ok().and_then(|at| events.get(at)).unwrap_or(payload);
            let record = match key_of(n, spread.keys) {
                Some(key) => Record::new(payload).key(key),
                None => Record::new(payload),
            };
            match ids {
                Some(ids) => record.dedup(format!("{ids:032x}-{n}")),
                None => record,
            }
        });
        for sent in producer.send_all(records).await {
            sent?;
        }
        n += count;
    }
    Ok(())
}

/// Runs many tasks that share a producer. Each sends one message at a time and awaits every reply.
pub(crate) async fn awaiting(stage: &Stage, of: &Produce) -> Result<Measured> {
    let mq = stage.connect().await?;
    let producer = producer(&mq, topic(of.spread, false), of).await?;
    let messages = of.messages.messages;
    let meter = stage.meter().await?;
    send_each(&producer, &stage.payload, messages, of.tasks.into(), of.spread.keys, ids_of_a_run(of)).await?;
    meter.stop(messages).await
}

/// Sends from several tasks, each awaiting every send.
async fn send_each(
    producer: &Producer<Bytes>,
    payload: &Bytes,
    messages: u64,
    tasks: u64,
    keys: u32,
    ids: Option<u128>,
) -> Result<()> {
    let mut sending = Vec::new();
    for task in 0..tasks {
        let (producer, payload) = (producer.clone(), payload.clone());
        sending.push(tokio::spawn(async move {
            for n in (task..messages).step_by(tasks as usize) {
                let mut send = producer.send(&payload);
                if let Some(key) = key_of(n, keys) {
                    send = send.key(key);
                }
                if let Some(ids) = ids {
                    send = send.dedup(format!("{ids:032x}-{n}"));
                }
                send.await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in sending {
        task.await??;
    }
    Ok(())
}
