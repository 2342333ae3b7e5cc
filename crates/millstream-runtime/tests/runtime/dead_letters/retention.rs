//! Dead letters that are too old or too many are dropped by the consumers of their group; and what idempotent handlers need.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;
use async_trait::async_trait;
use millstream_core::dead_letters::{Claim, DeadLetterAction, TrimBy, TrimmedLetters};
use millstream_core::event::Ignore;
use millstream_core::inspect::{Page, Range};
use millstream_core::{
    Backend, Capability, DeadLetter, DeadLetterRetention, DeadLetters, ErrorKind, GroupName, MessageId,
    Outcome, Result, Topic, TopicChange, TopicPartition,
};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_runtime::{
    Concurrency, Consumer, ConsumerBuilder, DeadLetterConsumerBuilder, DeadLetterOutcome, Delivery,
    Idempotent, Letter, Sharing,
};

const MINUTE: Duration = Duration::from_secs(60);
const TEN: DeadLetterRetention = DeadLetterRetention::age(Duration::from_secs(600));
const THREE: DeadLetterRetention = DeadLetterRetention::length(3);

/// Dead letters whose trims are counted.
struct Counting {
    inner: Arc<dyn DeadLetters>,
    trims: AtomicUsize,
}

#[async_trait]
impl DeadLetters for Counting {
    async fn list(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        range: Range,
        limit: usize,
    ) -> Result<Page<DeadLetter>> {
        self.inner.list(tp, group, range, limit).await
    }

    async fn claim(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
        claim: &Claim,
    ) -> Result<Vec<MessageId>> {
        self.inner.claim(tp, group, ids, claim).await
    }

    async fn settle(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        by: Option<&str>,
        deeds: &[(MessageId, DeadLetterAction)],
    ) -> Result<Vec<MessageId>> {
        self.inner.settle(tp, group, by, deeds).await
    }

    async fn put(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        letters: &[DeadLetter],
        again: bool,
    ) -> Result<Vec<Option<MessageId>>> {
        self.inner.put(tp, group, letters, again).await
    }

    async fn purge_through(&self, tp: &TopicPartition, group: &GroupName, last: MessageId) -> Result<usize> {
        self.inner.purge_through(tp, group, last).await
    }

    async fn trim(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        retention: DeadLetterRetention,
        by: TrimBy<'_>,
    ) -> Result<TrimmedLetters> {
        self.trims.fetch_add(1, Ordering::SeqCst);
        self.inner.trim(tp, group, retention, by).await
    }
}

async fn alter(bench: &Bench, retention: DeadLetterRetention) {
    let change = TopicChange::new().dead_letter_retention(retention);
    let name = "numbers".parse().expect("name");
    bench.backend.catalog().alter_topic(&name, &change).await.expect("altered");
}

/// Starts a consumer that gives every message up.
async fn rejecting(consumer: ConsumerBuilder<u64>) -> Consumer {
    consumer.start(async |_: Delivery<u64>| Outcome::dead_letter("no")).await.expect("started")
}

async fn letters(bench: &Bench, group: &str) -> u64 {
    dead(bench, group).await.count().await.expect("counted")
}

async fn wait_for_letters(bench: &Bench, group: &str, count: u64) {
    for _ in 0..1_000 {
        if letters(bench, group).await == count {
            return;
        }
        tokio::time::sleep(MS(10)).await;
    }
    panic!("{} letters, not {count}: {:?}", letters(bench, group).await, bench.told.all());
}

#[tokio::test(start_paused = true)]
async fn letters_that_are_too_old_are_dropped_and_reported() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let bench = bench();
        let consumer = bench.consumer(NUMBERS.dead_letter_retention(TEN), "g").sharing(sharing);
        let running = rejecting(consumer.concurrency(Concurrency::Unordered(4))).await;
        produce(&bench, 5).await;
        wait_for_letters(&bench, "g", 5).await;
        tokio::time::sleep(8 * MINUTE).await;
        produce(&bench, 2).await;
        wait_for_letters(&bench, "g", 7).await;
        tokio::time::sleep(MINUTE).await;
        assert_eq!(letters(&bench, "g").await, 7, "none is ten minutes old");
        // They are ten minutes old after the next, and dropped at most a minute late.
        tokio::time::sleep(2 * MINUTE).await;
        assert_eq!(letters(&bench, "g").await, 2, "{:?}", bench.told.all());
        assert_eq!(bench.told.lines("DeadLettersDropped {"), 1);
        assert_eq!(bench.told.lines("aged: 5, excess: 0"), 1, "{:?}", bench.told.all());
        running.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn letters_that_are_too_many_are_dropped_soon_after_they_died() {
    let bench = bench();
    let running = rejecting(bench.consumer(NUMBERS.dead_letter_retention(THREE), "g")).await;
    produce(&bench, 50).await;
    bench.told.wait_for("DeadLettersDropped {").await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(letters(&bench, "g").await, 3);
    let before = bench.told.lines("DeadLettersDropped {");
    produce(&bench, 2).await;
    bench.told.wait_for_lines("DeadLettersDropped {", before + 1).await;
    assert_eq!(letters(&bench, "g").await, 3);
    running.shutdown().await;
}

/// Each group drops its own letters; one that nobody consumes with keeps them, until a consumer comes or an operator trims.
#[tokio::test(start_paused = true)]
async fn a_group_without_consumers_keeps_its_letters() {
    let bench = bench();
    let topic = NUMBERS.dead_letter_retention(TEN);
    let (stopped, running) = (
        rejecting(bench.consumer(topic.clone(), "stopped")).await,
        rejecting(bench.consumer(topic.clone(), "g")).await,
    );
    produce(&bench, 4).await;
    wait_for_letters(&bench, "stopped", 4).await;
    wait_for_letters(&bench, "g", 4).await;
    stopped.shutdown().await;
    tokio::time::sleep(20 * MINUTE).await;
    assert_eq!((letters(&bench, "g").await, letters(&bench, "stopped").await), (0, 4));
    let would = dead(&bench, "stopped").await.would_trim(TEN).await.expect("counted");
    assert_eq!((would.aged, would.dropped()), (4, 4));
    let again = rejecting(bench.consumer(topic, "stopped")).await;
    wait_for_letters(&bench, "stopped", 0).await;
    again.shutdown().await;
    running.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_running_consumer_applies_another_retention_within_two_minutes() {
    let bench = bench();
    let running = rejecting(bench.consumer(NUMBERS, "g")).await;
    produce(&bench, 9).await;
    wait_for_letters(&bench, "g", 9).await;
    alter(&bench, THREE).await;
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(letters(&bench, "g").await, 3);
    alter(&bench, DeadLetterRetention::KEEP).await;
    tokio::time::sleep(2 * MINUTE).await;
    produce(&bench, 9).await;
    wait_for_letters(&bench, "g", 12).await;
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(letters(&bench, "g").await, 12);
    running.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_is_handled_for_hours_is_not_dropped_meanwhile() {
    let bench = bench();
    let topic = NUMBERS.dead_letter_retention(TEN);
    let running = rejecting(bench.consumer(topic.clone(), "g")).await;
    produce(&bench, 1).await;
    wait_for_letters(&bench, "g", 1).await;
    let slow = DeadLetterConsumerBuilder::new(bench.backend.clone(), topic, "g", Arc::new(Ignore));
    let slow = slow.start(async |_: Letter<u64>| {
        tokio::time::sleep(60 * MINUTE).await;
        DeadLetterOutcome::Delete
    });
    let slow = slow.await.expect("started");
    tokio::time::sleep(59 * MINUTE).await;
    assert_eq!(letters(&bench, "g").await, 1, "it is being handled");
    assert_eq!(bench.told.lines("DeadLettersDropped {"), 0);
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(letters(&bench, "g").await, 0);
    assert_eq!(slow.shutdown().await.deleted, 1, "by its handler");
    running.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_keeps_its_letters_costs_no_request_and_another_one_in_a_minute() {
    for (retention, expected) in [(DeadLetterRetention::KEEP, 0..=0), (TEN.and_length(3), 8 * 9..=8 * 11)] {
        let bench = bench();
        let inner = bench.backend.dead_letters().expect("the role").clone();
        let counting = Arc::new(Counting { inner, trims: AtomicUsize::new(0) });
        let backend = bench.backend.clone().with_dead_letters(counting.clone());
        let promoter = Promoter::new(&backend, PromoterConfig::default());
        let topic: Topic<u64> = Topic::new("numbers").partitions(8).dead_letter_retention(retention);
        let consumer = ConsumerBuilder::new(backend, topic, "g", Arc::new(bench.told.clone()));
        let running = consumer.upkeep(promoter).start(async |_: Delivery<u64>| ()).await.expect("started");
        tokio::time::sleep(MINUTE).await;
        counting.trims.store(0, Ordering::SeqCst);
        tokio::time::sleep(10 * MINUTE).await;
        let trims = counting.trims.load(Ordering::SeqCst);
        assert!(expected.contains(&trims), "{trims} requests for 8 partitions in ten minutes, {retention}");
        running.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_cannot_trim_is_refused_at_the_start() {
    let bench = bench();
    for missing in [Capability::TrimDeadLetters, Capability::DeadLetters] {
        let backend: Backend = bench.backend.clone().without(missing);
        let start = async |topic: Topic<u64>| {
            ConsumerBuilder::new(backend.clone(), topic, "g", Arc::new(Ignore))
                .start(async |_: Delivery<u64>| ())
                .await
        };
        let limited = start(NUMBERS.named("limited").dead_letter_retention(THREE)).await;
        assert_eq!(limited.expect_err("refused").kind(), ErrorKind::Unsupported, "{missing:?}");
        start(NUMBERS).await.expect("keeps all").shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_age_of_letters_that_the_stored_topic_keeps_is_what_markers_must_outlive() {
    const DAYS: fn(u64) -> Duration = |days| Duration::from_secs(days * 86_400);
    let bench = bench();
    let start = async |settings: Idempotent, kept: DeadLetterRetention| {
        let topic = NUMBERS.dead_letter_retention(kept);
        bench.consumer(topic, "g").idempotent(settings).start(async |_: Delivery<u64>| ()).await
    };
    let week = || Idempotent::by_message_id().retention(DAYS(7));
    let month = DeadLetterRetention::age(DAYS(30));
    let refused = start(week(), month).await.expect_err("a month of letters, a week of markers");
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    for part in ["604800s", "numbers", "age:2592000000", "retries"] {
        assert!(refused.to_string().contains(part), "{part}: {refused}");
    }
    // Nothing was created by one that was refused.
    let name = "numbers".parse().expect("name");
    assert_eq!(bench.backend.catalog().topic(&name).await.expect_err("none").kind(), ErrorKind::NotFound);
    start(week(), DeadLetterRetention::age(DAYS(3))).await.expect("three days").shutdown().await;
    // The stored setting counts, not the one of the program.
    alter(&bench, month).await;
    let refused = start(week(), DeadLetterRetention::age(DAYS(3))).await.expect_err("altered");
    assert!(refused.to_string().contains("age:2592000000"), "{refused}");
    start(week().replays_within(DAYS(1)), month).await.expect("stated").shutdown().await;
    start(Idempotent::by_message_id().retention(DAYS(60)), month).await.expect("covered").shutdown().await;
}
