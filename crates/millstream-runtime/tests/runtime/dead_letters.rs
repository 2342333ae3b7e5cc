//! Consuming dead letters: each is handled once while nobody dies, and again if somebody does.

pub(crate) mod retention;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::event::{Event, Ignore};
use millstream_core::inspect::{Range, Stream};
use millstream_core::log::{Receipt, Source};
use millstream_core::{
    Backend, DeadLetter, Envelope, ErrorKind, GroupName, History, Limits, MessageId, Reason, Topic,
    TopicPartition, wire,
};
use millstream_memory::MemoryBackend;
use millstream_runtime::{
    DeadLetterConfig, DeadLetterConsumer, DeadLetterConsumerBuilder, DeadLetterOutcome, DeadLetterReport,
    Idempotent, Letter,
};
use millstream_testkit::chaos::{Chaos, Client, Faults};
use tokio::sync::Notify;

use crate::support::eventually;

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(2);

/// The group with so many letters, whose payloads are their numbers; that of number 3 is no number.
struct Grave {
    backend: Backend,
    group: GroupName,
}

impl Grave {
    async fn new(count: u64) -> Self {
        let backend = Backend::from(MemoryBackend::new());
        backend.catalog().create_topic(&NUMBERS.spec().expect("a topic")).await.expect("created");
        let grave = Self { backend, group: "g".parse().expect("a name") };
        for number in 0..count {
            grave.bury(number).await;
        }
        grave
    }

    async fn bury(&self, number: u64) {
        let payload = if number == 3 { "three".to_owned() } else { number.to_string() };
        let letter = DeadLetter {
            id: MessageId::new(number + 1, 0),
            reason: Reason::Exhausted,
            attempts: 3,
            error: "no".into(),
            origin: MessageId::new(number + 1, 9),
            topic_partition: partition(number % 2),
            group: self.group.clone(),
            history: History::default(),
            body: wire::encode(&Envelope::new(payload)),
        };
        let (tp, role) = (letter.topic_partition.clone(), self.backend.dead_letters().expect("dead letters"));
        assert!(role.put(&tp, &self.group, &[letter], false).await.expect("put")[0].is_some());
    }

    fn consumer(&self) -> DeadLetterConsumerBuilder<u64> {
        self.consumer_by(self.backend.clone())
    }

    fn consumer_by(&self, backend: Backend) -> DeadLetterConsumerBuilder<u64> {
        DeadLetterConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(Ignore))
    }

    /// The numbers of the letters that are there.
    async fn left(&self) -> Vec<u64> {
        let mut left = Vec::new();
        for number in 0..2 {
            let role = self.backend.dead_letters().expect("dead letters");
            let page = role.list(&partition(number), &self.group, Range::ALL, 1_000).await.expect("listed");
            left.extend(page.items.iter().map(|letter| letter.origin.ms - 1));
        }
        left.sort_unstable();
        left
    }

    /// The payloads of what came back to the group.
    async fn back(&self) -> Vec<String> {
        let mut back = Vec::new();
        for number in 0..2 {
            let (tp, stream) = (partition(number), Stream::Retry(self.group.clone()));
            let page = self
                .backend
                .inspect()
                .expect("inspection")
                .entries(&tp, &stream, Range::ALL, 1_000)
                .await
                .expect("read");
            back.extend(page.items.into_iter().map(|it| {
                let receipt = Receipt::new(Source::Retry, it.id);
                let envelope = wire::decode(receipt, &it.fields, &Limits::default()).envelope;
                String::from_utf8(envelope.expect("a message").payload.to_vec()).expect("text")
            }));
        }
        back.sort_unstable();
        back
    }
}

fn partition(number: u64) -> TopicPartition {
    TopicPartition::new("numbers".parse().expect("a name"), u32::try_from(number).expect("small"))
}

/// How often each letter was handled.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Seen {
    fn add<T>(&self, letter: &Letter<T>) {
        *self.0.lock().expect("lock").entry(letter.dead.origin.ms - 1).or_default() += 1;
    }

    fn all(&self) -> BTreeMap<u64, u32> {
        self.0.lock().expect("lock").clone()
    }

    fn total(&self) -> u32 {
        self.all().values().sum()
    }

    async fn until(&self, total: u32) {
        eventually(|| self.total() >= total, || format!("{total} seen, of {:?}", self.all())).await;
    }
}

/// One that notes what it sees, and does this.
async fn seeing(
    consumer: DeadLetterConsumerBuilder<u64>,
    seen: &Seen,
    outcome: DeadLetterOutcome,
) -> DeadLetterConsumer {
    let seen = seen.clone();
    let handler = move |letter: Letter<u64>| {
        seen.add(&letter);
        let outcome = outcome.clone();
        async move { outcome }
    };
    consumer.start(handler).await.expect("started")
}

#[tokio::test(start_paused = true)]
async fn the_handler_says_what_becomes_of_each_letter() {
    let grave = Grave::new(8).await;
    let seen = Seen::default();
    let noted = seen.clone();
    let consumer = grave.consumer().start(move |letter: Letter<u64>| {
        noted.add(&letter);
        async move {
            match letter.payload {
                Ok(0 | 4) => Ok(DeadLetterOutcome::Delete),
                Ok(1) => Ok(DeadLetterOutcome::Replay),
                Ok(2) => Ok(DeadLetterOutcome::ReplayAs(Envelope::new("22").with_key("k"))),
                Ok(5) => Ok(DeadLetterOutcome::Leave),
                Ok(6) => Err("not yet"),
                Ok(_) => panic!("seven"),
                Err(_) => Ok(DeadLetterOutcome::ReplayAs(Envelope::new("3"))),
            }
        }
    });
    let consumer = consumer.await.expect("started");
    seen.until(8).await;
    let report = consumer.shutdown().await;
    let DeadLetterReport { deleted, replayed, left, failed, lost, .. } = report;
    assert_eq!((deleted, replayed, left, failed, lost), (2, 3, 3, 2, 0));
    assert_eq!(grave.left().await, [5, 6, 7]);
    assert_eq!(grave.back().await, ["1", "22", "3"]);
    assert!(seen.all().values().all(|times| *times == 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_left_comes_again_after_its_time() {
    let grave = Grave::new(2).await;
    let seen = Seen::default();
    let leave = grave.consumer().leave_for(Duration::from_secs(600));
    let consumer = seeing(leave, &seen, DeadLetterOutcome::Leave).await;
    let other = seeing(grave.consumer(), &seen, DeadLetterOutcome::Leave).await;
    seen.until(2).await;
    tokio::time::sleep(Duration::from_secs(590)).await;
    assert_eq!(seen.total(), 2, "nobody gets them before");
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert_eq!(seen.total(), 4, "and then somebody does, at the next sweep");
    consumer.shutdown().await;
    other.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_comes_is_handled_at_the_next_look() {
    let grave = Grave::new(1).await;
    let seen = Seen::default();
    let consumer = seeing(grave.consumer(), &seen, DeadLetterOutcome::Delete).await;
    seen.until(1).await;
    for number in [8, 9, 10] {
        grave.bury(number).await;
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(seen.total(), 4);
    assert_eq!(consumer.shutdown().await.deleted, 4);
    assert_eq!(grave.left().await, [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_look_without_a_letter_to_handle_is_told() {
    let grave = Grave::new(3).await;
    let seen = Seen::default();
    let consumer = seeing(grave.consumer(), &seen, DeadLetterOutcome::Leave).await;
    seen.until(3).await;
    assert_eq!(consumer.report().idle, 0, "it had something to do");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(consumer.report().idle, 1, "what is left is not to be handled");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn no_two_consumers_have_one_letter_however_long_it_takes() {
    let grave = Grave::new(100).await;
    let seen = Seen::default();
    let mut consumers = Vec::new();
    for _ in 0..3 {
        let seen = seen.clone();
        let slow = move |letter: Letter<u64>| {
            seen.add(&letter);
            async move {
                // Much longer than a claim that is not renewed.
                tokio::time::sleep(Duration::from_secs(5)).await;
                DeadLetterOutcome::Delete
            }
        };
        let hold = grave.consumer().hold(Duration::from_secs(3)).concurrency(4);
        consumers.push(hold.start(slow).await.expect("started"));
    }
    seen.until(100).await;
    let mut deleted = 0;
    for consumer in consumers {
        let report = consumer.shutdown().await;
        assert_eq!(report.lost, 0);
        deleted += report.deleted;
    }
    assert!(seen.all().values().all(|times| *times == 1), "{:?}", seen.all());
    assert_eq!((deleted, grave.left().await.len()), (100, 0));
}

#[tokio::test(start_paused = true)]
async fn what_somebody_died_over_is_handled_again_and_others_are_not_held_up() {
    let grave = Grave::new(30).await;
    let client = Chaos::new(grave.backend.clone(), 3).client();
    let died = Seen::default();
    let noted = died.clone();
    let hang = move |letter: Letter<u64>| {
        noted.add(&letter);
        std::future::pending::<DeadLetterOutcome>()
    };
    let victim = grave.consumer_by(client.backend()).start(hang).await.expect("started");
    died.until(1).await;
    client.kill();
    let seen = Seen::default();
    let heir = seeing(grave.consumer(), &seen, DeadLetterOutcome::Delete).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!((10..30).contains(&seen.total()), "those that nobody has: {}", seen.total());
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(
        (seen.total(), grave.left().await.len()),
        (30, 0),
        "the rest after the hold, at the next sweep"
    );
    heir.shutdown().await;
    drop(victim);
}

#[tokio::test(start_paused = true)]
async fn a_bad_connection_delays_and_loses_nothing() {
    for seed in 0..10 {
        let grave = Grave::new(40).await;
        let faults = Faults::none()
            .latency(Duration::from_millis(1), Duration::from_millis(30))
            .timeout(Duration::from_millis(100))
            .refused(0.05)
            .lost_requests(0.05)
            .lost_replies(0.05);
        let chaos = Chaos::new(grave.backend.clone(), seed);
        let seen = Seen::default();
        let mut consumers = Vec::new();
        for _ in 0..2 {
            let client: Client = chaos.client();
            let consumer = grave.consumer_by(client.backend());
            consumers.push(seeing(consumer, &seen, DeadLetterOutcome::Replay).await);
            client.suffer(&faults);
        }
        for _ in 0..600 {
            if grave.left().await.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(
            grave.back().await.len(),
            40,
            "seed {seed}: each goes back once, whatever was said how often"
        );
        for consumer in consumers {
            consumer.shutdown().await;
        }
    }
}

/// The page ends with the outage, and no other letter comes that could show that it is over.
#[tokio::test(start_paused = true)]
async fn what_has_failed_in_an_outage_works_again_behind_it() {
    let grave = Grave::new(1).await;
    let client = Chaos::new(grave.backend.clone(), 5).client();
    let failing = Arc::new(Mutex::new(BTreeMap::new()));
    let notes = failing.clone();
    let observer = move |event: &Event<'_>| {
        let (operation, is_failing) = match event {
            Event::Failing { operation, .. } => (*operation, true),
            Event::Recovered { operation, .. } => (*operation, false),
            _ => return,
        };
        notes.lock().expect("lock").insert(operation, is_failing);
    };
    let hold = Duration::from_secs(3);
    let once = Idempotent::by_message_id().retries_within(Duration::from_secs(60));
    let builder = DeadLetterConsumerBuilder::new(client.backend(), NUMBERS, "g", Arc::new(observer));
    let (seen, ends) = (Seen::default(), Arc::new(Notify::new()));
    let (noted, end) = (seen.clone(), ends.clone());
    let handler = move |letter: Letter<u64>| {
        noted.add(&letter);
        let end = end.clone();
        async move {
            end.notified().await;
            DeadLetterOutcome::Delete
        }
    };
    let consumer = builder.hold(hold).idempotent(once).start(handler).await.expect("started");
    seen.until(1).await;
    client.suffer(&Faults::none().refused(1.0));
    let both = || failing.lock().expect("lock").len() == 2;
    eventually(both, || format!("both fail: {failing:?}")).await;
    assert!(["claim dead letters", "extend_markers"].iter().all(|it| failing.lock().expect("lock")[it]));
    // The handler ends at once, before a renewal is tried again.
    client.suffer(&Faults::none());
    ends.notify_one();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(failing.lock().expect("lock").values().all(|is_failing| !is_failing), "{failing:?}");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_begun_at_a_shutdown_is_free_at_once() {
    let grave = Grave::new(10).await;
    let seen = Seen::default();
    let noted = seen.clone();
    let slow = move |letter: Letter<u64>| {
        noted.add(&letter);
        async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            DeadLetterOutcome::Delete
        }
    };
    let consumer = grave.consumer().start(slow).await.expect("started");
    seen.until(1).await;
    assert_eq!(consumer.shutdown().await.deleted, 1, "the one that had begun");
    let heir = seeing(grave.consumer(), &seen, DeadLetterOutcome::Delete).await;
    seen.until(10).await;
    heir.shutdown().await;
    assert!(seen.all().values().all(|times| *times == 1));
}

#[tokio::test(start_paused = true)]
async fn settings_that_make_no_sense_are_refused_all_at_once() {
    let grave = Grave::new(0).await;
    let mut config = DeadLetterConfig::default();
    (config.hold, config.concurrency, config.poll) = (Duration::ZERO, 0, Duration::ZERO);
    let refused =
        grave.consumer().config(config).start(async |_: Letter<u64>| DeadLetterOutcome::Leave).await;
    let refused = refused.expect_err("refused");
    assert_eq!((refused.kind(), refused.problems().len()), (ErrorKind::InvalidConfig, 3), "{refused}");
    let missing: Topic<u64> = Topic::new("none");
    let builder = DeadLetterConsumerBuilder::new(grave.backend.clone(), missing, "g", Arc::new(Ignore));
    let refused = builder.start(async |_: Letter<u64>| DeadLetterOutcome::Leave).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::NotFound);
}
