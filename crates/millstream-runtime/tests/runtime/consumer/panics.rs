//! User code that panics: every message follows the fallback, and neither a loop nor a partition is lost by it.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::*;
use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::assignment::Assignor;
use millstream_core::inspect::Range;
use millstream_core::log::Append;
use millstream_core::members::{Assignment, Member};
use millstream_core::policy::{Decision, Failure, Fixed, GivenUp, Keep, RetryPolicy, Verdict};
use millstream_core::upkeep::{Sleep, Trigger};
use millstream_core::{
    BoxError, Codec, DeadLetterPolicy, Envelope, ErrorKind, Event, Lease, Observer, Outcome, Partition,
    Partitioner, Result, Topic, Upkeep, wire,
};
use millstream_runtime::{
    Batch, Concurrency, Consumer, ConsumerBuilder, DeadLetterConsumerBuilder, DeadLetterOutcome, Delivery,
    Letter, ProducerBuilder, Sharing,
};

/// Panics at all that it is asked.
#[derive(Debug)]
struct Broken;

impl RetryPolicy for Broken {
    fn decide(&self, _: &Failure<'_>) -> Decision {
        panic!("no decision")
    }
}

impl DeadLetterPolicy for Broken {
    fn judge(&self, _: &GivenUp<'_>) -> Verdict {
        panic!("no verdict")
    }
}

impl Partitioner for Broken {
    fn partition(&self, key: Option<&[u8]>, _: NonZeroU32) -> Partition {
        assert!(key.is_none(), "no partition");
        Partition(0)
    }
}

impl Assignor for Broken {
    fn assign(&self, _: u32, _: &[Member], _: &Assignment) -> Assignment {
        panic!("no assignment")
    }
}

/// An error that nobody can read.
#[derive(Debug)]
struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("no text")
    }
}

impl std::error::Error for Unreadable {}

/// An error that nobody can be rid of.
#[derive(Debug, thiserror::Error)]
#[error("sticky")]
struct Sticky;

impl Drop for Sticky {
    fn drop(&mut self) {
        panic!("no end")
    }
}

/// Numbers, but for some.
struct Picky;

const UNREADABLE: u64 = 2;
const UNWRITABLE: u64 = 99;

impl Codec<u64> for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn encode(&self, value: &u64) -> Result<Bytes, BoxError> {
        assert!(*value != UNWRITABLE, "unwritable");
        Ok(value.to_string().into())
    }

    fn decode(&self, payload: &Bytes) -> Result<u64, BoxError> {
        let value = std::str::from_utf8(payload)?.parse()?;
        assert!(value != UNREADABLE, "unreadable");
        Ok(value)
    }
}

const PICKY: Topic<u64> = Topic::with_codec("numbers", &Picky).partitions(1);

/// What handlers say of the messages 0 to 9.
fn outcome(value: u64, attempt: u32) -> Outcome {
    match value {
        1 => Outcome::retry(Unreadable),
        3 => Outcome::retry(Sticky),
        4 => Outcome::dead_letter(Unreadable),
        5 if attempt == 1 => panic!("unlucky"),
        _ => Outcome::Ack,
    }
}

/// An observer that records every event, beside one that panics at every event.
fn observer(told: &Told) -> Arc<dyn Observer> {
    Arc::new((|_: &Event<'_>| panic!("no observation"), told.clone()))
}

async fn prepared() -> (Bench, ConsumerBuilder<u64>) {
    let bench = bench();
    let producer = bench.producer(PICKY).await;
    for value in 0..10 {
        producer.send(&value).await.expect("sent");
    }
    let (backend, observer) = (bench.backend.clone(), observer(&bench.told));
    let promoter = millstream_delay::Promoter::new(&backend, millstream_delay::PromoterConfig::default());
    let consumer = ConsumerBuilder::new(backend, PICKY, "g", observer).upkeep(promoter);
    (bench, consumer.retry(Broken).dead_letters(Broken))
}

/// All messages have ended as they should, and the partition has stayed where it was.
async fn assert_all_is_well(bench: &Bench, consumer: Consumer) {
    // By the default policy the last of ten attempts comes after four minutes at most.
    tokio::time::sleep(Duration::from_secs(300)).await;
    let report = consumer.report();
    assert_eq!((report.acked, report.dead, report.retried), (6, 4, 19), "{report:?}");
    let told = &bench.told;
    assert_eq!((told.lines("Assigned"), told.lines("Revoked"), told.lines("LeaseLost")), (1, 0, 0));
    assert_eq!(told.lines("Failing"), 0, "{:#?}", told.all());
    let panics = |code: &str| told.lines(&format!("Panicked {{ code: {code},"));
    assert_eq!(panics("RetryPolicy"), 21, "one for each attempt that failed");
    assert_eq!(panics("DeadLetterPolicy"), 4);
    // Ten texts of 1, one of 4; 3 ends ten times.
    assert_eq!(panics("ErrorText"), 21);
    assert_eq!((panics("Codec"), panics("Handler")), (1, 1));
    assert!(panics("Observer") > 50, "{}", panics("Observer"));
    let letters = dead(bench, "g").await.list(10).await.expect("listed");
    let mut letters: Vec<_> = letters
        .iter()
        .map(|letter| {
            let payload = letter.envelope(&millstream_core::Limits::default()).expect("a message").payload;
            (payload[0] - b'0', letter.reason.as_str(), letter.attempts, letter.error.as_str())
        })
        .collect();
    letters.sort_unstable();
    let unreadable = "an error without a text: the error's text panicked: no text";
    let undecided = "(the retry policy panicked: no decision)";
    let expected = [
        (1, "exhausted", 10, &*format!("{unreadable} {undecided}")),
        (2, "undecodable", 0, "the codec panicked: unreadable"),
        (3, "exhausted", 10, &*format!("sticky {undecided}")),
        (4, "rejected", 1, unreadable),
    ];
    assert_eq!(letters, expected);
    assert!(consumer.health().is_live() && consumer.health().is_ready());
    assert_eq!(consumer.shutdown().await.handed_back, 0);
}

#[tokio::test(start_paused = true)]
async fn everything_that_panics_beside_a_handler_has_its_fallback() {
    for concurrency in [Concurrency::Serial, Concurrency::PerKey(4), Concurrency::Unordered(4)] {
        let (bench, consumer) = prepared().await;
        let handler = async |delivery: Delivery<u64>| outcome(delivery.payload, delivery.attempt());
        let consumer = consumer.concurrency(concurrency).start(handler).await.expect("started");
        assert_all_is_well(&bench, consumer).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_in_shared_mode() {
    let (bench, consumer) = prepared().await;
    let consumer = consumer.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(3));
    let handler = async |delivery: Delivery<u64>| outcome(delivery.payload, delivery.attempt());
    assert_all_is_well(&bench, consumer.start(handler).await.expect("started")).await;
}

#[tokio::test(start_paused = true)]
async fn the_same_in_batches() {
    let (bench, consumer) = prepared().await;
    let consumer = consumer.start_batch((1, MS(10)), async |batch: Batch<u64>| {
        batch.iter().map(|delivery| outcome(delivery.payload, delivery.attempt())).collect::<Vec<_>>()
    });
    assert_all_is_well(&bench, consumer.await.expect("started")).await;
}

#[tokio::test(start_paused = true)]
async fn outcomes_that_fit_no_batch_are_dropped_safely() {
    let (bench, consumer) = prepared().await;
    let consumer = consumer.start_batch((10, MS(10)), async |batch: Batch<u64>| {
        if batch[0].attempt() == 1 {
            // One too many, none of which can be dropped.
            return batch.iter().chain(&batch[..1]).map(|_| Outcome::retry(Sticky)).collect::<Vec<_>>();
        }
        batch.iter().map(|_| Outcome::Ack).collect()
    });
    let consumer = consumer.await.expect("started");
    eventually(|| consumer.report().acked == 9, || format!("{:?}", consumer.report())).await;
    assert_eq!((bench.told.lines("Revoked"), bench.told.lines("Assigned")), (0, 1));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_same_where_messages_are_pulled() {
    let (bench, consumer) = prepared().await;
    let puller = Arc::new(consumer.pull().await.expect("started"));
    let pulling = tokio::spawn({
        let puller = puller.clone();
        async move {
            while let Some(pulled) = puller.next().await {
                let (value, attempt) = (pulled.payload, pulled.attempt());
                pulled.settle(if value == 5 { Outcome::Ack } else { outcome(value, attempt) });
            }
        }
    });
    tokio::time::sleep(Duration::from_secs(300)).await;
    let report = puller.report();
    assert_eq!((report.acked, report.dead, report.retried), (6, 4, 18), "{report:?}");
    let told = &bench.told;
    assert_eq!((told.lines("Assigned"), told.lines("Revoked"), told.lines("Failing")), (1, 0, 0));
    puller.stop();
    pulling.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_send_that_panics_is_an_error_of_that_send_alone() {
    let bench = bench();
    let producer = ProducerBuilder::new(bench.backend.clone(), PICKY, observer(&bench.told));
    let producer = producer.partitioner(Broken).await.expect("a producer");
    let error = producer.send(&UNWRITABLE).await.expect_err("the codec panics");
    assert_eq!(error.kind(), ErrorKind::Encode);
    assert!(error.to_string().contains("the codec panicked: unwritable"), "{error}");
    let error = producer.send(&1).key("k").await.expect_err("the partitioner panics");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("the partitioner panicked: no partition"), "{error}");
    let error = producer.send(&UNWRITABLE).delay(MS(5)).await.expect_err("the codec panics");
    assert_eq!(error.kind(), ErrorKind::Encode);
    for value in 0..5 {
        producer.send(&value).await.expect("sent");
    }
    let told = &bench.told;
    assert_eq!((told.lines("code: Codec"), told.lines("code: Partitioner")), (2, 1));
    assert_eq!(told.lines("Produced"), 5, "though an observer beside it panics");
    producer.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_assignor_that_panics_is_replaced_and_told() {
    let bench = bench();
    produce(&bench, 3).await;
    let consumer = bench.consumer(NUMBERS, "g").assignor(Broken);
    let consumer = consumer.start(async |_: Delivery<u64>| ()).await.expect("started");
    eventually(|| consumer.report().acked == 3, || format!("{:?}", consumer.report())).await;
    assert_eq!(bench.told.lines("code: Assignor"), 1);
    consumer.shutdown().await;
}

/// Upkeep that panics at one thing each time.
#[derive(Debug)]
struct Careless {
    at: &'static str,
    runs: Arc<AtomicU32>,
}

#[async_trait]
impl Upkeep for Careless {
    fn name(&self) -> &'static str {
        assert!(self.at != "name", "no name");
        "careless"
    }

    fn trigger(&self) -> Trigger {
        assert!(self.at != "trigger", "no trigger");
        Trigger::Parked
    }

    async fn run_once(&self, _: &Lease, _: &dyn Observer) -> Result<Option<Duration>> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        assert!(self.at != "run", "no run");
        Ok(Some(Duration::from_secs(1)))
    }

    fn sleep(&self, time: Duration) -> Option<Sleep> {
        assert!(self.at != "sleep", "no sleep");
        let wakes = self.at != "wake";
        Some(Box::pin(async move {
            tokio::time::sleep(time / 2).await;
            assert!(wakes, "no waking");
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn upkeep_that_panics_keeps_no_message_and_no_other_upkeep() {
    for at in ["name", "trigger", "run", "sleep", "wake"] {
        let (bench, runs) = (bench(), Arc::new(AtomicU32::new(0)));
        produce(&bench, 3).await;
        let consumer = bench.consumer(NUMBERS, "g").upkeep(Ok(Careless { at, runs: runs.clone() }));
        // The promoter beside it moves the retries.
        let handler = async |delivery: Delivery<u64>| if delivery.attempt() < 3 { Err("no") } else { Ok(()) };
        let consumer = consumer.retry(Fixed::new(MS(100))).start(handler).await.expect("started");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(consumer.report().acked, 3, "{at}");
        let told = &bench.told;
        assert_eq!((told.lines("Revoked"), told.lines("Assigned")), (0, 1), "{at}");
        assert!(told.lines("code: Upkeep") > 0, "{at}");
        assert_eq!(told.lines("Failing") > 0, at == "run", "{at}");
        let runs = runs.load(Ordering::Relaxed);
        assert!((5..200).contains(&runs), "{at}: it is tried again, and not all the time: {runs}");
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_of_dead_letters_goes_on() {
    let bench = bench();
    bench.producer(PICKY).await;
    let (tp, group) = (partition(), "g".parse().expect("a name"));
    let consumer = bench.consumer(PICKY, "g").retry(Fixed::new(MS(1)).attempts(1)).dead_letters(Keep);
    let consumer = consumer.start(async |_: Delivery<u64>| Err::<(), _>("no")).await.expect("started");
    let payloads = ["0", "1", "2", "3", "4"].map(|payload| wire::encode(&Envelope::new(payload)));
    let appends = payloads.map(|fields| Append::new(tp.clone(), fields));
    assert!(bench.backend.log().append(&appends).await.iter().all(Result::is_ok));
    eventually(|| consumer.report().dead == 5, || format!("{:?}", consumer.report())).await;
    consumer.shutdown().await;

    let builder = DeadLetterConsumerBuilder::new(bench.backend.clone(), PICKY, "g", observer(&bench.told));
    let letters = builder.start(async |letter: Letter<u64>| match letter.payload {
        Ok(1) => Err(BoxError::from(Unreadable)),
        Ok(3) => Err(BoxError::from(Sticky)),
        Ok(4) => panic!("unlucky"),
        Ok(_) => Ok(DeadLetterOutcome::Delete),
        Err(error) => {
            assert_eq!(error.to_string(), "the codec panicked: unreadable");
            Ok(DeadLetterOutcome::Delete)
        }
    });
    let letters = letters.await.expect("started");
    eventually(|| letters.report().left == 3, || format!("{:?}", letters.report())).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let report = letters.shutdown().await;
    assert_eq!((report.deleted, report.left, report.failed), (2, 3, 3));
    let told = &bench.told;
    assert_eq!((told.lines("code: ErrorText"), told.lines("code: Handler")), (2, 1));
    assert_eq!(told.lines("code: Codec"), 2, "at the handler's, and at the letter's");
    let page = bench
        .backend
        .dead_letters()
        .expect("dead letters")
        .list(&tp, &group, Range::ALL, 10)
        .await
        .expect("listed");
    assert_eq!(page.items.len(), 3);
}
