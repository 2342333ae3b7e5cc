//! Layers around a handler of dead letters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::*;
use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::event::{Cause, Ignore};
use millstream_core::policy::Never;
use millstream_core::{BoxError, Envelope, Outcome};
use millstream_runtime::extract::{Payload, State, with_state};
use millstream_runtime::{
    Answer, ConsumerBuilder, DeadLetterConsumerBuilder, DeadLetterOutcome, Delivery, Idempotent, Layer,
    Letter, Next, ProducerBuilder, ProducerLayer,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A secret of one byte.
#[derive(Clone)]
struct Veil(u8);

impl Veil {
    fn turned(&self, payload: &[u8]) -> Bytes {
        payload.iter().map(|byte| byte ^ self.0).collect()
    }
}

impl ProducerLayer for Veil {
    fn send(&self, message: &mut Envelope) -> Result<(), millstream_core::BoxError> {
        message.payload = self.turned(&message.payload);
        Ok(())
    }
}

#[async_trait]
impl Layer for Veil {
    async fn handle(&self, mut delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        delivery.payload = self.turned(&delivery.payload);
        next.run(delivery).await
    }
}

/// A layer that answers by the number in the payload, which it reads in clear.
struct Picky(Arc<Mutex<Vec<Option<Cause>>>>);

#[async_trait]
impl Layer for Picky {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        assert!(delivery.attempt() == 1 && delivery.last_error() == Some("broken"), "{delivery:?}");
        match &*delivery.payload {
            b"0" => Answer::undecodable("torn"),
            b"1" => Outcome::snooze(Duration::from_secs(7_200)).into(),
            b"2" => Outcome::retry("away").into(),
            b"3" => Outcome::Ack.into(),
            b"4" => panic!("on purpose"),
            _ => {
                let answer = next.run(delivery).await;
                self.0.lock().expect("lock").push(answer.cause());
                answer
            }
        }
    }
}

/// Dead letters of a topic whose payloads are veiled.
async fn buried(bench: &Bench, count: u64) {
    let veiled = ProducerBuilder::new(bench.backend.clone(), NUMBERS, Arc::new(Ignore)).layer(Veil(7));
    let veiled = veiled.await.expect("a producer");
    for number in 0..count {
        veiled.send(&number).await.expect("stored");
    }
    let consumer: ConsumerBuilder<u64> = bench.consumer(NUMBERS, "g").layer(Veil(7)).retry(Never);
    let consumer = consumer.start(async |_: Delivery<u64>| Err::<(), _>("broken")).await.expect("a consumer");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.dead, count);
}

/// What a handler got: the number, or the error of its payload.
type Got = Result<u64, String>;

fn recorder() -> (UnboundedSender<Got>, UnboundedReceiver<Got>) {
    unbounded_channel()
}

fn letters(bench: &Bench) -> DeadLetterConsumerBuilder<u64> {
    DeadLetterConsumerBuilder::new(bench.backend.clone(), NUMBERS, "g", Arc::new(Ignore))
}

fn record(got: &UnboundedSender<Got>, letter: &Letter<u64>) {
    let payload = letter.payload.as_ref().copied().map_err(ToString::to_string);
    got.send(payload).expect("the test listens");
}

#[tokio::test(start_paused = true)]
async fn a_letter_passes_the_layers_of_its_message() {
    let bench = bench();
    buried(&bench, 2).await;
    let (got, mut came) = recorder();
    let consumer = letters(&bench).layer(Veil(7)).start(move |letter: Letter<u64>| {
        record(&got, &letter);
        let outcome = if letter.payload.is_ok_and(|number| number == 0) {
            DeadLetterOutcome::Delete
        } else {
            DeadLetterOutcome::Replay
        };
        async move { outcome }
    });
    let consumer = consumer.await.expect("a consumer");
    assert_eq!((came.recv().await, came.recv().await), (Some(Ok(0)), Some(Ok(1))));
    let report = consumer.shutdown().await;
    assert_eq!((report.deleted, report.replayed), (1, 1));
    // What comes back is as it was stored: the layers of the group's consumer read it again.
    let (again, mut came) = unbounded_channel();
    let consumer = bench.consumer(NUMBERS, "g").layer(Veil(7)).start(move |number: Delivery<u64>| {
        again.send(number.payload).expect("the test listens");
        async { Ok::<_, String>(()) }
    });
    let consumer = consumer.await.expect("a consumer");
    assert_eq!(came.recv().await, Some(1));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_does_not_go_on_leaves_the_letter_or_gives_its_error() {
    let bench = bench();
    buried(&bench, 7).await;
    let causes = Arc::new(Mutex::new(Vec::new()));
    let (got, mut came) = recorder();
    let layered = letters(&bench).layer(Veil(7)).layer(Picky(causes.clone()));
    let consumer = layered.start(move |letter: Letter<u64>| {
        record(&got, &letter);
        let failed = letter.payload.is_ok_and(|number| number == 6);
        async move { if failed { Err("no") } else { Ok(()) } }
    });
    let consumer = consumer.await.expect("a consumer");
    let got = [came.recv().await, came.recv().await, came.recv().await];
    assert_eq!(got, [Some(Err("torn".to_owned())), Some(Ok(5)), Some(Ok(6))]);
    let report = consumer.shutdown().await;
    // Deleted: 0 and 5. Failed: 2, 4 and 6. Left by a layer: 1 and 3.
    assert_eq!((report.deleted, report.failed, report.left), (2, 3, 5));
    assert_eq!(*causes.lock().expect("lock"), [None, Some(Cause::Error)]);
    assert_eq!(bench.dead("g").await.count().await.expect("a count"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_letters_has_parts_and_a_limit_of_time() {
    async fn revive(
        State(slow): State<u64>,
        topic: millstream_core::GroupName,
        Payload(number): Payload<Result<u64, BoxError>>,
    ) -> Outcome {
        assert_eq!(topic.as_str(), "g");
        match number {
            Ok(number) if number == slow => tokio::time::sleep(Duration::from_secs(3_600)).await,
            Ok(0) => return Outcome::snooze(Duration::from_secs(7_200)),
            _ => {}
        }
        Outcome::Ack
    }
    let bench = bench();
    buried(&bench, 3).await;
    let limited = letters(&bench).layer(Veil(7)).handler_timeout(Duration::from_secs(2));
    let consumer = limited.start(with_state(1, revive)).await.expect("a consumer");
    while consumer.report().idle == 0 {
        tokio::time::sleep(MS(500)).await;
    }
    let report = consumer.shutdown().await;
    assert_eq!(
        (report.deleted, report.failed, report.left),
        (1, 1, 2),
        "2 is done, 1 took too long, 0 is for later"
    );
}

#[tokio::test(start_paused = true)]
async fn letters_of_one_operation_take_effect_once() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    for number in 0..3u64 {
        let payment = if number < 2 { "p-7" } else { "p-8" };
        producer.send(&number).header("payment", payment).await.expect("stored");
    }
    let consumer = bench.consumer(NUMBERS, "g").retry(Never);
    let consumer = consumer.start(async |_: Delivery<u64>| Err::<(), _>("broken")).await.expect("a consumer");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.dead, 3);
    let (got, mut came) = recorder();
    let once = Idempotent::by_header("payment").replays_within(Duration::ZERO);
    let consumer = letters(&bench).idempotent(once).start(move |letter: Letter<u64>| {
        record(&got, &letter);
        // Longer than a marker lasts without an extension. One that is left has not taken effect.
        async move {
            tokio::time::sleep(Duration::from_secs(100)).await;
            let outcome = if letter.payload.is_ok_and(|number| number < 2) {
                DeadLetterOutcome::Delete
            } else {
                DeadLetterOutcome::LeaveFor(Duration::ZERO)
            };
            Ok::<_, String>(outcome)
        }
    });
    let consumer = consumer.await.expect("a consumer");
    let got = [came.recv().await, came.recv().await, came.recv().await];
    assert_eq!(
        got,
        [Some(Ok(0)), Some(Ok(2)), Some(Ok(2))],
        "the second one of p-7 is deleted without its handler"
    );
    assert_eq!(consumer.shutdown().await.deleted, 2);
}

/// A layer that makes an answer of its own of a good one.
struct Rebuilds;

#[async_trait]
impl Layer for Rebuilds {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        if next.run(delivery).await.is_done() { Outcome::Ack.into() } else { Outcome::retry("no").into() }
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_handler_of_letters_decides_holds_whatever_a_layer_answers() {
    let bench = bench();
    buried(&bench, 2).await;
    let consumer = letters(&bench).layer(Veil(7)).layer(Rebuilds).start(async |letter: Letter<u64>| {
        if letter.payload.is_ok_and(|number| number == 0) {
            DeadLetterOutcome::Delete
        } else {
            DeadLetterOutcome::Replay
        }
    });
    let consumer = consumer.await.expect("a consumer");
    while consumer.report().idle == 0 {
        tokio::time::sleep(MS(500)).await;
    }
    let report = consumer.shutdown().await;
    assert_eq!((report.deleted, report.replayed, report.left), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_names_no_operation_reaches_its_handler_with_its_payload() {
    let bench = bench();
    buried(&bench, 1).await;
    let (got, mut came) = recorder();
    let once = Idempotent::by_header("payment").replays_within(Duration::ZERO);
    let consumer = letters(&bench).layer(Veil(7)).idempotent(once).start(move |letter: Letter<u64>| {
        record(&got, &letter);
        async { Ok::<(), String>(()) }
    });
    let consumer = consumer.await.expect("a consumer");
    assert_eq!(came.recv().await, Some(Ok(0)));
    assert_eq!(consumer.shutdown().await.deleted, 1);
}
