//! Whose claim it is: ids that are used again, answers that come late or never, handlers that may not begin.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_core::schedule::Placed;
use millstream_core::tasks::{ClaimRequest, ClaimedTask, Verdict};
use millstream_core::{Backend, Shard};
use tokio::sync::Notify;

use crate::tests::support::link::Link;
use crate::tests::support::{MS, SECS, Seen, events, eventually, memory, open};
use crate::{DelayQueue, Task, TaskRecord, Worker};

/// A worker that notes what it begins with, and ends at once.
async fn noting(queue: &DelayQueue<u64>, hold: Duration) -> (Worker, Seen<(u64, u32)>) {
    let seen = Seen::default();
    let tell = seen.clone();
    let worker = queue.worker().hold(hold).start(move |task: Task<u64>| {
        tell.push((task.payload, task.crashes()));
        async {}
    });
    (worker.await.expect("starts"), seen)
}

/// What somebody else claims, as soon as it can.
async fn claim(backend: &Backend) -> ClaimedTask {
    let shard = Shard::new("q".parse().expect("a name"), 0);
    let ask = ClaimRequest {
        worker: "b".into(),
        limit: 1,
        hold: SECS(9),
        crash_limit: 0,
        longest_sleep: SECS(1),
        continuity: millstream_core::Continuity::assured(),
    };
    for _ in 0..60_000 {
        if let Some(task) =
            backend.tasks().expect("delay queues").claim(&shard, &ask).await.expect("claims").tasks.pop()
        {
            return task;
        }
        tokio::time::sleep(MS(1)).await;
    }
    panic!("nothing to claim");
}

async fn is_empty(queue: &DelayQueue<u64>) -> bool {
    let counts = queue.count().await.expect("counts");
    counts.waiting.total + counts.claimed + counts.dead == 0
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_used_again_before_its_settlement_was_heard_of_is_a_task_of_its_own() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    link.lose_settlements.store(1, Ordering::Relaxed);
    let (worker, seen) = noting(&queue, SECS(30)).await;
    queue.schedule(&1).id("daily").await.expect("scheduled");
    eventually(|| link.calls("settle") > 0, "done, and not answered").await;
    let placed = queue.schedule(&2).id("daily").await.expect("scheduled").placed;
    assert_eq!(placed, Placed::New);
    seen.reach(2).await;
    assert_eq!(seen.all(), [(1, 0), (2, 0)], "both are worked on");
    eventually(|| worker.progress().running == 0, "both are settled").await;
    assert!(is_empty(&queue).await);
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.stale), (2, 0), "settled once each, however often it was said");
}

#[tokio::test(start_paused = true)]
async fn what_a_late_handler_says_is_not_said_of_a_new_task_with_the_same_id() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let (plain, linked) = (open(&backend, 1).await, open(&link.over(&backend), 1).await);
    let (seen, go) = (Seen::default(), Arc::new(Notify::new()));
    let (tell, wait) = (seen.clone(), go.clone());
    let worker = linked.worker().hold(SECS(2)).start(move |task: Task<u64>| {
        tell.push(task.payload);
        let wait = wait.clone();
        async move {
            if task.payload == 1 {
                wait.notified().await;
                return Err("too late");
            }
            Ok(())
        }
    });
    let worker = worker.await.expect("starts");
    plain.schedule(&1).id("daily").await.expect("scheduled");
    seen.reach(1).await;
    link.away.store(true, Ordering::Relaxed);
    let task = claim(&backend).await;
    assert!(task.before.is_some(), "it ran out");
    let shard = Shard::new("q".parse().expect("a name"), 0);
    let done = [(task.id, task.token, Verdict::Complete)];
    assert_eq!(
        backend.tasks().expect("delay queues").settle_tasks(&shard, &done).await.expect("settles").applied,
        1
    );
    assert_eq!(plain.schedule(&2).id("daily").await.expect("scheduled").placed, Placed::New);
    link.away.store(false, Ordering::Relaxed);
    seen.reach(2).await;
    go.notify_one();
    eventually(|| worker.progress().running == 0, "all is settled").await;
    assert_eq!(seen.all(), [1, 2]);
    assert!(is_empty(&plain).await, "the new task is done, not failed");
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.retried, report.stale), (1, 0, 1), "a stale one counts as that alone");
}

#[tokio::test(start_paused = true)]
async fn no_handler_begins_when_its_claim_has_run_out() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let (plain, linked) = (open(&backend, 1).await, open(&link.over(&backend), 1).await);
    link.late_claim.store(60, Ordering::Relaxed);
    plain.schedule(&1).await.expect("scheduled");
    let (observer, told) = events();
    let late = Seen::default();
    let tell = late.clone();
    let slow = linked.worker().observer(observer).start(move |task: Task<u64>| {
        tell.push(task.payload);
        async {}
    });
    let slow = slow.await.expect("starts");
    eventually(|| link.calls("claim") > 0, "claimed, and not answered").await;
    let (other, seen) = noting(&plain, SECS(30)).await;
    tokio::time::sleep(SECS(100)).await;
    assert_eq!((seen.all(), late.len()), (vec![(1, 1)], 0));
    assert!(told.all().iter().any(|event| event.starts_with("ClaimsLost")), "{:?}", told.all());
    assert_eq!(slow.progress().running, 0);
    assert_eq!((slow.shutdown().await.stale, other.shutdown().await.done), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn tasks_that_no_handler_began_do_not_die_however_many_answers_are_lost() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    link.lose_claims.store(usize::MAX, Ordering::Relaxed);
    let numbers: Vec<u64> = (0..300).collect();
    queue.schedule_all(numbers.iter().map(TaskRecord::new)).await;
    let (worker, seen) = noting(&queue, SECS(5)).await;
    tokio::time::sleep(SECS(300)).await;
    let counts = queue.count().await.expect("counts");
    assert_eq!((seen.len(), counts.dead, counts.claimed + counts.waiting.total), (0, 0, 300));
    link.lose_claims.store(0, Ordering::Relaxed);
    seen.reach(300).await;
    eventually(|| worker.progress().running == 0, "all are settled").await;
    assert_eq!(worker.shutdown().await.done, 300);
}

#[tokio::test(start_paused = true)]
async fn a_task_over_which_somebody_died_is_begun_only_when_the_server_knows() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&backend, 1).await;
    queue.schedule(&1).await.expect("scheduled");
    let dead = claim(&backend).await;
    assert_eq!(dead.crashes, 0);
    link.no_renewals.store(true, Ordering::Relaxed);
    let (worker, seen) = noting(&open(&link.over(&backend), 1).await, SECS(5)).await;
    tokio::time::sleep(SECS(120)).await;
    assert!(link.calls("extend") > 20, "tried again and again");
    assert_eq!((seen.len(), queue.count().await.expect("counts").dead), (0, 0));
    link.no_renewals.store(false, Ordering::Relaxed);
    seen.reach(1).await;
    assert_eq!(seen.all(), [(1, 1)], "claims that nobody began with do not count");
    eventually(|| worker.progress().failing.is_empty(), "nothing fails any more").await;
    eventually(|| worker.report().done == 1, "done").await;
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_begun_is_handed_back_when_the_worker_ends() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&backend, 1).await;
    queue.schedule(&1).await.expect("scheduled");
    claim(&backend).await;
    link.no_renewals.store(true, Ordering::Relaxed);
    let (worker, seen) = noting(&open(&link.over(&backend), 1).await, SECS(30)).await;
    eventually(|| worker.progress().running == 1, "claimed").await;
    let report = worker.shutdown().await;
    assert_eq!((report.handed_back, seen.len()), (1, 0));
    assert_eq!(claim(&backend).await.crashes, 1, "who died over it is not forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_goes_on_under_a_new_claim_has_begun_with_that_too() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    queue.schedule(&1).await.expect("scheduled");
    link.no_renewals.store(true, Ordering::Relaxed);
    let worker = queue.worker().hold(SECS(3)).start(|_: Task<u64>| std::future::pending::<()>());
    let worker = worker.await.expect("starts");
    // Its claim runs out once, and is ours again.
    tokio::time::sleep(SECS(4)).await;
    link.no_renewals.store(false, Ordering::Relaxed);
    tokio::time::sleep(SECS(10)).await;
    link.cut();
    assert_eq!(claim(&backend).await.crashes, 1, "it stood still and lived, and then died");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn of_few_ids_that_are_used_again_and_again_no_task_is_lost() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let (plain, linked) = (open(&backend, 2).await, open(&link.over(&backend), 2).await);
    let (worker, seen) = noting(&linked, SECS(5)).await;
    let mut placed = Vec::new();
    for number in 0..4_000 {
        link.lose_settlements.store(usize::from(number % 10 == 0), Ordering::Relaxed);
        let scheduled = plain.schedule(&number).id(format!("k{}", number % 4)).await.expect("scheduled");
        if scheduled.placed == Placed::New {
            placed.push(number);
        }
        tokio::time::sleep(MS(fastrand::u64(0..40))).await;
    }
    eventually(|| worker.progress().running == 0 && seen.len() >= placed.len(), "all are settled").await;
    let mut worked: Vec<_> = seen.all().into_iter().map(|(number, _)| number).collect();
    worked.sort_unstable();
    assert!(placed.len() > 1_000, "{}", placed.len());
    assert_eq!(worked, placed, "each that was new is worked on, once");
    assert_eq!(worker.shutdown().await.done, placed.len() as u64);
}
