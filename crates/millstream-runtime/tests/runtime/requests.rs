//! Requests: the reply of a handler reaches whoever sent the message, or the sender learns why there is none.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::support::link::link;
use super::support::*;
use millstream_core::event::Ignore;
use millstream_core::policy::{Discard, Fixed, Never};
use millstream_core::results::{DISCARDED, RESULT_HEADER, TOO_LARGE, UNWRITABLE};
use millstream_core::{
    BatchOutcome, Capability, Check, ErrorKind, Limits, MessageResult, Outcome, Reply, ResultId, Start,
};
use millstream_runtime::{
    Batch, Concurrency, Delivery, Idempotent, Producer, ProducerBuilder, RequestError, ResultFuture, Router,
    Sharing,
};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// Doubles even numbers, and refuses odd ones.
async fn double(number: Delivery<u64>) -> Result<Reply, String> {
    match number.payload % 2 {
        0 => Ok(Reply::json(&(number.payload * 2))),
        _ => Err(format!("{} is odd", number.payload)),
    }
}

async fn ask(producer: &Producer<u64>, number: u64) -> Result<u64, RequestError> {
    producer.send(&number).reply::<u64>().within(SECOND * 60).await
}

/// The reason, attempts and error of a request that failed.
fn failed(result: Result<u64, RequestError>) -> (String, u32, String) {
    match result {
        Err(RequestError::Failed { reason, attempts, error, .. }) => (reason.into(), attempts, error),
        other => panic!("it did not fail: {other:?}"),
    }
}

fn timed_out(result: Result<u64, RequestError>) -> ResultId {
    match result {
        Err(RequestError::Timeout { id, .. }) => id,
        other => panic!("it did not time out: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_has_the_reply_to_it_or_the_error() {
    let bench = bench();
    let consumer = bench.consumer(NUMBERS, "g").retry(Fixed::new(SECOND).attempts(2));
    let consumer = consumer.concurrency(Concurrency::PerKey(8)).start(double).await.expect("a consumer");
    let producer = bench.producer(NUMBERS).await;
    let requests = (0..100).map(|number| ask(&producer, number));
    for (number, result) in (0..).zip(futures_util::future::join_all(requests).await) {
        match number % 2 {
            0 => assert_eq!(result.expect("a reply"), number * 2),
            _ => assert_eq!(failed(result), ("exhausted".into(), 2, format!("{number} is odd"))),
        }
    }
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_comes_late_is_found_by_its_id() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let asked = Instant::now();
    let request = producer.send(&4).reply::<u64>().within(SECOND).keep(SECOND * 100);
    let id = timed_out(request.await);
    assert!(asked.elapsed() >= SECOND && asked.elapsed() < SECOND * 2, "{:?}", asked.elapsed());
    let find = |id: &ResultId| ResultFuture::new(&bench.backend, id);
    assert_eq!(find(&id).await.expect("no error"), None);
    let waiting = tokio::spawn(find(&id).within(SECOND * 600).into_future());
    let consumer = bench.consumer(NUMBERS, "g").start(double).await.expect("a consumer");
    let found = waiting.await.expect("no panic").expect("no error").expect("a result");
    assert_eq!(found.decode::<u64>().expect("a number"), 8);
    // As often as asked, from its text, until its time is over.
    sleep(SECOND * 90).await;
    let again: ResultId = id.to_string().parse().expect("an id");
    assert_eq!(find(&again).await.expect("no error"), Some(found));
    sleep(SECOND * 11).await;
    assert_eq!(find(&id).await.expect("no error"), None, "it was kept for 100 s");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_can_begin_now_and_be_waited_for_later() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let requested = producer.send(&6).key("k").reply::<u64>().begin().await.expect("stored");
    assert_eq!(requested.id.place, partition().into());
    assert_eq!(requested.sent.partition.0, 0);
    timed_out(requested.within(SECOND).await);
    let consumer = bench.consumer(NUMBERS, "g").start(double).await.expect("a consumer");
    for _ in 0..2 {
        assert_eq!(requested.within(SECOND * 10).await.expect("a reply"), 12);
    }
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_there_to_reply_answers_nothing_but_its_replies() {
    let bench = bench();
    let audit =
        bench.consumer(NUMBERS, "audit").start(async |_: Delivery<u64>| {}).await.expect("a consumer");
    let strict = bench.consumer(NUMBERS, "strict").retry(Never);
    let strict = strict.start(async |_: Delivery<u64>| Err::<(), _>("no")).await.expect("a consumer");
    // Its type says nothing; sometimes it replies.
    let some = bench.consumer(NUMBERS, "some").start(|number: Delivery<u64>| async move {
        sleep(SECOND).await;
        if number.payload == 1 { Outcome::reply(&"one") } else { Outcome::Ack }
    });
    let some = some.await.expect("a consumer");
    let producer = bench.producer(NUMBERS).await;
    let one = producer.send(&1).reply::<String>().within(SECOND * 60).await.expect("a reply");
    assert_eq!(one, "one");
    timed_out(ask(&producer, 2).await);
    for consumer in [audit, strict, some] {
        consumer.shutdown().await;
    }
    // One that says so answers in any case.
    let answers = bench.consumer(NUMBERS, "answers").replies(true);
    let answers = answers.start(async |_: Delivery<u64>| {}).await.expect("a consumer");
    let result = ask(&producer, 3).await;
    assert!(matches!(result, Err(RequestError::NoReply { .. })), "{result:?}");
    answers.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_each_message_is_its_result() {
    async fn handle(number: Delivery<u64>) -> Result<Reply, String> {
        match number.payload {
            0 => Ok(Reply::bytes(vec![b'x'; 100])),
            1 => Ok(Reply::json(&std::collections::BTreeMap::from([((1, 2), 3)]))),
            2 => panic!("on purpose"),
            3 => std::future::pending().await,
            _ => Err("refused".into()),
        }
    }
    let bench = bench();
    let mut config = millstream_runtime::ConsumerConfig::default();
    config.limits = Limits::default().with_payload(99);
    let consumer = bench.consumer(NUMBERS, "g").config(config).retry(Never).handler_timeout(SECOND * 5);
    let consumer = consumer.start(handle).await.expect("a consumer");
    let producer = bench.producer(NUMBERS).await;
    let large = failed(ask(&producer, 0).await);
    assert_eq!(large, (TOO_LARGE.into(), 1, "the reply has 100 bytes, at most 99 are kept".into()));
    let (reason, attempts, _) = failed(ask(&producer, 1).await);
    assert_eq!((&*reason, attempts), (UNWRITABLE, 1));
    let panicked = ("exhausted".into(), 1, "handler panicked: on purpose".into());
    assert_eq!(failed(ask(&producer, 2).await), panicked);
    let timed_out = ("exhausted".into(), 1, "handler timed out after 5s".into());
    assert_eq!(failed(ask(&producer, 3).await), timed_out);
    assert_eq!(failed(ask(&producer, 4).await), ("exhausted".into(), 1, "refused".into()));
    // Not a number: the handler does not see it.
    let raw =
        ProducerBuilder::new(bench.backend.clone(), millstream_core::Topic::raw("numbers"), Arc::new(Ignore));
    let raw = raw.await.expect("a producer");
    let (reason, attempts, _) = failed(raw.send(&"x".into()).reply::<u64>().await);
    assert_eq!((&*reason, attempts), ("undecodable", 0));
    assert_eq!(consumer.shutdown().await.dead, 4, "what was handled is no dead letter");
    let discards = bench.consumer(NUMBERS, "g").dead_letters(Discard).retry(Never);
    let discards = discards.start(handle).await.expect("a consumer");
    assert_eq!(failed(ask(&producer, 5).await), (DISCARDED.into(), 1, "refused".into()));
    discards.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_handled_without_its_handler_has_no_reply() {
    let bench = bench();
    let calls = Arc::new(AtomicUsize::new(0));
    let called = calls.clone();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .idempotent(Idempotent::by_header("id"))
        .retry(Fixed::new(SECOND))
        .check(async |_: Delivery<u64>| Check::Complete)
        .start(move |number: Delivery<u64>| {
            called.fetch_add(1, Ordering::Relaxed);
            double(number)
        });
    let consumer = consumer.await.expect("a consumer");
    let producer = bench.producer(NUMBERS).await;
    let request = |number: &'static u64| producer.send(number).header("id", "one").reply::<u64>();
    assert_eq!(request(&8).await.expect("a reply"), 16);
    // The marker of the operation keeps the reply, for whoever asks for it.
    assert_eq!(request(&8).await.expect("the same reply"), 16);
    producer.send(&8).header("id", "nobody asks").await.expect("stored");
    let again = producer.send(&8).header("id", "nobody asks").reply::<u64>().await;
    assert!(matches!(again, Err(RequestError::NoReply { .. })), "{again:?}");
    // It failed, and the check before its second attempt finds it done.
    let checked = producer.send(&9).header("id", "two").reply::<u64>().await;
    assert!(matches!(checked, Err(RequestError::NoReply { .. })), "{checked:?}");
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn handlers_of_all_kinds_reply() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    // Batches.
    let consumer = bench.consumer(NUMBERS, "g").start_batch((10, MS(50)), async |batch: Batch<u64>| {
        BatchOutcome::Each(batch.iter().map(|number| Outcome::reply(&(number.payload * 2))).collect())
    });
    let consumer = consumer.await.expect("a consumer");
    for (number, result) in
        (0..).zip(futures_util::future::join_all((0..25).map(|n| ask(&producer, n))).await)
    {
        assert_eq!(result.expect("a reply"), number * 2);
    }
    consumer.shutdown().await;
    // Shared mode.
    let consumer = bench.consumer(NUMBERS, "shared").sharing(Sharing::Shared).retry(Never);
    let consumer = consumer.concurrency(Concurrency::Unordered(4)).start(double).await.expect("a consumer");
    assert_eq!(ask(&producer, 4).await.expect("a reply"), 8);
    assert_eq!(failed(ask(&producer, 5).await).2, "5 is odd");
    consumer.shutdown().await;
    // Pulled messages.
    let puller = bench.consumer(NUMBERS, "pulls").start_from(Start::Latest).pull().await.expect("a puller");
    let asking = tokio::spawn({
        let producer = producer.clone();
        async move { ask(&producer, 4).await }
    });
    let pulled = puller.next().await.expect("a message");
    pulled.reply(Reply::json(&5));
    assert_eq!(asking.await.expect("no panic").expect("a reply"), 5);
    puller.shutdown().await;
    // Types of one topic.
    let raw: millstream_core::Topic<bytes::Bytes> = millstream_core::Topic::raw("events");
    let router = Router::new().on("double", double);
    let routed =
        bench.consumer(raw.clone(), "g").retry(Never).start_router(router).await.expect("a consumer");
    let events = bench.producer(raw).await;
    let doubles = events.typed::<u64>("double");
    assert_eq!(
        doubles.send(&7).reply::<u64>().await.map_err(|error| error.to_string().len() > 10),
        Err(true)
    );
    assert_eq!(doubles.send(&8).reply::<u64>().await.expect("a reply"), 16);
    routed.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_cannot_be_read_says_so_and_stays() {
    let bench = bench();
    let consumer = bench.consumer(NUMBERS, "g").start(async |_: Delivery<u64>| Reply::bytes("{}"));
    let consumer = consumer.await.expect("a consumer");
    let producer = bench.producer(NUMBERS).await;
    let Err(RequestError::Undecodable { id, .. }) = ask(&producer, 1).await else { panic!("it was read") };
    let found = ResultFuture::new(&bench.backend, &id).await.expect("no error");
    assert_eq!(found, Some(MessageResult::Replied("{}".into())));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lost_answers_and_an_outage_lose_no_reply() {
    let bench = bench();
    let (cable, linked) = link(&bench.backend);
    let consumer = bench.consumer(NUMBERS, "g").start(|number: Delivery<u64>| async move {
        sleep(SECOND * 5).await;
        double(number).await
    });
    let consumer = consumer.await.expect("a consumer");
    let producer = ProducerBuilder::new(linked, NUMBERS, Arc::new(Ignore)).await.expect("a producer");
    // The server is away while the message is handled, and longer.
    let requested = producer.send(&10).reply::<u64>().begin().await.expect("stored");
    cable.away.store(true, Ordering::Relaxed);
    let waiting = tokio::spawn(async move { requested.within(SECOND * 60).await });
    sleep(SECOND * 20).await;
    assert!(!waiting.is_finished());
    cable.away.store(false, Ordering::Relaxed);
    assert_eq!(waiting.await.expect("no panic").expect("a reply"), 20);
    // Nothing is stored: nobody waits.
    bench.log.append_failures.lock().expect("lock").push_back(ErrorKind::Denied);
    let unsent = ask(&producer, 12).await;
    assert!(matches!(unsent, Err(RequestError::NotSent(_))), "{unsent:?}");
    // The answer to the send is lost: the message is handled all the same.
    *bench.log.lose_append_replies.lock().expect("lock") = 1;
    let unconfirmed = bench.producer(NUMBERS).await;
    assert_eq!(ask(&unconfirmed, 14).await.expect("a reply"), 28);
    // The answer to the settlement is lost, and it is sent again.
    *bench.log.lose_settle_replies.lock().expect("lock") = 1;
    assert_eq!(ask(&producer, 16).await.expect("a reply"), 32);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_wait_is_kept_though_the_server_does_not_answer() {
    let bench = bench();
    let (cable, linked) = link(&bench.backend);
    let producer = ProducerBuilder::new(linked, NUMBERS, Arc::new(Ignore)).await.expect("a producer");
    cable.hang("result");
    let asked = Instant::now();
    timed_out(producer.send(&1).reply::<u64>().within(SECOND * 3).await);
    assert!((SECOND * 3..SECOND * 4).contains(&asked.elapsed()), "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_backend_without_results_is_not_asked() {
    let bench = bench();
    let without = bench.backend.clone().without(Capability::Results);
    let producer = ProducerBuilder::new(without, NUMBERS, Arc::new(Ignore)).await.expect("a producer");
    match ask(&producer, 2).await {
        Err(RequestError::NotSent(error)) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        other => panic!("it was sent: {other:?}"),
    }
    let lengths = bench.backend.log().lengths(&[partition()]).await.expect("lengths");
    assert_eq!(lengths, [0], "nothing is stored");
    // A consumer over it handles requests of others, and stores no result.
    let without = bench.backend.clone().without(Capability::Results);
    let consumer = millstream_runtime::ConsumerBuilder::new(without, NUMBERS, "g", Arc::new(Ignore));
    let consumer = consumer.start(double).await.expect("a consumer");
    timed_out(ask(&bench.producer(NUMBERS).await, 2).await);
    assert_eq!(consumer.shutdown().await.acked, 1);
}

#[tokio::test(start_paused = true)]
async fn a_header_of_somebody_else_is_no_request() {
    let bench = bench();
    let consumer = bench.consumer(NUMBERS, "g").start(double).await.expect("a consumer");
    let producer = bench.producer(NUMBERS).await;
    for foreign in ["", "x", "0000000000000000000000000000001f", "0000000000000000000000000000001f never"] {
        producer.send(&2).header(RESULT_HEADER, foreign).await.expect("stored");
    }
    // That of the request counts, whatever the sender has set.
    let reply = producer.send(&2).header(RESULT_HEADER, "x").reply::<u64>().await;
    assert_eq!(reply.expect("a reply"), 4);
    assert_eq!(consumer.shutdown().await.acked, 5);
}
