//! Dead tasks that are too old or too many are dropped by the workers of their queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_core::policy::Never;
use millstream_core::{Backend, Capability, DeadLetterRetention, ErrorKind, QueueChange};

use crate::tests::support::link::Link;
use crate::tests::support::{MS, SECS, Seen, events, eventually, memory};
use crate::{DelayQueue, Task, Worker};

const THREE: DeadLetterRetention = DeadLetterRetention::length(3);
const TEN_MINUTES: DeadLetterRetention = DeadLetterRetention::age(std::time::Duration::from_secs(600));

async fn keeping(backend: &Backend, retention: DeadLetterRetention) -> DelayQueue<u64> {
    let queue = DelayQueue::<u64>::new("q").dead_letter_retention(retention).open(backend).await;
    queue.expect("opens")
}

/// A worker of which each task dies.
async fn killer(queue: &DelayQueue<u64>) -> (Worker, Seen<String>) {
    let (observer, seen) = events();
    let worker = queue.worker().retry(Never).observer(observer);
    let worker = worker.start(|_: Task<u64>| async { Err::<(), _>("no") }).await.expect("started");
    (worker, seen)
}

async fn die(queue: &DelayQueue<u64>, worker: &Worker, count: u64) {
    let before = worker.report().dead;
    for number in 0..count {
        queue.schedule(&number).await.expect("scheduled");
    }
    eventually(|| worker.report().dead == before + count, "they are dead").await;
}

async fn dead(queue: &DelayQueue<u64>) -> u64 {
    queue.dead().count().await.expect("counted")
}

/// Waits until so many are dead, and returns the seconds that it took.
async fn falls_to(queue: &DelayQueue<u64>, count: u64) -> f64 {
    let (begun, deadline) = (tokio::time::Instant::now(), SECS(600));
    while dead(queue).await != count {
        assert!(begun.elapsed() < deadline, "{} are dead, {count} were to stay", dead(queue).await);
        tokio::time::sleep(MS(10)).await;
    }
    begun.elapsed().as_secs_f64()
}

fn dropped(seen: &Seen<String>) -> Vec<String> {
    seen.all().into_iter().filter(|event| event.starts_with("DeadTasksDropped")).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_too_much_is_dropped_within_five_seconds_of_a_death() {
    let queue = keeping(&memory(), THREE).await;
    let (worker, seen) = killer(&queue).await;
    for _ in 0..3 {
        die(&queue, &worker, 7).await;
        let took = falls_to(&queue, 3).await;
        assert!(took <= 5.1, "{took} s");
    }
    let all = queue.dead().list(10).await.expect("listed");
    // That they are the newest is a case of the suite: here seven die in the same moment.
    assert_eq!(all.len(), 3);
    worker.shutdown().await;
    let dropped = dropped(&seen);
    assert!((1..=3).contains(&dropped.len()), "{dropped:?}");
    assert!(dropped.iter().all(|event| event.contains("aged: 0, excess:")), "{dropped:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_too_old_is_dropped_within_a_tenth_of_the_age() {
    let queue = keeping(&memory(), TEN_MINUTES).await;
    let (worker, seen) = killer(&queue).await;
    die(&queue, &worker, 4).await;
    tokio::time::sleep(SECS(595)).await;
    assert_eq!(dead(&queue).await, 4, "they are not too old");
    let took = falls_to(&queue, 0).await;
    assert!(took <= 66.0, "{took} s");
    worker.shutdown().await;
    let dropped = dropped(&seen);
    assert!(dropped.len() == 1 && dropped[0].contains("aged: 4, excess: 0"), "{dropped:?}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_keeps_all_costs_no_trim_and_a_change_is_applied_in_two_minutes() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = DelayQueue::<u64>::new("q").open(&link.over(&backend)).await.expect("opens");
    let (worker, _) = killer(&queue).await;
    die(&queue, &worker, 9).await;
    tokio::time::sleep(SECS(3_600)).await;
    assert_eq!((link.calls("trim"), dead(&queue).await), (0, 9));
    let change = QueueChange::new().dead_letter_retention(THREE);
    assert_eq!(queue.alter(&change).await.expect("altered").dead_letter_retention, THREE);
    let took = falls_to(&queue, 3).await;
    assert!(took <= 121.0, "{took} s");
    let change = QueueChange::new().dead_letter_retention(DeadLetterRetention::KEEP);
    queue.alter(&change).await.expect("altered");
    tokio::time::sleep(SECS(120)).await;
    die(&queue, &worker, 9).await;
    tokio::time::sleep(SECS(3_600)).await;
    assert_eq!(dead(&queue).await, 12, "dropped under a retention that was taken back");
    worker.shutdown().await;
}

/// Its request was on its way while somebody took the retention back.
#[tokio::test(start_paused = true)]
async fn a_worker_that_was_paused_drops_nothing_under_an_earlier_retention() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = keeping(&link.over(&backend), THREE).await;
    let (worker, seen) = killer(&queue).await;
    die(&queue, &worker, 3).await;
    falls_to(&queue, 3).await;
    link.late_trim.store(200, Ordering::Relaxed);
    die(&queue, &worker, 6).await;
    eventually(|| link.late_trim.load(Ordering::Relaxed) == 0, "a trim is on its way").await;
    let change = QueueChange::new().dead_letter_retention(DeadLetterRetention::KEEP);
    queue.alter(&change).await.expect("altered");
    tokio::time::sleep(SECS(600)).await;
    assert_eq!(dead(&queue).await, 9);
    assert_eq!(dropped(&seen), Vec::<String>::new());
    assert!(worker.progress().is_ready(), "{:?}", worker.progress().failing);
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn of_five_workers_each_dead_task_is_dropped_and_counted_once() {
    let queue = keeping(&memory(), THREE).await;
    let mut workers = Vec::new();
    for _ in 0..5 {
        workers.push(killer(&queue).await);
    }
    for round in 1..=4 {
        for number in 0..25 {
            queue.schedule(&number).await.expect("scheduled");
        }
        let deaths = || workers.iter().map(|(worker, _)| worker.report().dead).sum::<u64>();
        eventually(|| deaths() == 25 * round, "all are dead").await;
        falls_to(&queue, 3).await;
    }
    let mut counted = 0;
    for (worker, seen) in workers {
        worker.shutdown().await;
        for event in dropped(&seen) {
            let excess = event.split("excess: ").nth(1).and_then(|rest| rest.split(' ').next());
            counted += excess.and_then(|it| it.parse::<u64>().ok()).expect("a number");
        }
    }
    assert_eq!(counted, 97);
}

/// A program that only drains does not live for a period.
#[tokio::test(start_paused = true)]
async fn a_worker_that_drains_drops_as_well() {
    let queue = keeping(&memory(), THREE).await;
    let (worker, _) = killer(&queue).await;
    die(&queue, &worker, 3).await;
    worker.shutdown().await;
    queue
        .alter(&QueueChange::new().dead_letter_retention(DeadLetterRetention::length(1)))
        .await
        .expect("altered");
    let (worker, seen) = killer(&queue).await;
    worker.drain().await;
    assert_eq!((dead(&queue).await, dropped(&seen).len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_first_retention_stays_and_one_that_cannot_be_kept_is_refused() {
    let backend = memory();
    let queue = keeping(&backend, THREE).await;
    assert_eq!(queue.settings().dead_letter_retention, THREE);
    assert_eq!(keeping(&backend, TEN_MINUTES).await.settings().dead_letter_retention, THREE);
    let open = DelayQueue::<u64>::new("q").open(&backend).await.expect("opens");
    assert_eq!(open.settings().dead_letter_retention, THREE, "whoever names none takes the stored one");

    let nothing =
        DelayQueue::<u64>::new("more").shards(0).dead_letter_retention(DeadLetterRetention::length(0));
    let refused = nothing.open(&backend).await.expect_err("it would keep nothing");
    assert_eq!((refused.kind(), refused.problems().len()), (ErrorKind::InvalidConfig, 2), "{refused}");
    let without = memory().without(Capability::TrimDeadTasks);
    let refused = DelayQueue::<u64>::new("q").dead_letter_retention(THREE).open(&without).await;
    assert_eq!(refused.expect_err("not supported").kind(), ErrorKind::Unsupported);
    let queue = DelayQueue::<u64>::new("q").open(&without).await.expect("opens");
    let (worker, _) = killer(&queue).await;
    die(&queue, &worker, 4).await;
    let altered = queue.alter(&QueueChange::new().dead_letter_retention(THREE)).await;
    assert_eq!(altered.expect_err("not supported").kind(), ErrorKind::Unsupported);
    assert!(worker.progress().is_ready(), "{:?}", worker.progress().failing);
    worker.shutdown().await;
}
