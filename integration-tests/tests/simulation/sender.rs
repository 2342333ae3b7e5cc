//! Senders: each sends one message after the other, and records the results.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use millstream_core::event::Ignore;
use millstream_core::{Backend, ErrorKind, Topic, TopicPartition};
use millstream_runtime::{Producer, ProducerBuilder, Record};
use millstream_testkit::history::{Event, History, Outcome, Place};
use tokio::time::sleep;

use super::payload;
use super::scenario::Scenario;

/// Sends this sender's share of the messages.
pub(crate) async fn run(
    scenario: Arc<Scenario>,
    number: usize,
    backend: Backend,
    topic: Topic<u64>,
    history: History,
) {
    let mut rng = Rng::with_seed(scenario.seed.rotate_left(17) ^ number as u64);
    let sender = format!("s{number}");
    let mut producer = build(&backend, &topic).await;
    // It is started again once, and then knows of new partitions.
    let restart = rng.u64(0..scenario.messages);
    let gap = scenario.length.mul_f64(1.5 * scenario.senders as f64 / scenario.messages as f64);
    let mine = (0..scenario.messages).filter(|message| *message as usize % scenario.senders == number);
    let mut mine = mine.peekable();
    while let Some(message) = mine.peek().copied() {
        if message >= restart && message < restart + scenario.senders as u64 {
            producer.close().await;
            producer = build(&backend, &topic).await;
        }
        // Some that are sent together are packed.
        let together = if scenario.packed.is_some() { rng.usize(1..=12) } else { 1 };
        let (mut records, mut texts) = (Vec::new(), Vec::new());
        for message in mine.by_ref().take(together) {
            let key = (rng.u8(0..10) > 0).then(|| format!("k{}", rng.u64(0..scenario.keys)));
            if records.is_empty() {
                // Where messages are large, some come all at once.
                let burst = scenario.largest > 0 && message % 30 < 20;
                sleep(if burst { Duration::ZERO } else { gap.mul_f64(rng.f64()) }).await;
            }
            let text = message.to_string();
            let (sender, key_text) = (sender.clone(), key.clone());
            history.record(Event::Sending { sender, message: text.clone(), key: key_text });
            // One in two is large, where any is.
            let large = if rng.bool() { rng.f64() } else { 0.0 };
            records.push((payload::padded(message, (f64::from(scenario.largest) * large) as u32), key));
            texts.push(text);
        }
        let mut batch = Vec::with_capacity(records.len());
        for (padded, key) in &records {
            let record = Record::new(padded);
            batch.push(match key {
                Some(key) => record.key(key.clone()),
                None => record,
            });
        }
        for (message, sent) in texts.into_iter().zip(producer.send_all(batch).await) {
            let outcome = match sent {
                Ok(sent) => {
                    let name = topic.spec().expect("a valid topic").name;
                    Outcome::Ok(Place::new(TopicPartition::new(name, sent.partition.0), sent.id))
                }
                Err(error) if error.kind() == ErrorKind::Unconfirmed => Outcome::Info,
                Err(_) => Outcome::Fail,
            };
            history.record(Event::Sent { message, outcome });
        }
    }
    producer.close().await;
}

/// Builds a producer. This needs the server, so it is tried again.
async fn build(backend: &Backend, topic: &Topic<u64>) -> Producer<u64> {
    loop {
        let builder = ProducerBuilder::new(backend.clone(), topic.clone(), Arc::new(Ignore));
        match builder.delivery_timeout(Duration::from_secs(10)).await {
            Ok(producer) => return producer,
            Err(_) => sleep(Duration::from_millis(300)).await,
        }
    }
}
