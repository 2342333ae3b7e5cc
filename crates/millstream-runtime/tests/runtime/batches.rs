//! Batches of messages: one message at the end, whatever dies, comes twice, or is cancelled.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::link::link;
use super::support::*;
use millstream_admin::Admin;
use millstream_core::batches::{BatchEvent, BatchEventKind, BatchId, MemberState};
use millstream_core::event::Ignore;
use millstream_core::policy::Fixed;
use millstream_core::{ErrorKind, Outcome, Topic};
use millstream_delay::DelayQueue;
use millstream_runtime::{BatchBuilder, Concurrency, Consumer, Delivery, OpenBatch, Sharing};
use tokio::sync::Semaphore;

const ENDS: Topic<u64> = Topic::new("ends").partitions(2);
const HOUR: Duration = Duration::from_secs(3_600);

type Events = Arc<Mutex<Vec<BatchEvent>>>;

/// A consumer of the messages that batches send.
async fn listener(bench: &Bench) -> (Consumer, Events) {
    let events = Events::default();
    let seen = events.clone();
    let handler = move |end: Delivery<u64>| {
        let event = end.batch_event().expect("the event of a batch");
        assert!(end.payload == 7 || event.kind == BatchEventKind::Success, "{event:?}");
        seen.lock().expect("lock").push(event);
        async {}
    };
    (bench.consumer(ENDS, "ends").start(handler).await.expect("a consumer"), events)
}

fn builder(bench: &Bench) -> BatchBuilder<u64> {
    BatchBuilder::new(bench.backend.clone(), ENDS).complete(&7).success(&8)
}

async fn batch(bench: &Bench) -> OpenBatch {
    builder(bench).create().await.expect("created")
}

fn kinds(events: &Events, of: &BatchId) -> Vec<BatchEventKind> {
    events.lock().expect("lock").iter().filter(|it| it.batch == *of).map(|it| it.kind).collect()
}

async fn has(events: &Events, of: &BatchId, expected: &[BatchEventKind]) {
    eventually(|| kinds(events, of) == expected, || format!("{:?}", kinds(events, of))).await;
}

use BatchEventKind::{Complete, Success};

#[tokio::test(start_paused = true)]
async fn one_message_comes_at_the_end_in_every_mode() {
    for (mode, sharing) in [("owned", Sharing::Exclusive), ("shared", Sharing::Shared)] {
        let bench = bench();
        let (listens, events) = listener(&bench).await;
        let attempts = Arc::new(AtomicUsize::new(0));
        let tried = attempts.clone();
        let handler = move |number: Delivery<u64>| {
            tried.fetch_add(1, Ordering::Relaxed);
            let again = number.payload == 3 && number.attempt() == 1;
            async move { if again { Outcome::Retry("once more".into()) } else { Outcome::Ack } }
        };
        let consumer = bench.consumer(NUMBERS, "g").sharing(sharing).concurrency(Concurrency::Unordered(4));
        let consumer = consumer.upkeep(bench_promoter(&bench)).retry(Fixed::new(MS(50))).start(handler);
        let consumer = consumer.await.expect("a consumer");
        let (producer, batch) = (bench.producer(NUMBERS).await, batch(&bench).await);
        for number in 0..40 {
            batch.add(producer.send(&number)).await.expect("added");
        }
        producer.send(&99).await.expect("no member");
        until_attempts(&attempts, 42).await;
        assert_eq!(kinds(&events, batch.id()), [], "{mode}: before the seal");
        let state = batch.seal().await.expect("sealed");
        assert_eq!((state.members, state.left_out), (40, 0), "{mode}");
        has(&events, batch.id(), &[Complete, Success]).await;
        assert_eq!(batch.add(producer.send(&1)).await.expect_err("sealed").kind(), ErrorKind::Closed);
        let state = batch.state().await.expect("a state");
        assert_eq!((state.done, state.dead, state.missing(), state.succeeded), (40, 0, 0, true), "{mode}");
        consumer.shutdown().await;
        listens.shutdown().await;
    }
}

async fn until_attempts(attempts: &AtomicUsize, count: usize) {
    let now = || attempts.load(Ordering::Relaxed);
    eventually(|| now() >= count, || format!("{} of {count}", now())).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_is_replayed_brings_success() {
    let bench = bench();
    let (listens, events) = listener(&bench).await;
    let heals = Arc::new(AtomicBool::new(false));
    let healed = heals.clone();
    let handler = move |number: Delivery<u64>| {
        let dies = number.payload.is_multiple_of(10) && !healed.load(Ordering::Relaxed);
        async move { if dies { Outcome::DeadLetter("no".into()) } else { Outcome::Ack } }
    };
    let consumer = bench.consumer(NUMBERS, "g").start(handler).await.expect("a consumer");
    let producer = bench.producer(NUMBERS).await;
    let batch = builder(&bench).death(&7).progress(50, &7).create().await.expect("created");
    for number in 0..20 {
        batch.add(producer.send(&number).key("k")).await.expect("added");
    }
    batch.seal().await.expect("sealed");
    eventually(|| kinds(&events, batch.id()).contains(&Complete), || format!("{events:?}")).await;
    let before = kinds(&events, batch.id());
    assert_eq!(before.iter().filter(|it| **it == BatchEventKind::Death).count(), 1, "{before:?}");
    assert!(before.contains(&BatchEventKind::Progress(100)) && !before.contains(&Success), "{before:?}");
    let complete = events.lock().expect("lock").iter().find(|it| it.kind == Complete).cloned();
    assert_eq!(complete.map(|it| (it.members, it.done, it.dead)), Some((20, 18, 2)));
    let admin = Admin::new(bench.backend.clone());
    let dead_ones = admin.batch_members(batch.id(), MemberState::Dead, 0, 10).await.expect("members");
    assert_eq!(dead_ones.ranges, [(0, 0), (10, 10)]);
    heals.store(true, Ordering::Relaxed);
    assert_eq!(dead(&bench, "g").await.replay_all().await.expect("replayed"), 2);
    eventually(|| kinds(&events, batch.id()).last() == Some(&Success), || format!("{events:?}")).await;
    assert_eq!(kinds(&events, batch.id()).len(), before.len() + 1, "{events:?}");
    consumer.shutdown().await;
    listens.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_is_what_was_confirmed() {
    let bench = bench();
    let (listens, events) = listener(&bench).await;
    let (link, linked) = link(&bench.backend);
    let batch = batch(&bench).await;
    let producer = bench.producer(NUMBERS).await;
    // Another process, which dies before it has flushed.
    let elsewhere = OpenBatch::open(&linked, batch.id()).expect("opened");
    elsewhere.add(producer.send(&1)).await.expect("added");
    drop((elsewhere, link));
    // One that flushes, one whose send is dropped halfway, and one that is there already.
    let other = OpenBatch::open(&bench.backend, batch.id()).expect("opened");
    other.add(producer.send(&2).dedup("two")).await.expect("added");
    other.flush().await.expect("confirmed");
    let again = other.add(producer.send(&2).dedup("two")).await;
    assert_eq!(again.expect_err("it is there").kind(), ErrorKind::Exists);
    other.flush().await.expect("confirmed");
    bench.log.append_takes.lock().expect("lock").clone_from(&HOUR);
    let late = tokio::time::timeout(MS(10), batch.add(producer.send(&3))).await;
    assert!(late.is_err(), "its send is under way");
    *bench.log.append_takes.lock().expect("lock") = Duration::ZERO;
    let state = batch.seal().await.expect("sealed");
    assert_eq!(state.members, 1, "{state:?}");
    assert!(state.left_out >= 2, "{state:?}");
    let consumer = bench.consumer(NUMBERS, "g").start(async |_: Delivery<u64>| {}).await.expect("a consumer");
    has(&events, batch.id(), &[Complete, Success]).await;
    // What is stored all the same is counted once it has ended.
    let known = batch.clone();
    let members = async || known.state().await.expect("a state");
    for _ in 0..1_000 {
        if members().await.done >= 2 {
            break;
        }
        tokio::time::sleep(MS(10)).await;
    }
    let state = members().await;
    assert!(state.members >= 2 && state.members == state.done, "{state:?}");
    consumer.shutdown().await;
    listens.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn batches_nest_and_tasks_and_delayed_messages_are_members() {
    let bench = bench();
    let (listens, events) = listener(&bench).await;
    let producer = bench.producer(NUMBERS).await;
    let queue = DelayQueue::<u64>::new("later").over(bench.backend.clone()).await.expect("a queue");
    let outer = batch(&bench).await;
    let inner = outer.add(builder(&bench)).await.expect("a batch");
    inner.add(producer.send(&1)).await.expect("added");
    inner.add(queue.schedule(&2).delay(HOUR)).await.expect("added");
    outer.add(producer.send(&3).delay(HOUR * 2)).await.expect("added");
    let consumer =
        bench.consumer(NUMBERS, "g").upkeep(bench_promoter(&bench)).start(async |_: Delivery<u64>| {});
    let consumer = consumer.await.expect("a consumer");
    let worker = queue.worker().start(async |_: millstream_delay::Task<u64>| {}).await.expect("a worker");
    let sealed = outer.seal().await.expect("sealed");
    assert_eq!((sealed.members, sealed.missing()), (2, 2));
    inner.seal().await.expect("sealed");
    tokio::time::sleep(MS(500)).await;
    assert_eq!((kinds(&events, inner.id()), kinds(&events, outer.id())), (vec![], vec![]));
    tokio::time::sleep(HOUR).await;
    has(&events, inner.id(), &[Complete, Success]).await;
    assert_eq!(kinds(&events, outer.id()), []);
    tokio::time::sleep(HOUR).await;
    has(&events, outer.id(), &[Complete, Success]).await;
    // A batch that has ended at its seal counts at once.
    let around = batch(&bench).await;
    let empty = around.add(builder(&bench)).await.expect("a batch");
    around.seal().await.expect("sealed");
    empty.seal().await.expect("sealed");
    has(&events, around.id(), &[Complete, Success]).await;
    worker.shutdown().await;
    consumer.shutdown().await;
    listens.shutdown().await;
}

fn bench_promoter(bench: &Bench) -> millstream_core::Result<millstream_delay::Promoter> {
    millstream_delay::Promoter::new(&bench.backend, millstream_delay::PromoterConfig::default())
}

#[tokio::test(start_paused = true)]
async fn notes_of_a_process_that_died_are_taken_away_by_the_next_owner() {
    let bench = bench();
    let (listens, events) = listener(&bench).await;
    let (link, linked) = link(&bench.backend);
    let (producer, batch) = (bench.producer(NUMBERS).await, batch(&bench).await);
    let seen = Seen::default();
    let noting = seen.clone();
    let handler = move |number: Delivery<u64>| {
        note(&noting, &number);
        async {}
    };
    link.refuse("end_members");
    let told = Arc::new(Ignore);
    let first = millstream_runtime::ConsumerBuilder::new(linked, NUMBERS, "g", told).start(handler.clone());
    let first = first.await.expect("a consumer");
    for number in 0..5 {
        batch.add(producer.send(&number)).await.expect("added");
    }
    batch.seal().await.expect("sealed");
    until(&seen, 5).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(kinds(&events, batch.id()), [], "its notes do not get through");
    link.cut();
    drop(first);
    let second = bench.consumer(NUMBERS, "g").start(handler).await.expect("a consumer");
    has(&events, batch.id(), &[Complete, Success]).await;
    assert_eq!(count(&seen), 5, "nothing was handled again");
    second.shutdown().await;
    listens.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn of_several_groups_the_one_that_is_named_counts() {
    let bench = bench();
    let (listens, events) = listener(&bench).await;
    let (producer, gate) = (bench.producer(NUMBERS).await, Arc::new(Semaphore::new(0)));
    let named = batch(&bench).await.counting("slow").expect("a name");
    let any = batch(&bench).await;
    let quick =
        bench.consumer(NUMBERS, "quick").start(async |_: Delivery<u64>| {}).await.expect("a consumer");
    let opened = gate.clone();
    let slow = bench.consumer(NUMBERS, "slow").start(move |_: Delivery<u64>| {
        let opened = opened.clone();
        async move { opened.acquire().await.expect("open").forget() }
    });
    let slow = slow.await.expect("a consumer");
    named.add(producer.send(&1)).await.expect("added");
    any.add(producer.send(&2)).await.expect("added");
    named.seal().await.expect("sealed");
    any.seal().await.expect("sealed");
    has(&events, any.id(), &[Complete, Success]).await;
    assert_eq!(kinds(&events, named.id()), []);
    gate.add_permits(2);
    has(&events, named.id(), &[Complete, Success]).await;
    tokio::time::sleep(MS(500)).await;
    assert_eq!(kinds(&events, any.id()).len(), 2, "each once");
    quick.shutdown().await;
    slow.shutdown().await;
    listens.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_cancelled_ends_and_nothing_of_it_begins() {
    for (mode, sharing) in [("owned", Sharing::Exclusive), ("shared", Sharing::Shared)] {
        let bench = bench();
        let (listens, events) = listener(&bench).await;
        let (producer, batch) = (bench.producer(NUMBERS).await, batch(&bench).await);
        let queue = DelayQueue::<u64>::new("later").over(bench.backend.clone()).await.expect("a queue");
        let begun = Arc::new(Mutex::new(Vec::new()));
        let begins = begun.clone();
        let consumer = bench
            .consumer(NUMBERS, "g")
            .sharing(sharing)
            .concurrency(Concurrency::Unordered(1))
            .upkeep(bench_promoter(&bench))
            .retry(Fixed::new(HOUR))
            .start(move |number: Delivery<u64>| {
                begins.lock().expect("lock").push(number.payload);
                async move {
                    match number.payload {
                        0 => Outcome::Retry("in an hour".into()),
                        // It ends when it is asked to, and not by itself.
                        1 => {
                            number.cancelled().await;
                            Outcome::Retry("stopped".into())
                        }
                        _ => Outcome::Ack,
                    }
                }
            });
        let consumer = consumer.await.expect("a consumer");
        for number in 0..5 {
            batch.add(producer.send(&number)).await.expect("added");
        }
        producer.send(&99).await.expect("no member");
        batch.add(producer.send(&5).delay(HOUR)).await.expect("added");
        batch.add(queue.schedule(&6).delay(HOUR)).await.expect("added");
        let inner = batch.add(builder(&bench)).await.expect("a batch");
        inner.add(producer.send(&7).delay(HOUR)).await.expect("added");
        inner.seal().await.expect("sealed");
        batch.seal().await.expect("sealed");
        let has_begun = || begun.lock().expect("lock").contains(&1);
        eventually(has_begun, || format!("{mode}: {begun:?}")).await;
        let cancelled = Admin::new(bench.backend.clone()).cancel_batch(batch.id()).await.expect("cancelled");
        assert_eq!((cancelled.removed, cancelled.gone.len()), (3, 0), "{mode}: delayed messages and a task");
        has(&events, batch.id(), &[Complete]).await;
        let others = || begun.lock().expect("lock").contains(&99);
        eventually(others, || format!("{mode}: what is no member goes on: {begun:?}")).await;
        assert_eq!(*begun.lock().expect("lock"), [0, 1, 99], "{mode}");
        let state = batch.state().await.expect("a state");
        assert_eq!((state.members, state.dead, state.missing()), (8, 8, 0), "{mode}: {state:?}");
        assert_eq!(kinds(&events, inner.id()), [Complete], "{mode}");
        consumer.shutdown().await;
        listens.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_members_are_lost_is_closed() {
    let bench = bench();
    let (listens, events) = listener(&bench).await;
    let (producer, batch) = (bench.producer(NUMBERS).await, batch(&bench).await);
    for number in 0..3 {
        batch.add(producer.send(&number)).await.expect("added");
    }
    let admin = Admin::new(bench.backend.clone());
    let state = admin.close_batch(batch.id()).await.expect("closed");
    assert_eq!((state.members, state.dead), (0, 0), "nobody had confirmed them");
    assert_eq!(batch.seal().await.expect_err("without these").kind(), ErrorKind::Closed);
    // Whoever has closed it does not know whether that was all.
    has(&events, batch.id(), &[Complete]).await;
    let second = builder(&bench).create().await.expect("created");
    second.add(producer.send(&4)).await.expect("added");
    second.seal().await.expect("sealed");
    admin.close_batch(second.id()).await.expect("closed");
    has(&events, second.id(), &[Complete]).await;
    // A member that is handled all the same.
    let consumer = bench.consumer(NUMBERS, "g").start(async |_: Delivery<u64>| {}).await.expect("a consumer");
    has(&events, second.id(), &[Complete, Success]).await;
    let found = admin.batches(&second.id().place.topic).await.expect("batches");
    assert_eq!(found.len(), 2, "{found:?}");
    consumer.shutdown().await;
    listens.shutdown().await;
}
