//! Cancelling from outside: what has not begun never begins, what runs is asked to stop, and no answer says more than is known.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::link::link;
use super::support::*;
use millstream_admin::{Admin, CancelState};
use millstream_core::cancels::{CancelMark, CancelRequest, WorkPlace};
use millstream_core::event::Ignore;
use millstream_core::policy::{Fixed, Never};
use millstream_core::results::Asker;
use millstream_core::{GroupName, LimitKey, MessageId, MessageResult, Outcome, Reply, TopicPartition};
use millstream_runtime::{
    Batch, CancelReason, Concurrency, ConsumerBuilder, Delivery, Limit, Producer, Requested, RetryOrder,
    Sharing,
};
use tokio::sync::Semaphore;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

async fn ask(producer: &Producer<u64>, number: u64) -> Requested<u64> {
    producer.send(&number).reply::<u64>().begin().await.expect("stored")
}

fn message(requested: &Requested<u64>) -> (TopicPartition, MessageId) {
    match (&requested.id.place, requested.id.asker.as_deref()) {
        (millstream_core::Place::Partition(tp), Some(Asker::Message(id))) => (tp.clone(), *id),
        other => panic!("{other:?}"),
    }
}

/// Cancels, and returns the only state.
async fn cancel(bench: &Bench, requested: &Requested<u64>) -> CancelState {
    let mut ends = Admin::new(bench.backend.clone()).cancel(&requested.id).await.expect("cancelled");
    assert_eq!(ends.len(), 1, "{ends:?}");
    ends.remove(0).state
}

async fn result_of(bench: &Bench, requested: &Requested<u64>) -> MessageResult {
    let result = bench.backend.log().result(&requested.id, HOUR).await.expect("no error");
    result.expect("a result")
}

fn was_cancelled(result: &MessageResult, with: u32) {
    let expected = MessageResult::cancelled(with);
    assert_eq!(*result, expected);
}

/// A handler that takes a permit for each message, and what it has begun.
#[derive(Clone)]
struct Gate {
    begun: Arc<Mutex<Vec<u64>>>,
    open: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self { begun: Arc::default(), open: Arc::new(Semaphore::new(0)) }
    }

    async fn pass(&self, number: u64) {
        self.begun.lock().expect("lock").push(number);
        self.open.acquire().await.expect("open").forget();
    }

    fn begun(&self) -> Vec<u64> {
        self.begun.lock().expect("lock").clone()
    }

    async fn has_begun(&self, number: u64) {
        eventually(|| self.begun().contains(&number), || format!("{number} in {:?}", self.begun())).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_not_begun_never_begins_in_every_mode() {
    type Make = fn(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>;
    let modes: [(&str, Make); 5] = [
        ("serial", |it| it.concurrency(Concurrency::Serial)),
        ("serial in the order of keys", |it| {
            it.concurrency(Concurrency::Serial).retry_order(RetryOrder::BlockKey)
        }),
        ("unordered", |it| it.concurrency(Concurrency::Unordered(1))),
        ("shared", |it| it.concurrency(Concurrency::Unordered(1)).sharing(Sharing::Shared)),
        ("limited", |it| {
            let limit = Limit::new("one", |_| LimitKey::new(["all"]).ok()).at_most(1);
            it.concurrency(Concurrency::Unordered(8)).limit(limit)
        }),
    ];
    for (mode, make) in modes {
        let (bench, gate) = (bench(), Gate::new());
        let producer = bench.producer(NUMBERS).await;
        let held = gate.clone();
        let handler = move |number: Delivery<u64>| {
            let gate = held.clone();
            async move {
                gate.pass(number.payload).await;
                Reply::json(&number.payload)
            }
        };
        let consumer = make(bench.consumer(NUMBERS, "g")).start(handler).await.expect("a consumer");
        let first = ask(&producer, 1).await;
        gate.has_begun(1).await;
        let mut others = Vec::new();
        for number in 2..=4 {
            others.push(ask(&producer, number).await);
        }
        // In shared mode nobody says of what he has not read that others will not begin it.
        sleep(SECOND).await;
        let state = cancel(&bench, &others[1]).await;
        assert_eq!(state, CancelState::Cancelled, "{mode}");
        assert_eq!(cancel(&bench, &others[1]).await, state, "{mode}: again");
        gate.open.add_permits(10);
        was_cancelled(&result_of(&bench, &others[1]).await, 0);
        for (number, requested) in [(1, &first), (2, &others[0]), (4, &others[2])] {
            let result = result_of(&bench, requested).await;
            assert_eq!(result.decode::<u64>().expect("a reply"), number, "{mode}");
            assert_eq!(cancel(&bench, requested).await, CancelState::Done, "{mode}");
        }
        assert_eq!(gate.begun(), [1, 2, 4], "{mode}");
        let report = consumer.shutdown().await;
        assert_eq!((report.acked, report.cancelled, report.handed_back), (3, 1, 0), "{mode}: {report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_consumer_it_is_cancelled_at_once_and_for_all_time() {
    let (bench, gate) = (bench(), Gate::new());
    let producer = bench.producer(NUMBERS).await;
    gate.open.add_permits(10);
    let start = async || {
        let held = gate.clone();
        let handler = move |number: Delivery<u64>| {
            let gate = held.clone();
            async move {
                gate.pass(number.payload).await;
                Reply::json(&number.payload)
            }
        };
        bench.consumer(NUMBERS, "g").start(handler).await.expect("a consumer")
    };
    start().await.shutdown().await;
    let (one, two) = (ask(&producer, 1).await, ask(&producer, 2).await);
    assert_eq!(cancel(&bench, &one).await, CancelState::Cancelled);
    assert_eq!(cancel(&bench, &one).await, CancelState::Cancelled, "again");
    sleep(HOUR * 24 * 30).await;
    let consumer = start().await;
    was_cancelled(&result_of(&bench, &one).await, 0);
    assert_eq!(result_of(&bench, &two).await.decode::<u64>().expect("a reply"), 2);
    assert_eq!(gate.begun(), [2]);
    assert_eq!(cancel(&bench, &one).await, CancelState::Cancelled, "later");
    consumer.shutdown().await;
    // Another group has its own answer; a topic without groups has none.
    let admin = Admin::new(bench.backend.clone());
    let (tp, id) = message(&one);
    let nobody = admin.cancel_message(&tp, id).in_group(GroupName::new("nobody").expect("a name")).await;
    assert_eq!(nobody.expect_err("no group").kind(), millstream_core::ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_asked_and_the_answer_comes_when_it_has_ended() {
    for batches in [false, true] {
        let bench = bench();
        let producer = bench.producer(NUMBERS).await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let tell = seen.clone();
        let work = move |number: Delivery<u64>| {
            let tell = tell.clone();
            async move {
                number.cancelled().await;
                tell.lock().expect("lock").push((number.payload, number.cancel_reason()));
                sleep(SECOND).await;
                match number.payload {
                    1 => Outcome::retry("it stops"),
                    2 => Outcome::snooze(HOUR),
                    3 => Outcome::dead_letter("it stops"),
                    4 => panic!("it stops"),
                    _ => Outcome::Reply(Reply::json(&number.payload)),
                }
            }
        };
        let consumer = bench.consumer(NUMBERS, "g").retry(Fixed::new(SECOND)).replies(true);
        let consumer = consumer.concurrency(Concurrency::Unordered(8));
        let consumer = match batches {
            false => consumer.start(work).await.expect("a consumer"),
            true => {
                let each = move |batch: Batch<u64>| {
                    let work = work.clone();
                    async move { work(batch.into_iter().next().expect("one")).await }
                };
                consumer.start_batch((1, Duration::ZERO), each).await.expect("a consumer")
            }
        };
        let mut requests = Vec::new();
        for number in 1..=5 {
            requests.push(ask(&producer, number).await);
        }
        sleep(SECOND).await;
        assert_eq!(*seen.lock().expect("lock"), [], "nobody has cancelled");
        for (at, requested) in requests.iter().enumerate() {
            let state = cancel(&bench, requested).await;
            let expected = if at == 4 { CancelState::Done } else { CancelState::Stopped };
            assert_eq!(state, expected, "{}", at + 1);
            let told = seen.lock().expect("lock").clone();
            assert_eq!(told.last(), Some(&(at as u64 + 1, Some(CancelReason::Cancelled))));
            assert_eq!(told.len(), at + 1, "others are not asked");
            match at {
                4 => assert_eq!(result_of(&bench, requested).await.decode::<u64>().expect("a reply"), 5),
                _ => was_cancelled(&result_of(&bench, requested).await, 1),
            }
        }
        // Nothing of them comes back, and none is a dead letter.
        sleep(HOUR * 2).await;
        assert_eq!(seen.lock().expect("lock").len(), 5);
        let report = consumer.shutdown().await;
        let counts = (report.acked, report.cancelled, report.retried, report.snoozed, report.dead);
        assert_eq!(counts, (1, 4, 0, 0, 0), "batches: {batches}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_goes_on_is_not_said_to_have_stopped() {
    let (bench, gate) = (bench(), Gate::new());
    let producer = bench.producer(NUMBERS).await;
    let held = gate.clone();
    let handler = move |number: Delivery<u64>| {
        let gate = held.clone();
        async move {
            gate.pass(number.payload).await;
            Err::<(), _>("failed, an hour later")
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").retry(Fixed::new(SECOND)).replies(true);
    let consumer = consumer.start(handler).await.expect("a consumer");
    let requested = ask(&producer, 1).await;
    gate.has_begun(1).await;
    for within in [Duration::ZERO, SECOND, SECOND * 60] {
        let admin = Admin::new(bench.backend.clone());
        let ends = admin.cancel(&requested.id).within(within).await.expect("asked");
        assert_eq!(ends[0].state, CancelState::Asked, "{within:?}");
    }
    sleep(HOUR).await;
    gate.open.add_permits(1);
    was_cancelled(&result_of(&bench, &requested).await, 1);
    assert_eq!(cancel(&bench, &requested).await, CancelState::Stopped, "asked once more");
    assert_eq!(gate.begun(), [1], "it is not retried");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retries_are_cancelled_where_they_wait() {
    for order in [RetryOrder::Skip, RetryOrder::BlockKey, RetryOrder::BlockPartition] {
        let (bench, begun) = (bench(), Arc::new(Mutex::new(Vec::new())));
        let producer = bench.producer(NUMBERS).await;
        let tell = begun.clone();
        let handler = move |number: Delivery<u64>| {
            tell.lock().expect("lock").push(number.payload);
            async move { if number.payload == 1 { Err("later") } else { Ok(Reply::json(&number.payload)) } }
        };
        let consumer = bench.consumer(NUMBERS, "g").retry(Fixed::new(HOUR)).retry_order(order);
        let consumer = consumer.start(handler).await.expect("a consumer");
        let keyed = async |number: u64| {
            let record = producer.send(&number).key("k").reply::<u64>();
            record.begin().await.expect("stored")
        };
        let (one, two) = (keyed(1).await, keyed(2).await);
        eventually(|| consumer.report().retried == 1, || "a retry".to_owned()).await;
        sleep(SECOND).await;
        assert_eq!(cancel(&bench, &one).await, CancelState::Cancelled, "{order:?}");
        was_cancelled(&result_of(&bench, &one).await, 1);
        // What waited behind it goes on.
        let result = tokio::time::timeout(SECOND, result_of(&bench, &two)).await.expect("in time");
        assert_eq!(result.decode::<u64>().expect("a reply"), 2, "{order:?}");
        sleep(HOUR * 2).await;
        assert_eq!(*begun.lock().expect("lock"), [1, 2], "{order:?}");
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_owner_had_may_run_and_is_not_begun_again() {
    let (bench, gate) = (bench(), Gate::new());
    let (cable, linked) = link(&bench.backend);
    let producer = bench.producer(NUMBERS).await;
    let start = async |backend| {
        let held = gate.clone();
        let handler = move |number: Delivery<u64>| {
            let gate = held.clone();
            async move {
                gate.pass(number.payload).await;
                Reply::json(&number.payload)
            }
        };
        let consumer = ConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(Ignore)).retry(Never);
        consumer.start(handler).await.expect("a consumer")
    };
    let former = start(linked).await;
    let requested = ask(&producer, 1).await;
    gate.has_begun(1).await;
    cable.away.store(true, Ordering::Relaxed);
    let cancelling = tokio::spawn({
        let (admin, id) = (Admin::new(bench.backend.clone()), requested.id.clone());
        async move { admin.cancel(&id).within(HOUR).await.expect("an answer").remove(0).state }
    });
    sleep(SECOND).await;
    assert!(!cancelling.is_finished(), "nobody can say that it does not run");
    let next = start(bench.backend.clone()).await;
    assert_eq!(cancelling.await.expect("no panic"), CancelState::Withdrawn);
    was_cancelled(&result_of(&bench, &requested).await, 0);
    gate.open.add_permits(10);
    cable.away.store(false, Ordering::Relaxed);
    sleep(SECOND * 60).await;
    assert_eq!(gate.begun(), [1], "by the former owner");
    former.shutdown().await;
    next.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_is_gone_drops_nothing() {
    let (bench, gate) = (bench(), Gate::new());
    let (cable, linked) = link(&bench.backend);
    let producer = bench.producer(NUMBERS).await;
    let held = gate.clone();
    let handler = move |number: Delivery<u64>| {
        let gate = held.clone();
        async move {
            gate.pass(number.payload).await;
            Reply::json(&number.payload)
        }
    };
    let consumer = ConsumerBuilder::new(linked, NUMBERS, "g", Arc::new(Ignore)).start(handler).await;
    let consumer = consumer.expect("a consumer");
    let _first = ask(&producer, 1).await;
    gate.has_begun(1).await;
    let requested = ask(&producer, 2).await;
    let (tp, id) = message(&requested);
    let (role, place) = (
        bench.backend.cancels().expect("the role"),
        WorkPlace::Group(tp, GroupName::new("g").expect("a name")),
    );
    sleep(SECOND).await;
    // The owner reads the mark, and its answer comes when the mark is gone, as behind a fail-over.
    cable.answers_of_cancels_wait.store(true, Ordering::Relaxed);
    assert_eq!(
        role.cancel(&place, &id.to_string(), &CancelRequest::default()).await.expect("asked"),
        Some(CancelMark::Asked)
    );
    sleep(SECOND).await;
    role.forget(&place, &id.to_string()).await.expect("forgotten");
    cable.answers_of_cancels_wait.store(false, Ordering::Relaxed);
    gate.open.add_permits(10);
    assert_eq!(result_of(&bench, &requested).await.decode::<u64>().expect("a reply"), 2);
    assert_eq!(gate.begun(), [1, 2]);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn marks_that_cannot_be_read_keep_nothing_from_being_handled() {
    for shared in [false, true] {
        let bench = bench();
        let (cable, linked) = link(&bench.backend);
        let producer = bench.producer(NUMBERS).await;
        // Somebody else's data at the key, or a right that is missing.
        cable.refuse(if shared { "share" } else { "marks" });
        let consumer = ConsumerBuilder::new(linked, NUMBERS, "g", Arc::new(Ignore));
        let consumer = match shared {
            true => consumer.concurrency(Concurrency::Unordered(4)).sharing(Sharing::Shared),
            false => consumer,
        };
        let handler = async |number: Delivery<u64>| Reply::json(&number.payload);
        let consumer = consumer.start(handler).await.expect("a consumer");
        let reply = producer.send(&7).reply::<u64>().within(SECOND * 10).await;
        assert_eq!(reply.expect("a reply"), 7, "shared: {shared}");
        consumer.shutdown().await;
    }
}
