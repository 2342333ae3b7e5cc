//! Control of a running consumer: pause and resume, seek, shutdown with a deadline.

pub(crate) mod health;
pub(crate) mod seek;

use std::time::Duration;

use crate::support::scenario::{Scenario, linked, stats};
use crate::support::*;
use millstream_core::policy::Fixed;
use millstream_core::{ErrorKind, MessageId, Outcome, Resource, Retention, Start, Topic, TopicPartition};
use millstream_runtime::{Concurrency, Consumer, ConsumerBuilder, Delivery, Record};
use tokio::time::{Instant, sleep, timeout};

const WIDE: Topic<u64> = Topic::new("numbers").partitions(3);

/// A bench whose topic keeps what was handled, and what was sent to it.
async fn kept() -> (Bench, Vec<MessageId>) {
    let bench = bench();
    bench.producer(NUMBERS.retention(Retention::Keep)).await;
    let ids = produce(&bench, 10).await;
    (bench, ids)
}

/// Each message takes so long.
async fn start(builder: ConsumerBuilder<u64>, course: &Scenario, takes: Duration) -> Consumer {
    let course = course.clone();
    let handler = move |delivery: Delivery<u64>| {
        let running = course.begin(&delivery);
        async move {
            sleep(takes).await;
            drop(running);
        }
    };
    builder.start(handler).await.expect("started")
}

fn tp(partition: u32) -> TopicPartition {
    TopicPartition::new("numbers".parse().expect("name"), partition)
}

/// Sends `each` numbers to each of three partitions: 0, 1, … to the first, 100, 101, … to the second.
async fn spread(bench: &Bench, each: u64) {
    let producer = bench.producer(WIDE).await;
    for partition in 0..3 {
        for n in 0..each {
            let value = u64::from(partition) * 100 + n;
            producer.send(&value).partition(partition).await.expect("sent");
        }
    }
}

fn values(course: &Scenario) -> Vec<u64> {
    course.calls().iter().map(|call| call.value).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pause_lets_handlers_end_and_a_resume_goes_on_at_once_in_order() {
    let bench = bench();
    produce(&bench, 10).await;
    let course = Scenario::default();
    let consumer = start(bench.consumer(NUMBERS, "g"), &course, Duration::from_secs(1)).await;
    course.until(3).await;
    consumer.pause();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(consumer.report().acked, 3, "what ran has ended, and is settled");
    produce(&bench, 10).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(course.count(), 3, "no further one has started");
    let now = stats(&bench).await;
    assert_eq!((now.pending, now.lag), (7, Some(10)), "nothing is read, and what was read is kept");
    assert_eq!(bench.told.lines("LeaseLost") + bench.told.lines("Revoked"), 0);
    let resumed = Instant::now();
    consumer.resume();
    course.until(4).await;
    assert!(resumed.elapsed() <= MS(1), "{:?}", resumed.elapsed());
    course.until(20).await;
    let twice: Vec<u64> = (0..10).chain(0..10).collect();
    assert_eq!(values(&course), twice);
    assert_eq!((bench.told.lines("Paused {"), bench.told.lines("Resumed {")), (1, 1));
    assert_eq!(consumer.shutdown().await.acked, 20);
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_a_partition_stops_that_one_alone_and_holds_over_a_move() {
    let bench = bench();
    spread(&bench, 4).await;
    let course = Scenario::default();
    let first = start(bench.consumer(WIDE, "g"), &course, MS(10)).await;
    first.pause_partition(&tp(1));
    course.until(8).await;
    sleep(Duration::from_secs(5)).await;
    assert!(values(&course).iter().all(|value| !(101..200).contains(value)), "{:?}", values(&course));
    let before = values(&course).len();

    // All partitions go to another instance, and come back.
    let other = Scenario::default();
    let second = start(bench.consumer(WIDE, "g").pin([0, 1, 2]), &other, MS(10)).await;
    other.until(12 - before).await;
    second.shutdown().await;
    spread(&bench, 4).await;
    course.until(before + 8).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(course.count(), before + 8, "still paused here");
    first.resume_partition(&tp(1));
    course.until(before + 12).await;
    first.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_for_a_time_ends_by_itself_and_those_of_partitions_do_not() {
    let bench = bench();
    spread(&bench, 4).await;
    let course = Scenario::default();
    let consumer = start(bench.consumer(WIDE, "g"), &course, MS(10)).await;
    consumer.pause_for(Duration::from_secs(30));
    consumer.pause_partition(&tp(2));
    let paused = Instant::now();
    course.until(1).await;
    assert_eq!(paused.elapsed().as_secs(), 30);
    course.until(8).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(course.count(), 8);
    consumer.pause();
    consumer.resume_partition(&tp(2));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(course.count(), 8, "all is paused");
    consumer.resume();
    course.until(12).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_partition_does_not_keep_others_from_the_handlers_they_share() {
    let bench = bench();
    spread(&bench, 6).await;
    let course = Scenario::default();
    let builder = bench.consumer(WIDE, "g").max_handlers(1);
    let consumer = start(builder, &course, MS(100)).await;
    course.until(2).await;
    // Two of them wait for their turn by now.
    consumer.pause_partition(&tp(0));
    consumer.pause_partition(&tp(1));
    let done = |partition| course.calls().iter().filter(|call| call.partition == partition).count();
    eventually(|| done(2) == 6, || format!("all of partition 2, of {:?}", values(&course))).await;
    assert!(done(0) < 6 && done(1) < 6);
    consumer.resume_partition(&tp(0));
    consumer.resume_partition(&tp(1));
    course.until(18).await;
    assert_eq!(course.at_once(|_| true), 1);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_paused_shuts_down_and_hands_back_what_it_holds() {
    let bench = bench();
    produce(&bench, 10).await;
    let course = Scenario::default();
    let consumer = start(bench.consumer(NUMBERS, "g"), &course, Duration::from_secs(1)).await;
    course.until(2).await;
    consumer.pause();
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (2, 8));
    let consumer = start(bench.consumer(NUMBERS, "g"), &course, MS(1)).await;
    course.until(10).await;
    assert_eq!(values(&course), (0..10).collect::<Vec<_>>());
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_for_what_is_pulled_also_if_it_was_offered_before() {
    let bench = bench();
    produce(&bench, 10).await;
    let puller =
        bench.consumer(NUMBERS, "g").concurrency(Concurrency::Unordered(3)).pull().await.expect("started");
    puller.next().await.expect("one").ack();
    puller.consumer().pause_partition(&partition());
    let waited = tokio::time::timeout(Duration::from_secs(60), puller.next()).await;
    assert!(waited.is_err(), "what is offered already is not given either");
    puller.consumer().resume_partition(&partition());
    for _ in 0..9 {
        puller.next().await.expect("the others").ack();
    }
    puller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_for_batches_that_are_being_filled() {
    let bench = bench();
    produce(&bench, 10).await;
    let course = Scenario::default();
    let batched = bench.consumer(NUMBERS, "batches").start_batch((4, Duration::from_secs(1)), {
        let course = course.clone();
        move |batch: millstream_runtime::Batch<u64>| {
            batch.iter().for_each(|delivery| drop(course.begin(delivery)));
            async {}
        }
    });
    let batched = batched.await.expect("started");
    course.until(8).await;
    batched.pause();
    let before = course.count();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(course.count(), before, "not even one that was being filled");
    batched.resume();
    course.until(10).await;
    batched.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_seek_waits_for_handlers_and_goes_on_at_once_under_a_new_lease() {
    let (bench, ids) = kept().await;
    let course = Scenario::default();
    let consumer = start(bench.consumer(NUMBERS, "g"), &course, Duration::from_secs(1)).await;
    course.until(8).await;
    let asked = Instant::now();
    consumer.seek(&partition(), Start::After(ids[4])).await.expect("sought");
    assert!(asked.elapsed() > MS(900), "the one that ran has ended: {:?}", asked.elapsed());
    course.until(13).await;
    consumer.seek(&partition(), Start::Latest).await.expect("sought");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(values(&course), [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 9]);
    let now = stats(&bench).await;
    assert_eq!((now.pending, now.lag), (0, Some(0)));
    assert_eq!((bench.told.lines("Assigned"), bench.told.lines("Revoked")), (3, 2));
    assert_eq!(bench.told.lines("LeaseLost"), 0, "it was given back");
    assert_eq!(bench.told.lines("TailLost"), 0, "moved on purpose");
    consumer.seek(&partition(), Start::Earliest).await.expect("sought");
    course.until(14).await;
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (14, 9));
}

#[tokio::test(start_paused = true)]
async fn a_seek_of_a_paused_consumer_moves_it_and_it_stays_paused() {
    let (bench, _) = kept().await;
    let course = Scenario::default();
    let consumer = start(bench.consumer(NUMBERS, "g"), &course, MS(10)).await;
    course.until(10).await;
    consumer.pause();
    consumer.seek(&partition(), Start::Earliest).await.expect("sought");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(course.count(), 10);
    consumer.resume();
    course.until(20).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_seek_finds_a_group_that_was_destroyed_meanwhile() {
    let (bench, _) = kept().await;
    let course = Scenario::default();
    let consumer = start(bench.consumer(NUMBERS, "g"), &course, MS(10)).await;
    course.until(10).await;
    consumer.pause();
    sleep(MS(50)).await;
    bench.memory.operator().destroy_group(&partition(), &"g".parse().expect("name"));
    consumer.seek(&partition(), Start::Earliest).await.expect("sought");
    consumer.resume();
    course.until(20).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_seek_elsewhere_is_an_error_that_says_so() {
    let bench = bench();
    produce(&bench, 2).await;
    let course = Scenario::default();
    let consumer = start(bench.consumer(NUMBERS, "g"), &course, Duration::from_secs(60)).await;
    course.until(1).await;
    let error = consumer.seek(&tp(7), Start::Earliest).await.expect_err("not owned");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("not owned by this instance"), "{error}");
    // The handler that it would have to wait for lasts longer than the consumer.
    let consumer = std::sync::Arc::new(consumer);
    let seeking = tokio::spawn({
        let consumer = std::sync::Arc::downgrade(&consumer);
        async move {
            let consumer = consumer.upgrade().expect("still there");
            consumer.seek(&partition(), Start::Earliest).await
        }
    });
    sleep(MS(10)).await;
    bench.memory.operator().expire_lease(&Resource::partition(partition(), "g".parse().expect("name")));
    let taker = start(bench.consumer(NUMBERS, "g").pin([0]), &Scenario::default(), MS(10)).await;
    let error = seeking.await.expect("no panic").expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    taker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_between_two_seeks_is_reported_and_its_end_withdrawn() {
    let (bench, _) = kept().await;
    let course = Scenario::default();
    let (link, builder) = linked(&bench, NUMBERS);
    let consumer = start(builder, &course, Duration::from_secs(1)).await;
    course.until(1).await;
    // The first one waits for the handler, and releases the lease. The others wait behind it, for the next lease.
    bench.log.seek_results.lock().expect("lock").extend([None, Some(ErrorKind::Fenced)]);
    let partition = partition();
    let seek = || consumer.seek(&partition, Start::Earliest);
    let (first, second, third) = tokio::join!(seek(), seek(), seek());
    first.expect("sought");
    for refused in [second, third] {
        assert_eq!(refused.expect_err("lost meanwhile").kind(), ErrorKind::Fenced);
    }
    bench.told.wait_for("LeaseLost").await;
    sleep(MS(100)).await;
    assert_eq!((bench.told.lines("LeaseLost"), link.calls().get("withdraw_end")), (1, Some(&1)));
    // The other side never took the lease: it ends by itself, and then the partition is ours again.
    course.until(11).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_has_the_time_that_it_is_given() {
    let bench = bench();
    produce(&bench, 2).await;
    let course = Scenario::default();
    for (within, acked) in [(Duration::from_secs(3), 0), (Duration::from_secs(100), 1)] {
        let consumer = start(bench.consumer(NUMBERS, "g"), &course, Duration::from_secs(40)).await;
        let before = course.count();
        course.until(before + 1).await;
        let asked = Instant::now();
        let report = consumer.shutdown_within(within).await;
        assert_eq!((report.acked, report.handed_back), (acked, 2 - acked));
        // Handlers have four fifths of it.
        let took = if acked == 1 { Duration::from_secs(40) } else { within * 4 / 5 };
        assert!(
            asked.elapsed() <= took + MS(100) && asked.elapsed() + MS(100) >= took,
            "{:?}",
            asked.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn several_topics_share_the_handlers_of_a_consumer() {
    const WORDS: Topic<String> = Topic::new("words").partitions(2);
    let bench = bench();
    spread(&bench, 10).await;
    let words = bench.producer(WORDS).await;
    let texts: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    words.send_all(texts.iter().map(Record::new)).await;
    let course = Scenario::default();
    let running = std::sync::Arc::new(tokio::sync::Semaphore::new(3));
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let builder =
        bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(4)).max_handlers(3).also(WORDS, {
            let (running, count) = (running.clone(), count.clone());
            move |word: Delivery<String>| {
                let (running, count) = (running.clone(), count.clone());
                async move {
                    let _turn = running.try_acquire().expect("no more than three at once");
                    count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    sleep(MS(50)).await;
                    if word.payload == "7" && word.attempt() == 1 {
                        Outcome::retry("once")
                    } else {
                        Outcome::Ack
                    }
                }
            }
        });
    let consumer = builder.start({
        let (course, running) = (course.clone(), running.clone());
        move |delivery: Delivery<u64>| {
            let (course, running) = (course.clone(), running.clone());
            async move {
                let _turn = running.try_acquire().expect("no more than three at once");
                let _running = course.begin(&delivery);
                sleep(MS(50)).await;
            }
        }
    });
    let consumer = consumer.await.expect("started");
    let begun = Instant::now();
    course.until(30).await;
    let words = || count.load(std::sync::atomic::Ordering::Relaxed);
    eventually(|| words() == 21, || format!("21 words, {} so far", words())).await;
    // 51 of 50 ms each, three at once, and a retry.
    assert!(begun.elapsed() < Duration::from_secs(3), "all of them work: {:?}", begun.elapsed());
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.retried, report.dead), (50, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn it_waits_until_nothing_is_left() {
    let bench = bench();
    produce(&bench, 20).await;
    let seen = Seen::default();
    let consumer =
        bench.consumer(NUMBERS, "g").retry(Fixed::new(Duration::from_secs(30)).attempts(2)).start({
            let seen = seen.clone();
            move |delivery: Delivery<u64>| {
                note(&seen, &delivery);
                async move {
                    sleep(Duration::from_millis(300)).await;
                    if delivery.payload == 7 { Outcome::retry("not yet") } else { Outcome::Ack }
                }
            }
        });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let report = consumer.report();
    assert_eq!((report.acked, report.retried, report.dead), (19, 1, 1));
    assert_eq!(seen.lock().expect("lock").len(), 21, "the retry is waited for");

    consumer.pause();
    produce(&bench, 1).await;
    let waited = timeout(Duration::from_secs(60), consumer.wait_idle()).await;
    assert!(waited.is_err(), "a message that is not handled is left");
    consumer.shutdown().await;
}
