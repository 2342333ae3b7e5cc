//! Settings of consumers, of messages and of dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_core::event::Ignore;
use millstream_core::policy::{Exponential, Fixed};
use millstream_core::{Outcome, Partition};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_runtime::{
    Concurrency, ConsumerBuilder, ConsumerConfig, DeadLetterConfig, DeadLetterConsumerBuilder,
    DeadLetterOutcome, Delivery, Letter, ProducerBuilder, RetryOrder, Sharing,
};
use tokio::time::{sleep, timeout};

use super::super::Input;
use super::{DAY, MESSAGES, NUMBERS, SECOND, SOON, backend, count, outcome, refused, small, time};

pub(super) async fn consumer(input: &mut Input<'_>) {
    let backend = backend();
    let mut config = ConsumerConfig::default();
    let settings = input.number();
    let is = |bit: u32| settings & 1 << bit != 0;
    let times = [
        (0, &mut config.lease_ttl),
        (1, &mut config.rejoin_timeout),
        (2, &mut config.max_wait),
        (3, &mut config.shutdown_timeout),
    ];
    for (_, setting) in times.into_iter().filter(|(bit, _)| is(*bit)) {
        *setting = time(input);
    }
    if is(4) {
        config.prefetch = count(input);
    }
    config.concurrency = match settings >> 5 & 3 {
        0 | 1 => Concurrency::Serial,
        2 => Concurrency::PerKey(count(input)),
        _ => Concurrency::Unordered(count(input)),
    };
    config.sharing = if is(7) { Sharing::Shared } else { Sharing::Exclusive };
    config.max_handlers = is(8).then(|| count(input));
    config.retry_order = match settings >> 9 & 3 {
        0 => RetryOrder::Skip,
        1 | 2 => RetryOrder::BlockKey,
        _ => RetryOrder::BlockPartition,
    };
    if is(11) {
        config.max_blocked = count(input);
    }
    config.handler_timeout = is(12).then(|| time(input));
    if is(13) {
        config.crash_limit = small(input);
    }
    config.max_partitions = is(14).then(|| small(input));
    if is(15) {
        config.pinned = vec![Partition(small(input))];
    }
    config.member_id = is(16).then(|| "one".parse().expect("a name"));
    if is(17) {
        config.label = String::from_utf8_lossy(input.bytes()).into_owned();
    }
    let attempts = small(input);
    let delay = time(input);
    if is(18) {
        config.retry = Arc::new(Fixed::new(delay).attempts(attempts));
    } else if is(19) {
        config.retry = Arc::new(Exponential::from(delay).up_to(time(input)).attempts(attempts));
    }
    let (of, after) = (input.byte(), time(input));
    let all = config.max_partitions.is_none_or(|most| most >= 2);
    let shutdown = config.shutdown_timeout;
    let promoter = Promoter::new(&backend, PromoterConfig::default());

    let handled = Arc::new(AtomicU64::new(0));
    let counted = handled.clone();
    let builder = ConsumerBuilder::new(backend.clone(), NUMBERS, "g", Arc::new(Ignore)).upkeep(promoter);
    let started = builder.config(config).start(move |_: Delivery<u64>| {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        let outcome = outcome(of, after, number);
        async move { outcome }
    });
    let consumer = match started.await {
        Ok(consumer) => consumer,
        Err(error) => {
            return refused(
                &error,
                &[
                    "lease_ttl",
                    "rejoin_timeout",
                    "max_wait",
                    "prefetch",
                    "concurrency",
                    "max_handlers",
                    "retry",
                    "max_blocked",
                    "handler_timeout",
                    "crash_limit",
                    "max_partitions",
                    "label",
                ],
            );
        }
    };
    let producer =
        ProducerBuilder::new(backend, NUMBERS, Arc::new(Ignore)).build().await.expect("a producer");
    for number in 0..MESSAGES {
        producer.send(&number).partition((number % 2) as u32).await.expect("sent");
    }
    sleep(SOON).await;
    let handled = handled.load(Ordering::Relaxed);
    if all && of % 8 < 3 {
        assert_eq!(handled, MESSAGES, "each message is handled once");
    }
    assert!(handled > 0, "something is handled");
    let ended = timeout(shutdown.saturating_add(SOON), consumer.shutdown()).await;
    assert!(ended.is_ok(), "it ends within {shutdown:?}");
}

pub(super) async fn dead_letters(input: &mut Input<'_>) {
    let backend = backend();
    let mut config = DeadLetterConfig::default();
    let settings = input.byte();
    let times = [
        (0, &mut config.poll),
        (1, &mut config.sweep),
        (2, &mut config.hold),
        (3, &mut config.leave_for),
        (4, &mut config.shutdown_timeout),
    ];
    for (_, setting) in times.into_iter().filter(|(bit, _)| settings & 1 << bit != 0) {
        *setting = time(input);
    }
    if settings & 1 << 5 != 0 {
        config.concurrency = count(input);
    }
    let (of, poll, shutdown) = (input.byte(), config.poll, config.shutdown_timeout);
    let consumer = ConsumerBuilder::new(backend.clone(), NUMBERS, "g", Arc::new(Ignore))
        .start(|_: Delivery<u64>| async { Outcome::DeadLetter("no".into()) })
        .await
        .expect("a consumer");
    let producer =
        ProducerBuilder::new(backend.clone(), NUMBERS, Arc::new(Ignore)).build().await.expect("a producer");
    for number in 0..MESSAGES {
        producer.send(&number).await.expect("sent");
    }
    sleep(SECOND).await;
    assert_eq!(consumer.shutdown().await.dead, MESSAGES);

    let handled = Arc::new(AtomicU64::new(0));
    let counted = handled.clone();
    let builder = DeadLetterConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(Ignore)).config(config);
    let started = builder.start(move |_: Letter<u64>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let outcome = match of % 3 {
            0 => DeadLetterOutcome::Leave,
            1 => DeadLetterOutcome::Replay,
            _ => DeadLetterOutcome::Delete,
        };
        async move { outcome }
    });
    let consumer = match started.await {
        Ok(consumer) => consumer,
        Err(error) => {
            return refused(&error, &["poll", "sweep", "hold", "leave_for", "concurrency"]);
        }
    };
    sleep(SOON.max(poll.min(DAY))).await;
    assert!(handled.load(Ordering::Relaxed) >= MESSAGES, "each letter is handled");
    let ended = timeout(shutdown.saturating_add(SOON), consumer.shutdown()).await;
    assert!(ended.is_ok(), "it ends within {shutdown:?}");
}
