//! Producing: in bulk, or one by one from many tasks.

use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use async_trait::async_trait;
use bytes::Bytes;
use millstream::admin::{InUse, Training};
use millstream::codec::BoxError;
use millstream::layer::AsyncProducerLayer;
use millstream::{Envelope, Millstream, Producer, Record, Retention, Topic};

use super::{PORTION, topic};
use crate::args::{AsyncLayer, Packed, Produce, Spread};
use crate::measure::{Measured, Stage};
use crate::work::{Payloads, key_of};

/// Sends in bulk.
pub(crate) async fn bulk(stage: &Stage, of: &Produce) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic_of(of);
    give_dictionary(&mq, &topic, stage, of.spread).await?;
    let producer = producer(&mq, topic, of).await?;
    let (messages, chunk) = (of.messages.messages, of.chunk.into());
    let payloads = Payloads::new(&stage.payload, of.spread.packed.is_some(), messages);
    let meter = stage.meter().await?;
    send_all(&producer, &payloads, messages, chunk, of.spread.keys, ids_of_a_run(of)).await?;
    meter.stop(of.messages.messages).await
}

/// Returns the topic, with a lossy retention if one is measured.
fn topic_of(of: &Produce) -> Topic<Bytes> {
    let topic = topic(of.spread, false);
    match of.length {
        Some(messages) => topic.retention(Retention::Length(messages)),
        None => topic,
    }
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

/// Trains a dictionary on messages of another topic, and gives it to this one, if its packing uses one.
async fn give_dictionary(mq: &Millstream, topic: &Topic<Bytes>, stage: &Stage, spread: Spread) -> Result<()> {
    if spread.packed != Some(Packed::ZstdDictionary) {
        return Ok(());
    }
    let (other, training) = (topic.named("bench-training"), Training::new());
    let messages = training.messages as u64;
    let payloads = Payloads::new(&stage.payload, true, messages);
    let producer = mq.producer(other.clone()).await?;
    send_all(&producer, &payloads, messages, PORTION, spread.keys, None).await?;
    producer.close().await;
    let (catalog, other) = (mq.backend().catalog(), other.spec()?.name);
    let trained = mq.admin().train_topic(&other, training).await?;
    let name = catalog.topic(&other).await?.dictionary;
    let name = name.with_context(|| format!("a dictionary gains nothing: {trained:?}"))?;
    let dictionary = catalog.dictionary(&other, name).await?.context("the dictionary is gone")?;
    mq.admin().delete_topic(&other, InUse::Force).await?;
    let topic = catalog.create_topic(&topic.spec()?).await?;
    catalog.store_dictionary(&topic, dictionary).await?;
    Ok(())
}

/// Fills a topic, without measuring.
pub(super) async fn fill(
    mq: &Millstream,
    stage: &Stage,
    topic: Topic<Bytes>,
    messages: u64,
    spread: Spread,
) -> Result<()> {
    give_dictionary(mq, &topic, stage, spread).await?;
    let payloads = Payloads::new(&stage.payload, spread.packed.is_some(), messages);
    send_all(&mq.producer(topic).await?, &payloads, messages, PORTION, spread.keys, None).await
}

/// Returns what the ids of a run begin with, if its messages have any: they count longer than it lasts.
fn ids_of_a_run(of: &Produce) -> Option<u128> {
    of.ids.then(|| UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos()))
}

async fn send_all(
    producer: &Producer<Bytes>,
    payloads: &Payloads,
    messages: u64,
    chunk: u64,
    keys: u32,
    ids: Option<u128>,
) -> Result<()> {
    let mut n = 0;
    while n < messages {
        let count = (messages - n).min(chunk);
        let records = (n..n + count).map(|n| {
            let record = match key_of(n, keys) {
                Some(key) => Record::new(payloads.of(n)).key(key),
                None => Record::new(payloads.of(n)),
            };
            match ids {
                Some(ids) => record.dedup(format!("{ids:032x}-{n}")),
                None => record.into(),
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
    let topic = topic_of(of);
    give_dictionary(&mq, &topic, stage, of.spread).await?;
    let producer = producer(&mq, topic, of).await?;
    let messages = of.messages.messages;
    let payloads = Payloads::new(&stage.payload, of.spread.packed.is_some(), messages);
    let meter = stage.meter().await?;
    send_each(&producer, &payloads, messages, of.tasks.into(), of.spread.keys, ids_of_a_run(of)).await?;
    meter.stop(messages).await
}

/// Sends from several tasks, each awaiting every send.
async fn send_each(
    producer: &Producer<Bytes>,
    payloads: &Payloads,
    messages: u64,
    tasks: u64,
    keys: u32,
    ids: Option<u128>,
) -> Result<()> {
    let mut sending = Vec::new();
    for task in 0..tasks {
        let (producer, payloads) = (producer.clone(), payloads.clone());
        sending.push(tokio::spawn(async move {
            for n in (task..messages).step_by(tasks as usize) {
                let mut send = producer.send(payloads.of(n));
                if let Some(key) = key_of(n, keys) {
                    send = send.key(key);
                }
                match ids {
                    Some(ids) => send.dedup(format!("{ids:032x}-{n}")).await?,
                    None => send.await?,
                };
            }
            anyhow::Ok(())
        }));
    }
    for task in sending {
        task.await??;
    }
    Ok(())
}
