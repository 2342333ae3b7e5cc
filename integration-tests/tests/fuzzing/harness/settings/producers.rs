//! Settings of producers and of topics.

use std::sync::Arc;

use millstream_core::error::ErrorKind;
use millstream_core::event::Ignore;
use millstream_core::{Durability, Retention};
use millstream_runtime::{OnFull, ProducerBuilder, ProducerConfig};
use tokio::time::{sleep, timeout};

use super::super::Input;
use super::{DAY, MESSAGES, NUMBERS, SECOND, SOON, backend, count, refused, small, time};

pub(super) async fn producer(input: &mut Input<'_>) {
    let backend = backend();
    let mut config = ProducerConfig::default();
    let settings = input.number();
    let is = |bit: u32| settings & 1 << bit != 0;
    if is(0) {
        config.max_batch = count(input);
    }
    if is(1) {
        config.linger = time(input);
    }
    if is(2) {
        config.buffer_memory = count(input);
    }
    if is(3) {
        config.delivery_timeout = time(input);
    }
    config.durability = if is(4) { Durability::Replicated(small(input)) } else { Durability::Stored };
    if is(5) {
        config.dedup_window = time(input);
    }
    config.idempotent = is(6);
    config.on_full = if is(7) { OnFull::Reject } else { OnFull::Wait };
    if is(8) {
        config.refresh = is(9).then(|| time(input));
    }
    let retention = match settings >> 10 & 3 {
        0 => Retention::Consumed,
        1 => Retention::Age(time(input)),
        2 => Retention::ConsumedAfter(time(input)),
        _ => Retention::Length(count(input) as u64),
    };
    let mut topic = NUMBERS.partitions(small(input)).retention(retention);
    if is(12) {
        topic = topic.max_length(count(input) as u64);
    }
    let (delay, linger, window) = (time(input), config.linger, time(input));
    let (stored, limit) = (config.durability == Durability::Stored, config.delivery_timeout);
    let built = ProducerBuilder::new(backend, topic, Arc::new(Ignore)).config(config).build().await;
    let producer = match built {
        Ok(producer) => producer,
        // More than the backend in memory can do.
        Err(error) if error.kind() == ErrorKind::Unsupported && !stored => return,
        Err(error) => {
            let of_topic = ["partitions", "retention", "max_length"];
            let own = ["max_batch", "linger", "buffer_memory", "delivery_timeout", "dedup", "durability"];
            return refused(&error, &[&of_topic[..], &own, &["idempotent", "refresh", "replicas"]].concat());
        }
    };
    for number in 0..MESSAGES {
        let sent = timeout(limit.saturating_add(SECOND), producer.send(&number)).await.expect("it ends");
        // A topic with a bound may be full.
        if stored && !is(12) {
            let sent = sent.expect("nothing is in the way");
            assert!(!sent.is_duplicate);
        }
    }
    let _ = timeout(limit.saturating_add(SECOND), producer.send(&7).delay(delay)).await.expect("it ends");
    let throttled = producer.send(&7).throttle("id", window);
    let _ = timeout(limit.saturating_add(SECOND), throttled).await.expect("it ends");
    sleep(SOON.max(linger.min(DAY))).await;
    timeout(limit.saturating_add(SOON), producer.close()).await.expect("it ends");
}
