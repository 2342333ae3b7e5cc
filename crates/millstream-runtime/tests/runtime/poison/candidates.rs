//! Poison candidates over several partitions: what is one, what begins noted, and what runs alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::poison::{SECOND, TTL, candidates, noted_of, process_of, stats_are_clean};
use crate::support::scenario::*;
use crate::support::*;
use millstream_core::{Resource, Topic};
use millstream_runtime::{Concurrency, ConsumerBuilder, Delivery, Record};

/// Sends sixty messages to three partitions: the value modulo three is the partition.
async fn send_sixty(bench: &Bench) -> Topic<u64> {
    let topic: Topic<u64> = Topic::new("numbers").partitions(3);
    let producer = bench.producer(topic.clone()).await;
    let values: Vec<u64> = (0..60).collect();
    let records = values.iter().map(|n| Record::new(n).partition((n % 3) as u32));
    assert!(producer.send_all(records).await.iter().all(Result::is_ok));
    topic
}

#[tokio::test(start_paused = true)]
async fn after_one_end_everything_is_handled_as_usual_and_nothing_is_noted() {
    let bench = bench();
    let topic = send_sixty(&bench).await;
    let (dying, course) = (Scenario::default(), Scenario::default());
    let set = |it: ConsumerBuilder<u64>| it.concurrency(Concurrency::Unordered(8)).prefetch(20);
    let first = process_of(&bench, topic.clone(), &dying, &[0], set).await;
    dying.until(1).await;
    tokio::time::sleep(10 * SECOND).await;
    // More room than there are messages: what was pending is read before anything of it is settled.
    let second = process_of(&bench, topic, &course, &[], |it| set(it).prefetch(30)).await.1;
    eventually(|| stats_are_clean(&bench), || "all".into()).await;
    let handled = course.count();
    assert_eq!(course.at_once(|call| call.value % 3 == 0), 8, "as many at once as may");
    // In rounds of 24 at 10 ms each, and not one after the other.
    let calls = course.calls();
    let took = calls[handled - 1].ended.expect("ended") - calls[0].began;
    assert!(took <= MS(10) * (handled as u32).div_ceil(24) * 2, "{handled} took {took:?}");
    assert_eq!(candidates(&bench), 0, "nothing was noted");
    assert_eq!(bench.told.lines("TakenOver {"), 3);
    assert_eq!(bench.told.lines("ends: 1, messages: 20, candidates: 0 }"), 3);
    second.shutdown().await;
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn after_two_ends_what_was_pending_at_both_is_noted_as_it_begins_and_no_more_than_may_run() {
    let bench = bench();
    let topic = send_sixty(&bench).await;
    let dying = Scenario::default();
    let set = |it: ConsumerBuilder<u64>| it.concurrency(Concurrency::Unordered(8)).prefetch(20);
    let mut dead = Vec::new();
    for _ in 0..2 {
        dead.push(process_of(&bench, topic.clone(), &dying, &[0], set).await);
        tokio::time::sleep(10 * SECOND).await;
    }
    let course = Scenario::default();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (link, builder) = linked(&bench, topic.clone());
    let third = set(builder.lease_ttl(TTL)).prefetch(30).start({
        let (course, gate) = (course.clone(), gate.clone());
        move |delivery: Delivery<u64>| {
            let (running, gate) = (course.begin(&delivery), gate.clone());
            async move {
                gate.acquire().await.expect("open").forget();
                drop(running);
            }
        }
    });
    let third = third.await.expect("started");
    course.until(24).await;
    let health = third.health();
    assert!(health.topics[0].candidates >= 24, "{health:?}");
    bench.told.wait_for_lines("ends: 2, ", 3).await;
    assert_eq!(bench.told.lines("ends: 2, messages: 20, candidates: 20 }"), 3);
    tokio::time::sleep(SECOND).await;
    let noted = candidates(&bench);
    assert_eq!((course.count(), noted), (24, 24), "as many as run, and not all that was read");
    gate.add_permits(100);
    eventually(|| stats_are_clean(&bench), || "all".into()).await;
    assert_eq!(third.health().topics[0].candidates, 0);
    third.shutdown().await;
    drop((dead, link));
}

#[tokio::test(start_paused = true)]
async fn after_three_ends_what_had_begun_runs_alone_over_all_partitions_while_the_rest_goes_on() {
    let bench = bench();
    let topic = send_sixty(&bench).await;
    let dying = Scenario::default();
    let set = |it: ConsumerBuilder<u64>| it.concurrency(Concurrency::Unordered(8)).prefetch(20);
    let mut dead = Vec::new();
    for _ in 0..3 {
        dead.push(process_of(&bench, topic.clone(), &dying, &[0], set).await);
        tokio::time::sleep(10 * SECOND).await;
    }
    let course = Scenario::default();
    // Those that the third one had begun: what was pending at its end with a note.
    let began: BTreeSet<u64> = noted_of(&bench, 3).await;
    assert!((1..=24).contains(&began.len()), "{began:?}");
    let fourth = process_of(&bench, topic, &course, &[], set).await.1;
    eventually(|| stats_are_clean(&bench), || "all".into()).await;
    assert_eq!(course.at_once(|call| began.contains(&call.value)), 1, "one at a time");
    assert!(course.at_once(|_| true) > 8, "and beside it what is none");
    let calls = course.calls();
    let (alone, others): (Vec<&Call>, Vec<_>) = calls.iter().partition(|call| began.contains(&call.value));
    let beside = |one: &Call| {
        let overlap = |other: &Call| Some(other.began) < one.ended && Some(one.began) < other.ended;
        others.iter().any(|other| other.partition == one.partition && overlap(other))
    };
    assert!(alone.iter().any(|one| beside(one)), "also in its own partition: {calls:#?}");
    assert_eq!(bench.told.lines("Crashed {"), 0);
    fourth.shutdown().await;
    drop(dead);
}

#[tokio::test(start_paused = true)]
async fn what_had_begun_beside_the_culprit_is_handled_as_usual_once_that_is_known() {
    let bench = bench();
    let topic = send_sixty(&bench).await;
    let dying = Scenario::default();
    let set = |it: ConsumerBuilder<u64>| it.concurrency(Concurrency::Unordered(8)).prefetch(20);
    let mut dead = Vec::new();
    for _ in 0..4 {
        dead.push(process_of(&bench, topic.clone(), &dying, &[0], set).await);
        tokio::time::sleep(10 * SECOND).await;
    }
    // The fourth end was that of the culprit alone; some had not had their turn by then.
    let began: BTreeSet<u64> = noted_of(&bench, 3).await;
    assert!(began.len() > 8, "{began:?}");
    let course = Scenario::default();
    let fifth = process_of(&bench, topic, &course, &[], set).await.1;
    eventually(|| stats_are_clean(&bench), || "all".into()).await;
    assert_eq!(bench.told.lines("Crashed {"), 1);
    assert!(course.calls().iter().all(|call| call.value != 0), "given up and not handled");
    assert!(course.at_once(|call| began.contains(&call.value)) > 4, "the others are beside each other again");
    fifth.shutdown().await;
    drop(dead);
}

/// Starts a process with a handler that never ends, and stops it in an orderly way when it has begun the next message.
async fn come_and_leave(bench: &Bench, course: &Scenario) {
    let (_link, builder) = linked(bench, NUMBERS);
    let handler = {
        let course = course.clone();
        move |delivery: Delivery<u64>| {
            drop(course.begin(&delivery));
            for_ever()
        }
    };
    let before = course.count();
    let consumer = builder.lease_ttl(TTL).shutdown_timeout(MS(50)).start(handler).await.expect("started");
    course.until(before + 1).await;
    assert!(consumer.shutdown().await.handed_back > 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_pending_at_one_of_two_ends_is_no_candidate() {
    let bench = bench();
    let (course, two) =
        (Scenario::default(), |it: ConsumerBuilder<u64>| it.concurrency(Concurrency::Unordered(2)));
    send(&bench, &[("a", 0)]).await;
    let first = process_of(&bench, NUMBERS, &course, &[0], two).await;
    course.until(1).await;
    send(&bench, &[("b", 1)]).await;
    let second = process_of(&bench, NUMBERS, &course, &[1], two).await;
    course.until(3).await;
    let third = process_of(&bench, NUMBERS, &course, &[], two).await.1;
    eventually(|| stats_are_clean(&bench), || "all".into()).await;
    let mut order: Vec<u64> = course.calls().iter().map(|call| call.value).collect();
    // The candidate begins a request later than the other one.
    order[3..].sort_unstable();
    assert_eq!(order, [0, 0, 1, 0, 1]);
    assert_eq!(bench.told.lines("ends: 2, messages: 2, candidates: 1 }"), 1, "{:#?}", bench.told.all());
    assert_eq!(candidates(&bench), 1, "noted as begun");
    third.shutdown().await;
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn ends_are_not_passed_on_when_all_is_settled() {
    let bench = bench();
    let course = Scenario::default();
    send(&bench, &[("a", 0)]).await;
    let first = process_of(&bench, NUMBERS, &course, &[0], |it| it).await;
    course.until(1).await;
    // The second one handles what was pending at the end of the first one.
    let second = process_of(&bench, NUMBERS, &course, &[], |it| it).await.1;
    eventually(|| stats_are_clean(&bench), || "all".into()).await;
    second.shutdown().await;
    send(&bench, &[("a", 1)]).await;
    come_and_leave(&bench, &course).await;
    let before = course.count();
    let fourth = process_of(&bench, NUMBERS, &course, &[1], |it| it).await;
    course.until(before + 1).await;
    // This is its third delivery, and one owner has ended since it was sent.
    let fifth = process_of(&bench, NUMBERS, &course, &[], |it| it).await.1;
    eventually(|| stats_are_clean(&bench), || "all".into()).await;
    assert_eq!(course.order(), [0, 0, 1, 1, 1].map(|value| (value, 1)));
    assert_eq!(candidates(&bench), 0, "{:#?}", bench.told.all());
    assert_eq!((bench.told.lines("ends: 1, "), bench.told.lines("ends: 2, ")), (2, 0));
    fifth.shutdown().await;
    drop((first, fourth));
}

#[tokio::test(start_paused = true)]
async fn an_orderly_owner_in_between_passes_ends_on() {
    let bench = bench();
    let course = Scenario::default();
    send(&bench, &[("a", 0)]).await;
    let first = process_of(&bench, NUMBERS, &course, &[0], |it| it).await;
    course.until(1).await;
    let second = process_of(&bench, NUMBERS, &course, &[0], |it| it).await;
    course.until(2).await;
    come_and_leave(&bench, &course).await;
    assert_eq!(candidates(&bench), 1, "noted by the one that left");
    let last = process_of(&bench, NUMBERS, &course, &[], |it| it).await.1;
    eventually(|| stats_are_clean(&bench), || "all".into()).await;
    assert_eq!(candidates(&bench), 2, "noted by the next one");
    assert_eq!(bench.told.lines("ends: 2, messages: 1, candidates: 1 }"), 2, "{:#?}", bench.told.all());
    assert_eq!(bench.told.lines("Crashed {"), 0);
    last.shutdown().await;
    drop((first, second));
}

/// Its lease is granted elsewhere while its last upkeep waits for an answer, until `timeout` is over or the loss is known.
async fn loses_its_lease_at_the_end(timeout: Duration) -> Bench {
    let bench = bench();
    send(&bench, &[("a", 0)]).await;
    let set = |it: ConsumerBuilder<u64>| it.shutdown_timeout(timeout);
    let (link, leaving) = process_of(&bench, NUMBERS, &Scenario::default(), &[], set).await;
    eventually(|| leaving.report().acked == 1, || format!("{:?}", leaving.report())).await;
    link.hang("trim");
    link.calls();
    let leaving = tokio::spawn(leaving.shutdown());
    eventually(|| link.calls().contains_key("trim"), || "the last upkeep".into()).await;
    let resource = Resource::partition(partition(), "g".parse().expect("name"));
    bench.memory.operator().expire_lease(&resource);
    // Asked again, the same request returns the ends as they are by then.
    let ends = async || {
        let assured = millstream_core::Continuity::assured();
        match bench.backend.leases().acquire(&resource, "other", "once", 60 * SECOND, &assured).await {
            Ok(millstream_core::leases::Acquired::Granted(lease)) => lease.ends.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ends().await, 1, "it has not released its lease");
    leaving.await.expect("no panic");
    assert_eq!(ends().await, 0, "it lives");
    bench
}

#[tokio::test(start_paused = true)]
async fn who_loses_its_lease_during_its_last_upkeep_withdraws_its_end() {
    let bench = loses_its_lease_at_the_end(10 * SECOND).await;
    assert_eq!(bench.told.lines("LeaseLost {"), 1);
}

#[tokio::test(start_paused = true)]
async fn who_learns_of_its_loss_when_it_releases_its_lease_withdraws_its_end() {
    let bench = loses_its_lease_at_the_end(MS(50)).await;
    assert_eq!(bench.told.lines("LeaseLost {"), 0, "its last upkeep was aborted before that");
}
