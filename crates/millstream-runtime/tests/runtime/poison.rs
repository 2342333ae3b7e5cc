//! Messages that kill processes: found out, noted, and given up; and what is no reason to suspect anybody.

pub(crate) mod candidates;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::link::Link;
use crate::support::scenario::*;
use crate::support::*;
use millstream_core::log::Note;
use millstream_core::policy::{Discard, Fixed};
use millstream_core::{Event, Reason, Resource, Topic, TopicPartition};
use millstream_runtime::{Concurrency, Consumer, ConsumerBuilder, Delivery, RetryOrder};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// A process whose handler dies over the values in `deadly`: it is cut off, and never ends.
async fn process(
    bench: &Bench,
    course: &Scenario,
    deadly: &'static [u64],
    set: impl FnOnce(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>,
) -> (Arc<Link>, Consumer) {
    process_of(bench, NUMBERS, course, deadly, set).await
}

pub(crate) async fn process_of(
    bench: &Bench,
    topic: Topic<u64>,
    course: &Scenario,
    deadly: &'static [u64],
    set: impl FnOnce(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>,
) -> (Arc<Link>, Consumer) {
    let (link, builder) = linked(bench, topic);
    let handler = {
        let (course, link) = (course.clone(), link.clone());
        move |delivery: Delivery<u64>| {
            let (running, link) = (course.begin(&delivery), link.clone());
            async move {
                if deadly.contains(&delivery.payload) {
                    link.cut();
                    for_ever().await;
                }
                tokio::time::sleep(MS(10)).await;
                drop(running);
            }
        }
    };
    let consumer =
        set(builder.lease_ttl(TTL).shutdown_timeout(MS(50))).start(handler).await.expect("started");
    (link, consumer)
}

/// What is pending in a partition: values with their notes, as the next owner would read them.
pub(crate) async fn pending(bench: &Bench, number: u32) -> Vec<(u64, Option<Note>)> {
    let topic_partition = TopicPartition::new("numbers".parse().expect("name"), number);
    let resource = Resource::partition(topic_partition, "g".parse().expect("name"));
    let taken = bench.memory.operator().snapshot();
    bench.memory.operator().expire_lease(&resource);
    let assured = millstream_core::Continuity::assured();
    let acquired = bench.backend.leases().acquire(&resource, "me", "once", SECOND, &assured).await;
    let lease = match acquired.expect("asked") {
        millstream_core::leases::Acquired::Granted(lease) => lease,
        held @ millstream_core::leases::Acquired::Held(_) => panic!("{held:?}"),
    };
    let mut reader = bench.backend.log().reader(&lease).await.expect("a reader");
    let fetched = reader.fetch(1_000, MS(1)).await.expect("fetched");
    bench.memory.operator().restore(&taken);
    assert!(fetched.pending || fetched.entries.is_empty());
    let value = |fields: &millstream_core::wire::Fields| {
        let payload = fields.iter().find(|(name, _)| name == "payload").expect("a payload");
        std::str::from_utf8(&payload.1).expect("text").parse().expect("a number")
    };
    fetched.entries.into_iter().map(|entry| (value(&entry.fields), entry.note)).collect()
}

async fn notes(bench: &Bench) -> Vec<Option<Note>> {
    pending(bench, 0).await.into_iter().map(|(_, note)| note).collect()
}

/// What is noted as begun in the first partitions.
pub(crate) async fn noted_of(bench: &Bench, partitions: u32) -> BTreeSet<u64> {
    let mut noted = BTreeSet::new();
    for number in 0..partitions {
        let pending = pending(bench, number).await.into_iter();
        let begun = pending.filter(|(_, note)| note.as_ref().is_some_and(|note| note.suspicions > 0));
        noted.extend(begun.map(|(value, _)| value));
    }
    noted
}

/// How many poison candidates were noted as begun so far.
pub(crate) fn candidates(bench: &Bench) -> usize {
    *bench.log.candidates.lock().expect("lock")
}

#[tokio::test(start_paused = true)]
async fn a_message_that_kills_processes_is_given_up_at_the_fourth_end_and_the_rest_is_handled() {
    for concurrency in [Concurrency::Serial, Concurrency::PerKey(4), Concurrency::Unordered(4)] {
        let bench = bench();
        send(&bench, &(0..20).map(|n| (["a", "b", "c"][n as usize % 3], n)).collect::<Vec<_>>()).await;
        let course = Scenario::default();
        let mut processes = Vec::new();
        for _ in 0..6 {
            processes.push(process(&bench, &course, &[7], |it| it.concurrency(concurrency)).await);
            tokio::time::sleep(10 * SECOND).await;
        }
        let deaths = course.calls().iter().filter(|call| call.value == 7).count();
        assert_eq!(deaths, 4, "{:?}", course.order());
        let values: BTreeSet<_> = course.calls().iter().map(|call| call.value).collect();
        assert_eq!(values.len(), 20);
        let stats = stats(&bench).await;
        assert_eq!((stats.pending, stats.lag, stats.dead), (0, Some(0), 1));
        let letters = dead(&bench, "g").await.list(10).await.expect("listed");
        assert_eq!((&letters[0].reason, letters[0].attempts), (&Reason::Crashed, 1));
        assert_eq!(letters[0].error, "4 processes ended while handling it");
        assert_eq!(bench.told.lines("Crashed {"), 1);
        assert_eq!(bench.told.lines("crashes: 4"), 1);
        let report = processes.pop().expect("the last").1.shutdown().await;
        assert_eq!(report.dead + report.handed_back, 0, "the last one had nothing to do with it");
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_counts_ends_and_four_are_the_fewest() {
    for (limit, ends) in [(2, 4), (3, 4), (4, 5), (6, 7)] {
        let bench = bench();
        send(&bench, &[("a", 0), ("a", 1)]).await;
        let course = Scenario::default();
        let mut processes = Vec::new();
        for _ in 0..ends + 2 {
            let set = |it: ConsumerBuilder<u64>| it.crash_limit(limit).dead_letters(Discard);
            processes.push(process(&bench, &course, &[0], set).await);
            tokio::time::sleep(10 * SECOND).await;
        }
        let expected: Vec<_> = std::iter::repeat_n((0, 1), ends).chain([(1, 1)]).collect();
        assert_eq!(course.order(), expected, "crash_limit {limit}");
        let stats = stats(&bench).await;
        // Who discards keeps it all the same.
        assert_eq!((stats.pending, stats.dead), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn owners_that_return_withdraw_their_ends_and_make_no_candidates() {
    let bench = bench();
    send(&bench, &[("a", 0), ("a", 1)]).await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let course = Scenario::default();
    let mut both = Vec::new();
    for _ in 0..2 {
        let (link, builder) = linked(&bench, NUMBERS);
        let handler = {
            let (course, gate) = (course.clone(), gate.clone());
            move |delivery: Delivery<u64>| {
                let (running, gate) = (course.begin(&delivery), gate.clone());
                async move {
                    let _open = gate.acquire().await;
                    drop(running);
                }
            }
        };
        let builder = builder.lease_ttl(TTL).shutdown_timeout(MS(50));
        both.push((link, builder.start(handler).await.expect("started")));
        course.until(1).await;
    }
    // One of them is cut off for longer than its lease, then the other one: each takes over from one that lives.
    for round in 0..8 {
        let owner =
            both.iter().position(|(_, it)| !it.health().topics[0].owned.is_empty()).expect("an owner");
        both[owner].0.away.store(true, Ordering::Relaxed);
        course.until(round + 2).await;
        both[owner].0.away.store(false, Ordering::Relaxed);
        bench.told.wait_for_lines("LeaseLost {", round + 1).await;
        tokio::time::sleep(3 * TTL).await;
    }
    assert_eq!((candidates(&bench), bench.told.lines("Crashed")), (0, 0));
    gate.add_permits(1_000);
    eventually(|| stats_are_clean(&bench), || "all".into()).await;
    for (_, consumer) in both {
        consumer.shutdown().await;
    }
}

pub(crate) fn stats_are_clean(bench: &Bench) -> bool {
    let topic = "numbers".parse().expect("name");
    let stats = async {
        let topic = bench.backend.catalog().topic(&topic).await.expect("a topic");
        bench.backend.catalog().stats(&topic, &"g".parse().expect("name")).await.expect("stats")
    };
    let stats = futures_util::FutureExt::now_or_never(stats).unwrap_or_default();
    !stats.is_empty() && stats.iter().all(|stats| stats.pending == 0 && stats.lag == Some(0))
}

#[tokio::test(start_paused = true)]
async fn nothing_is_suspected_when_partitions_are_given_back_in_an_orderly_way() {
    let bench = bench();
    send(&bench, &(0..5).map(|n| ("a", n)).collect::<Vec<_>>()).await;
    let course = Scenario::default();
    for _ in 0..6 {
        // The handler never ends and is given up: the process does not die over it.
        let consumer = bench.consumer(NUMBERS, "g").shutdown_timeout(MS(10)).start({
            let course = course.clone();
            move |delivery: Delivery<u64>| {
                drop(course.begin(&delivery));
                for_ever()
            }
        });
        let consumer = consumer.await.expect("started");
        let before = course.count();
        course.until(before + 1).await;
        assert!(notes(&bench).await.iter().all(Option::is_none));
        assert_eq!(consumer.shutdown().await.handed_back, 5);
    }
    assert_eq!(course.order(), [(0, 1); 6]);
    assert_eq!(bench.told.lines("Crashed"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_suspicion_is_taken_back_when_the_suspect_is_handed_over() {
    let bench = bench();
    send(&bench, &[("a", 0), ("a", 1)]).await;
    let course = Scenario::default();
    let dead = process(&bench, &course, &[0], |it| it).await;
    tokio::time::sleep(10 * SECOND).await;
    for round in 0..4 {
        let (_, stuck) = {
            let (link, builder) = linked(&bench, NUMBERS);
            let course = course.clone();
            let handler = move |delivery: Delivery<u64>| {
                drop(course.begin(&delivery));
                for_ever()
            };
            let stuck =
                builder.lease_ttl(TTL).shutdown_timeout(MS(50)).start(handler).await.expect("started");
            (link, stuck)
        };
        course.until(round + 2).await;
        stuck.shutdown().await;
        let suspicions: Vec<_> = notes(&bench).await.iter().flatten().map(|note| note.suspicions).collect();
        assert!(suspicions.iter().all(|suspicions| *suspicions == 0), "round {round}: {suspicions:?}");
    }
    let last = process(&bench, &course, &[], |it| it).await.1;
    eventually(|| last.report().acked == 2, || format!("{:?}", last.report())).await;
    drop(dead);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_lives_raises_no_count_against_its_own_messages() {
    let bench = bench();
    send(&bench, &[("a", 0), ("a", 1)]).await;
    let resource = Resource::partition(partition(), "g".parse().expect("name"));
    let course = Scenario::default();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let consumer = bench.consumer(NUMBERS, "g").lease_ttl(TTL).shutdown_timeout(MS(50)).start({
        let (course, gate) = (course.clone(), gate.clone());
        move |delivery: Delivery<u64>| {
            let (running, gate) = (course.begin(&delivery), gate.clone());
            async move {
                let _pass = gate.acquire().await;
                drop(running);
            }
        }
    });
    let consumer = consumer.await.expect("started");
    course.until(1).await;
    // Outages that cost it the lease, again and again, over the same message.
    for round in 0..6 {
        bench.memory.operator().expire_lease(&resource);
        let other = bench
            .backend
            .leases()
            .acquire(
                &resource,
                "other",
                &format!("n{round}"),
                MS(10),
                &millstream_core::Continuity::assured(),
            )
            .await;
        other.expect("taken");
        course.until(round + 2).await;
        let noted: Vec<_> = notes(&bench).await.into_iter().flatten().map(|note| note.suspicions).collect();
        assert!(noted.iter().all(|suspicions| *suspicions <= 1), "{noted:?}");
    }
    gate.add_permits(100);
    eventually(|| consumer.report().acked >= 2, || format!("{:?}", consumer.report())).await;
    consumer.shutdown().await;
    assert_eq!(bench.told.lines("Crashed"), 0);
    assert_eq!(stats(&bench).await.dead, 0);
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_fails_in_the_usual_way_is_none_any_more() {
    for order in [RetryOrder::Skip, RetryOrder::BlockKey] {
        let bench = bench();
        send(&bench, &[("a", 0), ("a", 1)]).await;
        let course = Scenario::default();
        let first = process(&bench, &course, &[0], |it| it.retry_order(order)).await;
        tokio::time::sleep(10 * SECOND).await;
        let held = Arc::new(Mutex::new(Vec::new()));
        let (_link, second) = linked(&bench, NUMBERS);
        let second = second
            .retry_order(order)
            .retry(Fixed::new(30 * SECOND).attempts(9))
            .lease_ttl(TTL)
            .start({
                let (course, held) = (course.clone(), held.clone());
                move |delivery: Delivery<u64>| {
                    drop(course.begin(&delivery));
                    held.lock().expect("lock").push((delivery.payload, delivery.deliveries()));
                    let fails = delivery.payload == 0 && delivery.attempt() < 4;
                    async move { if fails { Err("no") } else { Ok(()) } }
                }
            })
            .await
            .expect("started");
        eventually(|| second.report().retried == 1, || "failed".into()).await;
        assert!(held.lock().expect("lock")[0].1 > 1, "it is seen that it was handed out before");
        tokio::time::sleep(SECOND).await;
        let noted: Vec<_> = notes(&bench).await.into_iter().flatten().collect();
        match order {
            RetryOrder::BlockKey => {
                let kept: Vec<_> = noted.iter().map(|note| (note.attempt, note.suspicions)).collect();
                assert_eq!(kept, [(2, 0)]);
            }
            _ => assert_eq!(noted, []),
        }
        eventually(|| second.report().acked >= 2, || format!("{:?}", second.report())).await;
        assert_eq!((second.report().retried, bench.told.lines("Crashed")), (3, 0));
        second.shutdown().await;
        drop(first);
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspect_keeps_its_attempt_its_error_and_its_wait() {
    let bench = bench();
    send(&bench, &[("a", 0), ("a", 1)]).await;
    let said = Arc::new(Mutex::new(Vec::new()));
    let mut processes = Vec::new();
    for _ in 0..6 {
        let (link, builder) = linked(&bench, NUMBERS);
        let handler = {
            let (said, link) = (said.clone(), link.clone());
            move |delivery: Delivery<u64>| {
                let (said, link) = (said.clone(), link.clone());
                async move {
                    let last = delivery.last_error().map(str::to_owned);
                    said.lock().expect("lock").push((delivery.payload, delivery.attempt(), last));
                    if delivery.payload == 0 && delivery.attempt() > 1 {
                        link.cut();
                        for_ever().await;
                    }
                    if delivery.payload == 0 { Err("first") } else { Ok(()) }
                }
            }
        };
        let builder = builder.lease_ttl(TTL).retry_order(RetryOrder::BlockKey).retry(Fixed::new(SECOND));
        processes.push((link, builder.shutdown_timeout(MS(10)).start(handler).await.expect("started")));
        tokio::time::sleep(20 * SECOND).await;
    }
    let first = Some("first".to_owned());
    let deaths = vec![(0, 2, first.clone()); 4];
    let expected = [vec![(0, 1, None)], deaths, vec![(1, 1, None)]].concat();
    assert_eq!(*said.lock().expect("lock"), expected);
    let letters = dead(&bench, "g").await.list(10).await.expect("listed");
    assert_eq!((&letters[0].reason, letters[0].attempts), (&Reason::Crashed, 2));
}

#[tokio::test(start_paused = true)]
async fn a_suspicion_that_cannot_be_written_keeps_the_suspect_from_starting() {
    let bench = bench();
    send(&bench, &[("a", 0)]).await;
    let course = Scenario::default();
    let mut dead = Vec::new();
    for _ in 0..2 {
        dead.push(process(&bench, &course, &[0], |it| it).await);
        tokio::time::sleep(10 * SECOND).await;
    }
    fail_settles(&bench, 30);
    let second = process(&bench, &course, &[], |it| it).await.1;
    bench.told.wait_for("Failing { operation: \"settle\"").await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(course.count(), 2);
    eventually(|| second.report().acked == 1, || format!("{:?}", second.report())).await;
    second.shutdown().await;
    drop(dead);
}

#[tokio::test(start_paused = true)]
async fn an_event_tells_which_message_it_was() {
    let bench = bench();
    send(&bench, &[("a", 0)]).await;
    let course = Scenario::default();
    let crashed = Arc::new(Mutex::new(Vec::new()));
    let mut processes = Vec::new();
    for _ in 0..6 {
        let (link, backend) = crate::support::link::link(&bench.backend);
        let observer = {
            let crashed = crashed.clone();
            move |event: &Event<'_>| {
                if let Event::Crashed { origin, crashes, .. } = event {
                    crashed.lock().expect("lock").push((*origin, *crashes));
                }
            }
        };
        let builder = ConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(observer)).lease_ttl(TTL);
        let handler = {
            let (course, link) = (course.clone(), link.clone());
            move |delivery: Delivery<u64>| {
                drop(course.begin(&delivery));
                link.cut();
                for_ever()
            }
        };
        processes.push(builder.shutdown_timeout(MS(10)).start(handler).await.expect("started"));
        tokio::time::sleep(10 * SECOND).await;
    }
    let letters = dead(&bench, "g").await.list(10).await.expect("listed");
    assert_eq!(*crashed.lock().expect("lock"), [(letters[0].origin, 4)]);
}
