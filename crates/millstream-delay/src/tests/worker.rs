//! What a worker does while all goes well: due times, outcomes, room, ends.

mod cancels;
mod handling;
mod requests;
mod steps;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millstream_core::health::{ConsumerState, WorkerCheck};
use millstream_core::policy::{Discard, Fixed, Never};
use millstream_core::{Event, Observer, Outcome, Timestamp};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::tests::support::link::Link;
use crate::tests::support::{MS, SECS, Seen, events, eventually, memory, open, queue};
use crate::{DelayQueue, Task, TaskRecord};

#[tokio::test(start_paused = true)]
async fn a_task_is_worked_on_when_it_is_due_and_not_before() {
    let queue = open(&memory(), 3).await;
    let (start, seen) = (Instant::now(), Seen::default());
    for ms in [300u64, 100, 700, 100, 0, 90_000] {
        queue.schedule(&ms).delay(MS(ms)).await.expect("scheduled");
    }
    let handler = {
        let seen = seen.clone();
        move |task: Task<u64>| {
            seen.push((task.payload, start.elapsed(), task.late()));
            async {}
        }
    };
    let worker = queue.worker().start(handler).await.expect("starts");
    seen.reach(6).await;
    for (due, at, late) in seen.all() {
        assert!(at >= MS(due) && at <= MS(due + 2) && late <= MS(1), "{due}: {at:?}, late {late:?}");
    }
    assert_eq!(worker.shutdown().await.done, 6);
    let counts = queue.count().await.expect("counts");
    assert_eq!((counts.waiting.total, counts.claimed, counts.dead), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_earlier_task_wakes_who_sleeps() {
    let queue = queue().await;
    let seen = Seen::default();
    let (start, tell) = (Instant::now(), seen.clone());
    let worker = queue.worker().start(move |task: Task<u64>| {
        tell.push((task.payload, start.elapsed()));
        async {}
    });
    let worker = worker.await.expect("starts");
    queue.schedule(&1).delay(SECS(3_000)).await.expect("scheduled");
    tokio::time::sleep(SECS(100)).await;
    queue.schedule(&2).delay(MS(50)).await.expect("scheduled");
    seen.reach(1).await;
    let (payload, at) = seen.all()[0];
    assert!(payload == 2 && at <= SECS(100) + MS(52), "{at:?}");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_begins_nothing_and_a_resumed_one_goes_on_at_once() {
    let queue = open(&memory(), 3).await;
    let (start, seen, gate) = (Instant::now(), Seen::default(), Arc::new(Semaphore::new(0)));
    let handler = {
        let (seen, gate) = (seen.clone(), gate.clone());
        move |task: Task<u64>| {
            seen.push((task.payload, start.elapsed()));
            let gate = gate.clone();
            async move { gate.acquire().await.expect("open").forget() }
        }
    };
    let workers = [
        queue.worker().start(handler.clone()).await.expect("starts"),
        queue.worker().start(handler).await.expect("starts"),
    ];
    queue.recurring("each minute").every(SECS(60)).payload(&9).await.expect("recurs");
    queue.schedule(&1).await.expect("scheduled");
    seen.reach(1).await;
    assert_eq!(queue.pause_and_wait(SECS(1)).await.expect("paused"), 1, "it is worked on");
    let paused = queue.count().await.expect("counts").paused.expect("since when");
    for number in [2, 3, 4] {
        queue.schedule(&number).await.expect("scheduled");
    }
    gate.add_permits(1);
    assert_eq!(queue.pause_and_wait(SECS(1)).await.expect("paused"), 0);
    tokio::time::sleep(SECS(3_600)).await;
    let counts = queue.count().await.expect("counts");
    assert_eq!((seen.all().len(), counts.paused), (1, Some(paused)), "nothing began in an hour");
    assert!(counts.waiting.overdue > 3, "with what recurs: {counts:?}");

    queue.recurring("each minute").remove().await.expect("removed");
    let (resumed, all) = (start.elapsed(), counts.waiting.overdue as usize);
    gate.add_permits(1_000);
    assert!(queue.resume().await.expect("resumed") && !queue.resume().await.expect("it is"));
    seen.reach(1 + all).await;
    let latest = seen.all().iter().map(|(_, at)| *at).max();
    assert!(latest <= Some(resumed + SECS(1)), "{latest:?}, resumed at {resumed:?}");
    for worker in workers {
        worker.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_outcome_is_told_and_an_attempt_has_its_history() {
    let queue = queue().await;
    let seen = Seen::default();
    let tell = seen.clone();
    let handler = move |task: Task<u64>| {
        let error = task.last_error().map(str::to_owned);
        tell.push((task.payload, task.attempt(), error, task.history().failures().len()));
        let first = task.attempt() == 1 && task.history().is_empty();
        async move {
            match task.payload {
                1 if first => Outcome::retry("once"),
                2 => Outcome::dead_letter("never"),
                3 if first => Outcome::retry_after(SECS(1), "later"),
                4 => Outcome::retry("always"),
                5 => panic!("boom"),
                _ => Outcome::Ack,
            }
        }
    };
    let worker = queue.worker().retry(Fixed::new(SECS(5)).attempts(2)).concurrency(1);
    let worker = worker.start(handler).await.expect("starts");
    for number in 0..6u64 {
        queue.schedule(&number).delay(MS(10 + number)).id(number.to_string()).await.expect("scheduled");
    }
    seen.reach(10).await;
    eventually(|| worker.progress().running == 0, "all are settled").await;
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.retried, report.dead, report.stale), (3, 4, 3, 0));
    let again: Vec<_> = seen.all().into_iter().skip(6).collect();
    assert_eq!(again[0], (3, 2, Some("later".into()), 1), "its own delay: the first to come back");
    assert_eq!(again[1], (1, 2, Some("once".into()), 1));
    let dead = queue.dead().list(9).await.expect("list");
    let told: Vec<_> =
        dead.iter().map(|dead| (dead.task.as_str(), dead.reason.as_str(), dead.attempts)).collect();
    assert_eq!(told, [("2", "rejected", 1), ("4", "exhausted", 2), ("5", "exhausted", 2)]);
    assert_eq!(dead[2].error, "handler panicked: boom");
    assert_eq!(dead[1].history.failures().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_snooze_uses_no_attempt_and_a_discard_keeps_nothing() {
    let queue = queue().await;
    let seen = Seen::default();
    let tell = seen.clone();
    queue.schedule(&1).await.expect("scheduled");
    queue.schedule(&2).await.expect("scheduled");
    let worker = queue.worker().retry(Never).dead_letters(Discard).start(move |task: Task<u64>| {
        let tell = tell.clone();
        async move {
            if task.payload == 2 {
                return Outcome::retry("no");
            }
            tell.push((task.attempt(), task.history().is_empty()));
            if tell.len() < 4 { Outcome::snooze(SECS(60)) } else { Outcome::Ack }
        }
    });
    let worker = worker.await.expect("starts");
    seen.reach(4).await;
    eventually(|| worker.report().done == 1, "done").await;
    assert_eq!(seen.all(), [(1, true); 4]);
    let report = worker.shutdown().await;
    assert_eq!((report.snoozed, report.done, report.discarded, report.dead), (3, 1, 1, 0));
    assert_eq!(queue.dead().count().await.expect("counts"), 0);
}

/// A handler that waits for leave to end, and counts who runs.
fn slow(
    leave: Arc<Semaphore>,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
) -> impl Fn(Task<u64>) -> futures_util::future::BoxFuture<'static, ()> + Send + Sync {
    move |_| {
        let (leave, running, most) = (leave.clone(), running.clone(), most.clone());
        Box::pin(async move {
            most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            leave.acquire().await.expect("open").forget();
            running.fetch_sub(1, Ordering::Relaxed);
        })
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_is_claimed_than_there_is_room_for() {
    let backend = memory();
    let (queue, link) = (open(&backend, 3).await, Arc::new(Link::default()));
    queue.schedule_all((0..100).map(|_| TaskRecord::new(&1))).await;
    let (leave, running, most) = (Arc::new(Semaphore::new(0)), Arc::default(), Arc::default());
    let linked = open(&link.over(&backend), 3).await;
    let handler = slow(leave.clone(), running, Arc::clone(&most));
    let worker = linked.worker().concurrency(5).start(handler).await.expect("starts");
    tokio::time::sleep(SECS(1)).await;
    let counts = queue.count().await.expect("counts");
    assert_eq!((counts.claimed, counts.waiting.total), (5, 95), "nothing is read ahead");
    let calls = link.calls("claim");
    tokio::time::sleep(SECS(9)).await;
    assert_eq!(link.calls("claim"), calls, "who has no room does not ask");
    leave.add_permits(100);
    eventually(|| worker.report().done == 100, "all are done").await;
    assert_eq!(most.load(Ordering::Relaxed), 5);
    assert!(link.largest.load(Ordering::Relaxed) <= 5);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn shards_take_turns_where_room_is_short() {
    let queue = open(&memory(), 4).await;
    let numbers: Vec<u64> = (0..400).collect();
    queue.schedule_all(numbers.iter().map(TaskRecord::new)).await;
    let seen = Seen::default();
    let tell = seen.clone();
    let worker = queue.worker().concurrency(2).start(move |task: Task<u64>| {
        tell.push(task.shard().shard);
        tokio::time::sleep(MS(10))
    });
    let worker = worker.await.expect("starts");
    seen.reach(100).await;
    for shard in 0..4 {
        let turns = seen.all().iter().take(100).filter(|seen| **seen == shard).count();
        assert!(turns >= 15, "shard {shard} had {turns} of 100 turns");
    }
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_dropped_and_that_is_a_failure() {
    let queue = queue().await;
    queue.schedule(&1).await.expect("scheduled");
    let worker = queue.worker().handler_timeout(SECS(3)).retry(Fixed::new(MS(1)).attempts(2));
    let worker = worker.start(|_: Task<u64>| std::future::pending::<()>()).await.expect("starts");
    eventually(|| worker.report().dead == 1, "given up").await;
    let dead = queue.dead().list(1).await.expect("list");
    assert_eq!((dead[0].attempts, &*dead[0].error), (2, "handler timed out after 3s"));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn an_end_waits_for_handlers_and_hands_back_those_that_take_too_long() {
    let queue = queue().await;
    for ms in [100u64, 1_000_000] {
        queue.schedule(&ms).id(ms.to_string()).await.expect("scheduled");
    }
    let worker = queue.worker().shutdown_timeout(SECS(10));
    let handler = |task: Task<u64>| tokio::time::sleep(MS(task.payload));
    let worker = worker.start(handler).await.expect("starts");
    eventually(|| worker.progress().running == 2, "both run").await;
    let start = Instant::now();
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.handed_back, report.retried), (1, 1, 0));
    assert_eq!(start.elapsed().as_secs(), 8, "the rest would be for telling a slow server");
    let waits = queue.get("1000000").await.expect("read").expect("due again");
    assert!(waits.due <= Timestamp::from_millis(crate::tests::support::EPOCH).saturating_add(SECS(11)));
    let seen = Seen::default();
    let tell = seen.clone();
    let worker = queue.worker().start(move |task: Task<u64>| {
        tell.push((task.attempt(), task.crashes()));
        async {}
    });
    worker.await.expect("starts").drain().await;
    assert_eq!(seen.all(), [(1, 0)], "the same attempt, and nobody died");
}

#[tokio::test(start_paused = true)]
async fn an_end_without_work_takes_no_time_and_a_drop_ends_too() {
    let queue = open(&memory(), 4).await;
    let start = Instant::now();
    let worker = queue.worker().start(async |_: Task<u64>| ()).await.expect("starts");
    tokio::time::sleep(MS(1)).await;
    worker.shutdown().await;
    assert!(start.elapsed() < MS(10), "{:?}", start.elapsed());
    let worker = queue.worker().start(async |_: Task<u64>| ()).await.expect("starts");
    drop(worker);
    queue.schedule(&1).await.expect("scheduled");
    tokio::time::sleep(SECS(60)).await;
    assert_eq!(queue.count().await.expect("counts").waiting.overdue, 1, "nobody works any more");
}

#[tokio::test(start_paused = true)]
async fn run_until_gives_a_report_and_drain_leaves_what_is_not_due() {
    let queue: DelayQueue<u64> = open(&memory(), 2).await;
    queue.schedule_all((0..50).map(|_| TaskRecord::new(&1))).await;
    queue.schedule(&2).delay(SECS(1)).await.expect("scheduled");
    let worker = queue.worker().concurrency(3).start(|_: Task<u64>| tokio::time::sleep(MS(5)));
    assert_eq!(worker.await.expect("starts").drain().await.done, 50);
    let report = queue.worker().run_until(tokio::time::sleep(SECS(5)), async |_: Task<u64>| ()).await;
    assert_eq!(report.expect("runs").done, 1);
}

#[tokio::test(start_paused = true)]
async fn events_tell_what_happens() {
    let (observer, seen) = events();
    let queue = queue().await;
    queue.schedule(&1).delay(Duration::from_millis(20)).await.expect("scheduled");
    let worker = queue.worker().observer(observer).start(async |_: Task<u64>| ()).await.expect("starts");
    eventually(|| worker.report().done == 1, "done").await;
    assert!(worker.progress().is_ready());
    worker.shutdown().await;
    let told = |what: &str| seen.all().iter().any(|event| event.starts_with(what));
    assert!(told("Claimed") && told("Worked") && told("TasksSettled"), "{:?}", seen.all());
}

/// Keeps what can say how workers are.
fn checks() -> (impl Observer + 'static, Seen<Arc<dyn WorkerCheck>>) {
    let seen = Seen::default();
    let tell = seen.clone();
    let observer = move |event: &Event<'_>| {
        if let Event::WorkerStarted { health, .. } = event {
            tell.push((*health).clone());
        }
    };
    (observer, seen)
}

#[tokio::test(start_paused = true)]
async fn a_worker_says_how_it_is_from_its_start_to_its_end() {
    let link = Arc::new(Link::default());
    let queue = open(&link.over(&memory()), 2).await;
    queue.schedule(&1).await.expect("scheduled");
    let (observer, seen) = checks();
    let go = Arc::new(Semaphore::new(0));
    let gate = go.clone();
    let worker = queue.worker().observer(observer).hold(SECS(10)).start(move |_: Task<u64>| {
        let gate = gate.clone();
        async move { gate.acquire().await.expect("open").forget() }
    });
    let worker = worker.await.expect("starts");
    let check = seen.all().remove(0);
    assert_eq!(check.health().state, ConsumerState::Joining, "the server has not answered yet");
    eventually(|| check.health().running == 1 && check.health().is_ready(), "it works").await;
    let health = check.health();
    assert_eq!(health.queue.as_str(), "q");
    for (operation, shard) in [("claim", Some(0)), ("claim", Some(1)), ("settle", Some(1)), ("extend", None)]
    {
        let found = health.loops.iter().any(|it| it.operation == operation && it.shard == shard);
        assert!(found, "{operation} {shard:?}: {health:?}");
    }
    tokio::time::sleep(SECS(200)).await;
    assert!(check.health().is_live(), "a handler may take any time: {:?}", check.health());

    // A server that is away for longer than a claim holds.
    link.away.store(true, Ordering::SeqCst);
    eventually(|| !check.health().is_ready(), "it is cut off").await;
    assert!(check.health().is_live() && check.health().failing().count() > 0);
    link.away.store(false, Ordering::SeqCst);
    eventually(|| check.health().is_ready(), "it works again").await;
    go.add_permits(9);
    worker.shutdown().await;
    let health = check.health();
    assert!(health.state == ConsumerState::Ended && health.asked_to_end, "{health:?}");
}

#[tokio::test(start_paused = true)]
async fn a_loop_of_a_worker_that_hangs_is_told() {
    let link = Arc::new(Link::default());
    let queue = open(&link.over(&memory()), 1).await;
    let (observer, seen) = checks();
    let worker = queue.worker().observer(observer).start(async |_: Task<u64>| {}).await.expect("starts");
    let check = seen.all().remove(0);
    eventually(|| check.health().is_ready(), "it works").await;
    // Its claim is answered much later than any request may take.
    link.late_claim.store(600, Ordering::SeqCst);
    queue.schedule(&1).await.expect("scheduled");
    eventually(|| !check.health().is_live(), "it hangs").await;
    let stalled: Vec<_> = check.health().stalled().map(|it| it.operation).collect();
    assert_eq!(stalled, ["claim"]);
    eventually(|| check.health().is_live(), "it goes on").await;
    drop(worker);
}
