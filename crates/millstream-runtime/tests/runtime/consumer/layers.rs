//! Layers around handlers, and handlers with parts of the message as arguments.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::event::Cause;
use millstream_core::policy::{Fixed, Never};
use millstream_core::{BoxError, Envelope, ErrorKind, Headers, Outcome, TopicPartition};
use millstream_runtime::extract::{Attempt, FromMessage, Key, Origin, Payload, State, handler, with_state};
use millstream_runtime::{Answer, Batch, BatchConfig, Delivery, Layer, Next, ProducerLayer, test};

/// What layers saw, in order.
type Trail = Arc<Mutex<Vec<String>>>;

struct Named(&'static str, Trail);

impl Named {
    fn note(&self, what: &str) {
        self.1.lock().expect("lock").push(format!("{} {what}", self.0));
    }
}

#[async_trait]
impl Layer for Named {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        self.note("before");
        let answer = next.run(delivery).await;
        self.note(match answer.cause() {
            Some(Cause::Error) => "failed",
            Some(_) => "failed otherwise",
            None if answer.is_done() => "done",
            None => "not done",
        });
        answer
    }
}

/// Adds one to the number that it reads.
struct AddOne;

#[async_trait]
impl Layer for AddOne {
    async fn handle(&self, mut delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        let number: u64 = std::str::from_utf8(&delivery.payload).expect("text").parse().expect("a number");
        delivery.payload = (number + 1).to_string().into();
        next.run(delivery).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_layer_is_the_outermost_and_each_may_change_the_message() {
    let (bench, trail, seen) = (bench(), Trail::default(), Seen::default());
    produce(&bench, 1).await;
    let consumer = bench.consumer(NUMBERS, "g").retry(Fixed::new(MS(1)).attempts(2));
    let consumer = consumer.layer(Named("outer", trail.clone())).layer(AddOne);
    let consumer = consumer.layer(Named("inner", trail.clone())).layer(AddOne).start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async move { if delivery.attempt() == 1 { Outcome::retry("no") } else { Outcome::Ack } }
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(*seen.lock().expect("lock"), [(2, 1), (2, 2)], "each attempt begins with what was sent");
    let once = |how| {
        ["outer before".to_owned(), "inner before".to_owned(), format!("inner {how}"), format!("outer {how}")]
    };
    assert_eq!(*trail.lock().expect("lock"), [once("failed"), once("done")].concat());
    consumer.shutdown().await;
}

/// Answers by itself.
struct Says(fn(u32) -> Option<Outcome>);

#[async_trait]
impl Layer for Says {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        match self.0(delivery.deliveries()) {
            Some(outcome) => outcome.into(),
            None => next.run(delivery).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_a_layer_does_not_let_through_uses_no_attempt() {
    let (bench, seen) = (bench(), Seen::default());
    produce(&bench, 1).await;
    let passes = Arc::new(Mutex::new(3));
    struct Later(Arc<Mutex<u32>>);
    #[async_trait]
    impl Layer for Later {
        async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
            let waits = {
                let mut left = self.0.lock().expect("lock");
                *left = left.saturating_sub(1);
                *left > 0
            };
            if waits { Outcome::snooze(MS(10)).into() } else { next.run(delivery).await }
        }
    }
    let consumer = bench.consumer(NUMBERS, "g").retry(Never).layer(Later(passes)).start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.snoozed), (1, 2));
    assert_eq!(*seen.lock().expect("lock"), [(0, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_panics_or_hangs_fails_the_attempt() {
    let bench = bench();
    produce(&bench, 1).await;
    let panics = Says(|_| panic!("a layer"));
    let consumer = bench.consumer(NUMBERS, "panics").retry(Never).layer(panics);
    let consumer = consumer.start(|_: Delivery<u64>| async {}).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.dead, 1);

    struct Hangs;
    #[async_trait]
    impl Layer for Hangs {
        async fn handle(&self, _: Delivery<Bytes>, _: Next<'_>) -> Answer {
            std::future::pending().await
        }
    }
    let consumer = bench.consumer(NUMBERS, "hangs").retry(Never).layer(Hangs);
    let consumer = consumer.handler_timeout(Duration::from_secs(3));
    let consumer = consumer.start(|_: Delivery<u64>| async {}).await.expect("started");
    // The first one is gone: all groups that there were had settled it.
    produce(&bench, 1).await;
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.dead, 1);
}

#[tokio::test(start_paused = true)]
async fn batches_have_no_layers() {
    let builder = bench().consumer(NUMBERS, "g").layer(AddOne);
    let started = builder.start_batch(BatchConfig::default(), |_: Batch<u64>| async {}).await;
    let error = started.map(drop).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("layers are for handlers of single messages"), "{error}");
}

/// Turns payloads around, and says so in a header.
struct Reverse;

impl ProducerLayer for Reverse {
    fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
        message.payload = message.payload.iter().rev().copied().collect();
        message.headers.append("reversed", "yes");
        message.key = None;
        Ok(())
    }
}

#[async_trait]
impl Layer for Reverse {
    async fn handle(&self, mut delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        if delivery.headers().get_str("reversed") == Some("yes") {
            delivery.payload = delivery.payload.iter().rev().copied().collect();
        }
        next.run(delivery).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_of_the_consumer_undoes_what_that_of_the_producer_did() {
    let (bench, seen) = (bench(), Seen::default());
    let producer = bench.producing(NUMBERS).layer(Reverse).await.expect("a producer");
    producer.send(&123).key("k").await.expect("stored");
    producer.send(&456).key("k").delay(MS(10)).await.expect("parked");
    let consumer = bench.consumer(NUMBERS, "g").layer(Reverse).start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            assert_eq!(delivery.key().map(|key| &key[..]), Some(&b"k"[..]), "the key stays");
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 2).await;
    assert_eq!(*seen.lock().expect("lock"), [(123, 1), (456, 1)]);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_fails_stores_nothing() {
    struct Fails;
    impl ProducerLayer for Fails {
        fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
            if &message.payload[..] == b"1" { panic!("on one") } else { Err("no key".into()) }
        }
    }
    let bench = bench();
    let producer = bench.producing(NUMBERS).layer(Fails).await.expect("a producer");
    for (number, text) in [(1, "a layer panicked: on one"), (2, "a layer failed: no key")] {
        let error = producer.send(&number).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Encode);
        assert!(error.to_string().contains(text), "{error}");
    }
}

/// Name of the tenant in a header.
struct Tenant(String);

impl<S> FromMessage<S> for Tenant {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        let tenant = delivery.headers().get_str("tenant");
        tenant.map(|it| Self(it.to_owned())).ok_or_else(|| Outcome::dead_letter("no tenant"))
    }
}

#[tokio::test]
async fn parts_of_the_message_are_arguments() {
    #[expect(clippy::too_many_arguments, reason = "one of each")]
    async fn all(
        State(factor): State<u64>,
        Tenant(tenant): Tenant,
        Attempt(attempt): Attempt,
        Key(key): Key,
        Origin(origin): Origin,
        place: TopicPartition,
        headers: Headers,
        Payload(number): Payload<u64>,
    ) -> Result<(), String> {
        Err(format!("{} {tenant} {attempt} {key:?} {origin} {place} {}", factor * number, headers.len()))
    }
    let call = with_state(10_u64, all);
    let outcome = call(test::delivery(7).header("tenant", "acme").key("k").attempt(3).build()).await;
    let Outcome::Retry(error) = &*outcome else { panic!("{outcome:?}") };
    assert_eq!(error.to_string(), "70 acme 3 Some(b\"k\") 1-0 test/0 1");
    let outcome = call(Delivery::for_test(7)).await;
    assert!(matches!(&*outcome, Outcome::DeadLetter(error) if error.to_string() == "no tenant"));

    async fn plain(delivery: Delivery<u64>) -> Outcome {
        if delivery.payload == 1 { Outcome::Ack } else { Outcome::snooze(MS(1)) }
    }
    assert!(matches!(*handler(plain)(Delivery::for_test(1)).await, Outcome::Ack));
    let by_closure = handler(async |Attempt(_): Attempt, Payload(_): Payload<u64>| {});
    assert!(matches!(*by_closure(Delivery::for_test(1)).await, Outcome::Ack));
}
