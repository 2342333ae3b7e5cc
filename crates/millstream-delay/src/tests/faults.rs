//! What a worker does when things go wrong: dead workers, lost replies, servers that are away, many workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_core::policy::{Fixed, Never};
use millstream_core::{Backend, Outcome};

use crate::tests::support::link::Link;
use crate::tests::support::{MS, SECS, Seen, events, eventually, memory, open, queue};
use crate::{Check, Task, TaskRecord, Worker};

/// A worker behind a link, that never ends a task.
async fn stuck(backend: &Backend, link: &Arc<Link>, hold: u64) -> (Worker, Seen<(u64, u32, u32)>) {
    let queue = open(&link.over(backend), 1).await;
    let seen = Seen::default();
    let tell = seen.clone();
    let worker = queue.worker().hold(SECS(hold)).start(move |task: Task<u64>| {
        tell.push((task.payload, task.attempt(), task.crashes()));
        std::future::pending::<()>()
    });
    (worker.await.expect("starts"), seen)
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_dead_worker_come_back_once_their_claims_ran_out() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&backend, 1).await;
    queue.schedule_all([1, 2, 3].iter().map(TaskRecord::new)).await;
    let (dead, begun) = stuck(&backend, &link, 10).await;
    begun.reach(3).await;
    link.cut();
    let seen = Seen::default();
    let tell = seen.clone();
    let start = tokio::time::Instant::now();
    let worker = queue.worker().hold(SECS(10)).start(move |task: Task<u64>| {
        tell.push((task.payload, task.attempt(), task.crashes(), start.elapsed()));
        async {}
    });
    let worker = worker.await.expect("starts");
    seen.reach(3).await;
    for (_, attempt, crashes, at) in seen.all() {
        assert_eq!((attempt, crashes), (1, 1));
        assert!(at <= SECS(10) + MS(300), "{at:?}");
    }
    assert_eq!(worker.shutdown().await.done, 3);
    drop(dead);
}

#[tokio::test(start_paused = true)]
async fn a_running_task_stays_ours_however_long_it_takes() {
    let backend = memory();
    let link = Arc::new(Link::default());
    let (slow, begun) = stuck(&backend, &link, 9).await;
    let queue = open(&backend, 1).await;
    queue.schedule_all((0..10).map(|_| TaskRecord::new(&1))).await;
    begun.reach(10).await;
    let other = queue.worker().start(async |_: Task<u64>| ()).await.expect("starts");
    tokio::time::sleep(SECS(900)).await;
    assert_eq!((other.report().done, begun.len()), (0, 10));
    let renewals = link.calls("extend");
    assert!((290..=310).contains(&renewals), "ten in one request, three times per hold: {renewals}");
    drop((slow, other));
}

#[tokio::test(start_paused = true)]
async fn a_task_over_which_workers_die_is_given_up() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    queue.schedule(&7).id("killer").await.expect("scheduled");
    let mut workers = Vec::new();
    for crashes in 0..3 {
        let link = Arc::new(Link::default());
        let (worker, begun) = stuck(&backend, &link, 1).await;
        begun.reach(1).await;
        assert_eq!(begun.all(), [(7, 1, crashes)]);
        link.cut();
        workers.push(worker);
    }
    let (observer, events) = events();
    let worker = queue.worker().observer(observer).start(async |_: Task<u64>| ()).await.expect("starts");
    eventually(|| events.all().iter().any(|event| event.contains("crashed: 1")), "given up").await;
    assert_eq!(worker.shutdown().await.done, 0);
    let dead = queue.dead().list(9).await.expect("list");
    assert_eq!((dead[0].task.as_str(), dead[0].reason.as_str()), ("killer", "crashed"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_hears_of_it_when_its_claim_cannot_be_renewed() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let (observer, events) = events();
    let queue = open(&link.over(&backend), 1).await;
    queue.schedule(&1).await.expect("scheduled");
    let seen = Seen::default();
    let tell = seen.clone();
    let start = tokio::time::Instant::now();
    let worker = queue.worker().hold(SECS(10)).observer(observer).start(move |task: Task<u64>| {
        let tell = tell.clone();
        async move {
            task.cancelled().await;
            tell.push(start.elapsed());
        }
    });
    let worker = worker.await.expect("starts");
    link.no_renewals.store(true, Ordering::Relaxed);
    seen.reach(1).await;
    let at = seen.all()[0];
    assert!(at >= SECS(8) && at < SECS(8) + MS(10), "a fifth before others can have it: {at:?}");
    assert!(events.all().iter().any(|event| event.starts_with("ClaimsLost")));
    eventually(|| worker.report().done == 1, "nobody else had it: it holds").await;
    assert_eq!(worker.shutdown().await.stale, 0);
}

#[tokio::test(start_paused = true)]
async fn what_comes_too_late_is_told_and_changes_nothing() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let linked = open(&link.over(&backend), 1).await;
    linked.schedule(&1).id("x").await.expect("scheduled");
    let late =
        linked.worker().concurrency(1).hold(SECS(2)).start(|_: Task<u64>| tokio::time::sleep(SECS(60)));
    let late = late.await.expect("starts");
    link.no_renewals.store(true, Ordering::Relaxed);
    eventually(|| late.progress().running == 1, "it runs").await;
    let queue = open(&backend, 1).await;
    let other = queue.worker().start(|_: Task<u64>| tokio::time::sleep(SECS(100))).await.expect("starts");
    eventually(|| late.report().stale == 1, "stale").await;
    assert_eq!(queue.count().await.expect("counts").claimed, 1, "it is the other's");
    eventually(|| other.report().done == 1, "done").await;
    drop(late);
}

#[tokio::test(start_paused = true)]
async fn who_claims_a_task_that_it_has_in_hand_goes_on_with_it() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    queue.schedule(&1).await.expect("scheduled");
    link.no_renewals.store(true, Ordering::Relaxed);
    let seen = Seen::default();
    let tell = seen.clone();
    let worker = queue.worker().hold(SECS(2)).crash_limit(0).start(move |task: Task<u64>| {
        tell.push(task.payload);
        tokio::time::sleep(SECS(60))
    });
    let worker = worker.await.expect("starts");
    eventually(|| worker.report().done == 1, "done").await;
    assert!(link.calls("claim") > 25, "its claim ran out again and again");
    tokio::time::sleep(SECS(60)).await;
    assert_eq!((seen.len(), worker.shutdown().await.stale), (1, 0));
    assert_eq!(queue.count().await.expect("counts").claimed, 0);
}

#[tokio::test(start_paused = true)]
async fn lost_replies_cost_time_and_no_task() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 2).await;
    link.lose_claims.store(2, Ordering::Relaxed);
    link.lose_settlements.store(2, Ordering::Relaxed);
    queue.schedule_all((0..40).map(|_| TaskRecord::new(&1))).await;
    let seen = Seen::default();
    let tell = seen.clone();
    let worker = queue.worker().hold(SECS(5)).start(move |task: Task<u64>| {
        tell.push(task.id().clone());
        async {}
    });
    let worker = worker.await.expect("starts");
    seen.reach(40).await;
    eventually(|| worker.progress().running == 0, "all are settled").await;
    let mut ids = seen.all();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 40, "each at least once");
    assert_eq!(seen.len(), 40, "and none twice: claims that nobody worked on ran out");
    let counts = queue.count().await.expect("counts");
    assert_eq!((counts.waiting.total, counts.claimed, counts.dead), (0, 0, 0));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_ends_nothing() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let (observer, events) = events();
    let queue = open(&link.over(&backend), 1).await;
    let worker = queue.worker().observer(observer).start(|_: Task<u64>| tokio::time::sleep(SECS(1)));
    let worker = worker.await.expect("starts");
    queue.schedule(&1).await.expect("scheduled");
    eventually(|| worker.progress().running == 1, "it runs").await;
    link.away.store(true, Ordering::Relaxed);
    tokio::time::sleep(SECS(120)).await;
    let failing = worker.progress().failing;
    assert!(failing.iter().any(|failing| failing.operation == "settle"), "{failing:?}");
    assert!(!worker.progress().is_ready());
    queue.schedule(&2).await.expect("scheduled");
    link.away.store(false, Ordering::Relaxed);
    eventually(|| worker.report().done >= 2, "all is done").await;
    eventually(|| worker.progress().failing.is_empty(), "nothing fails any more").await;
    let told = |what: &str| events.all().iter().any(|event| event.starts_with(what));
    assert!(told("Failing") && told("Recovered"));
    link.away.store(true, Ordering::Relaxed);
    tokio::time::timeout(SECS(40), worker.shutdown()).await.expect("it ends in time without a server, too");
}

#[tokio::test(start_paused = true)]
async fn a_dead_task_that_cannot_be_kept_does_not_keep_others_from_being_done() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    link.no_dead.store(true, Ordering::Relaxed);
    let numbers: Vec<u64> = (0..30).collect();
    queue.schedule_all(numbers.iter().map(TaskRecord::new)).await;
    let worker = queue
        .worker()
        .retry(Never)
        .concurrency(8)
        .start(|task: Task<u64>| async move { if task.payload % 10 == 3 { Err("no") } else { Ok(()) } });
    let worker = worker.await.expect("starts");
    eventually(|| worker.report().done == 27, "the others are done").await;
    assert_eq!(
        (worker.progress().running, worker.report().dead),
        (3, 0),
        "they wait for somebody to mend it"
    );
    link.no_dead.store(false, Ordering::Relaxed);
    eventually(|| worker.report().dead == 3, "kept").await;
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn the_check_is_asked_after_a_shutdown_that_dropped_the_handler_and_no_attempt_is_used() {
    let queue = queue().await;
    queue.schedule(&7).id("dropped").await.expect("scheduled");
    let begun = Seen::default();
    let worker = queue.worker().concurrency(1).start({
        let begun = begun.clone();
        move |task: Task<u64>| {
            begun.push(task.payload);
            std::future::pending::<()>()
        }
    });
    let worker = worker.await.expect("starts");
    begun.reach(1).await;
    queue.schedule(&8).id("not begun").await.expect("scheduled");
    worker.shutdown_within(Duration::ZERO).await;

    let (checked, worked) = (Seen::default(), Seen::default());
    let worker = queue.worker().retry(Fixed::new(SECS(1)).attempts(1)).check({
        let checked = checked.clone();
        move |task: Task<u64>| {
            checked.push(task.payload);
            async { Ok::<_, String>(Check::Run) }
        }
    });
    let worker = worker.start({
        let worked = worked.clone();
        move |task: Task<u64>| {
            let failures =
                task.history().failures().iter().map(|it| (it.attempt, it.error.clone())).collect::<Vec<_>>();
            worked.push((task.payload, task.attempt(), task.crashes(), failures));
            async {}
        }
    });
    let worker = worker.await.expect("starts");
    worked.reach(2).await;
    worker.shutdown().await;
    let mut worked = worked.all();
    worked.sort();
    let told = vec![(1, "the worker ended before the handler did".to_owned())];
    assert_eq!((checked.all(), worked), (vec![7], vec![(7, 1, 0, told), (8, 1, 0, vec![])]));
}

#[tokio::test(start_paused = true)]
async fn the_check_is_asked_before_a_task_is_worked_on_again() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&backend, 1).await;
    let numbers = [1, 2, 3, 4, 5];
    queue.schedule_all(numbers.iter().map(TaskRecord::new)).await;
    let (dead, begun) = stuck(&backend, &link, 1).await;
    begun.reach(5).await;
    link.cut();
    queue.schedule(&6).await.expect("scheduled");
    let (checked, worked) = (Seen::default(), Seen::default());
    let (check, work) = (checked.clone(), worked.clone());
    let worker = queue.worker().retry(Fixed::new(MS(5)).attempts(3));
    let worker = worker.check(move |task: Task<u64>| {
        check.push((task.payload, task.crashes()));
        async move {
            match task.payload {
                1 => Ok(Check::Complete),
                2 => Ok(Check::DeadLetter("the customer is gone".into())),
                3 => Err("no answer"),
                4 if task.crashes() > 0 => Ok(Check::Snooze(SECS(5))),
                _ => Ok(Check::Run),
            }
        }
    });
    let worker =
        worker.start(move |task: Task<u64>| {
            work.push((task.payload, task.attempt()));
            async move {
                if task.payload == 6 && task.attempt() == 1 { Outcome::retry("no") } else { Outcome::Ack }
            }
        });
    let worker = worker.await.expect("starts");
    worked.reach(4).await;
    eventually(|| worker.report().dead == 2, "two are given up").await;
    let mut all = worked.all();
    all.sort_unstable();
    assert_eq!(all, [(4, 1), (5, 1), (6, 1), (6, 2)]);
    let asked = |payload| checked.all().iter().filter(|(asked, _)| *asked == payload).count();
    assert_eq!(
        (asked(1), asked(2), asked(3), asked(4), asked(5), asked(6)),
        (1, 1, 3, 2, 1, 1),
        "what was put off may still be done"
    );
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.snoozed), (4, 1));
    drop(dead);
}

/// So many workers, each behind the one link that counts; and so many tasks, one every 100 ms.
async fn commands(workers: usize, tasks: u64) -> usize {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    let seen = Seen::default();
    let mut pool = Vec::new();
    for _ in 0..workers {
        let tell = seen.clone();
        let worker = queue.worker().concurrency(4).start(move |task: Task<u64>| {
            tell.push(task.payload);
            async {}
        });
        pool.push(worker.await.expect("starts"));
    }
    tokio::time::sleep(SECS(1)).await;
    for number in 0..tasks {
        queue.schedule(&number).delay(MS(1_000 + number * 100)).await.expect("scheduled");
    }
    let before = link.commands();
    seen.reach(usize::try_from(tasks).expect("few")).await;
    assert_eq!(seen.len() as u64, tasks, "each once");
    link.commands() - before
}

#[tokio::test(start_paused = true)]
async fn many_workers_cost_hardly_more_than_one() {
    let (one, many) = (commands(1, 300).await, commands(64, 300).await);
    assert!(one <= 2 * 300 + 50, "a claim and a settlement each: {one}");
    assert!(many <= 3 * 300 + 64 * 10, "no herd: {many}, {one} with one worker");
}

#[tokio::test(start_paused = true)]
async fn idle_workers_ask_for_little() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 4).await;
    let worker = queue.worker().start(async |_: Task<u64>| ()).await.expect("starts");
    tokio::time::sleep(SECS(10)).await;
    let before = link.calls("claim") + link.calls("wait");
    tokio::time::sleep(SECS(600)).await;
    let commands = link.calls("claim") + link.calls("wait") - before;
    let per_second = commands as f64 / 600.0 / 4.0;
    assert!(per_second <= 0.2, "{per_second} commands a second and shard");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_not_heard_cost_at_most_the_longest_sleep() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    link.deaf.store(true, Ordering::Relaxed);
    let queue = open(&link.over(&backend), 1).await;
    let worker = queue.worker().longest_sleep(SECS(3)).start(async |_: Task<u64>| ()).await.expect("starts");
    tokio::time::sleep(MS(100)).await;
    let start = tokio::time::Instant::now();
    queue.schedule(&1).await.expect("scheduled");
    eventually(|| worker.report().done == 1, "done").await;
    assert!(start.elapsed() <= SECS(3) + MS(5), "{:?}", start.elapsed());
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_lets_another_one_look_out() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    let busy = queue.worker().concurrency(1).start(|_: Task<u64>| tokio::time::sleep(SECS(1_000)));
    let busy = busy.await.expect("starts");
    tokio::time::sleep(SECS(1)).await;
    let other = queue.worker().concurrency(1).start(async |_: Task<u64>| ()).await.expect("starts");
    // Both are free: one of them has this, and the other one what follows.
    queue.schedule(&1).delay(SECS(40)).await.expect("scheduled");
    queue.schedule(&2).delay(SECS(41)).await.expect("scheduled");
    queue.schedule(&3).delay(SECS(42)).await.expect("scheduled");
    tokio::time::sleep(SECS(41) + MS(500)).await;
    let waiting = queue.count().await.expect("counts").waiting;
    assert_eq!(waiting.overdue, 0, "nothing that is due waits while somebody is free");
    drop((busy, other));
}
