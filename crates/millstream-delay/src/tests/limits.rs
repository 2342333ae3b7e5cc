//! Limits of workers: units and tokens that they share, what waits without a handler, breakers, and what is lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::{Backend, Capability, ErrorKind, Outcome, Rate};
use millstream_engine::{Breaker, Limit};
use tokio::time::{Instant, sleep};

use crate::tests::support::link::Link;
use crate::tests::support::{MS, SECS, Seen, eventually, memory, open};
use crate::{DelayQueue, Task, Worker, WorkerBuilder};

fn tenant() -> Limit {
    Limit::by_header("tenant", "tenant")
}

fn tenant_of(task: &Task<u64>) -> String {
    let tenant = task.headers().get("tenant").expect("a tenant");
    String::from_utf8_lossy(tenant).into_owned()
}

/// What runs, by tenant, and the most of each that ran at once.
#[derive(Clone, Default)]
struct Course {
    begun: Seen<(u64, Instant)>,
    done: Seen<u64>,
    running: Arc<Mutex<BTreeMap<String, (usize, usize)>>>,
}

impl Course {
    fn most(&self, tenant: &str) -> usize {
        self.running.lock().expect("lock").get(tenant).map_or(0, |(_, most)| *most)
    }

    async fn handle(&self, task: &Task<u64>, takes: Duration) {
        let tenant = tenant_of(task);
        {
            let mut running = self.running.lock().expect("lock");
            let (now, most) = running.entry(tenant.clone()).or_default();
            *now += 1;
            *most = (*most).max(*now);
        }
        self.begun.push((task.payload, Instant::now()));
        sleep(takes).await;
        self.running.lock().expect("lock").entry(tenant).or_default().0 -= 1;
        self.done.push(task.payload);
    }

    async fn start(&self, worker: WorkerBuilder<u64>, takes: Duration) -> Worker {
        let course = self.clone();
        let handler = move |task: Task<u64>| {
            let course = course.clone();
            async move { course.handle(&task, takes).await }
        };
        worker.start(handler).await.expect("started")
    }
}

/// Schedules tasks from `first` on, each due a millisecond after the one before, of tenants in turn.
async fn schedule(queue: &DelayQueue<u64>, first: u64, count: u64, tenants: &[&str]) {
    for n in first..first + count {
        let tenant = tenants[(n % tenants.len() as u64) as usize];
        queue.schedule(&n).header("tenant", tenant).delay(MS(n)).await.expect("scheduled");
    }
}

async fn all_free(backend: &Backend) {
    let permits = backend.permits().expect("permits");
    let deadline = Instant::now() + SECS(60);
    loop {
        let usage = permits.usage(0, 1_000).await.expect("usage").keys;
        if usage.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "units that nobody uses: {usage:?}");
        sleep(MS(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn tenants_have_no_more_at_once_over_workers_and_shards_and_others_pass() {
    let backend = memory();
    let queue = open(&backend, 3).await;
    schedule(&queue, 0, 60, &["flood"]).await;
    schedule(&queue, 60, 4, &["rare"]).await;
    let course = Course::default();
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(course.start(queue.worker().concurrency(4).limit(tenant().at_most(2)), SECS(1)).await);
    }
    let begun = Instant::now();
    course.done.reach(64).await;
    assert_eq!((course.most("flood"), course.most("rare")), (2, 2));
    // Two at once: 30 seconds, and the other tenant did not wait for them.
    assert!(begun.elapsed() < SECS(33), "{:?}", begun.elapsed());
    let rare = course.begun.all().into_iter().filter(|(n, _)| *n >= 60).map(|(_, at)| at).max();
    assert!(rare.expect("they began") < begun + SECS(5), "it waited behind the flood");
    for worker in workers {
        assert_eq!(worker.shutdown().await.handed_back, 0);
    }
    all_free(&backend).await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_has_no_room_and_only_so_much_is_claimed() {
    let queue = open(&memory(), 1).await;
    schedule(&queue, 0, 100, &["flood"]).await;
    let course = Course::default();
    let builder = queue.worker().concurrency(8).max_blocked(20).limit(tenant());
    let worker = course.start(builder, SECS(60)).await;
    sleep(SECS(5)).await;
    let progress = worker.progress();
    // One runs. Those of the last claim may be beyond.
    let waiting: usize = progress.waiting.iter().map(|(_, waiting)| waiting).sum();
    assert!((20..=27).contains(&waiting), "{progress:?}");
    assert_eq!((progress.running, course.begun.len()), (waiting + 1, 1));
    let another = course.start(queue.worker().concurrency(8).limit(tenant()), SECS(60)).await;
    sleep(SECS(1)).await;
    assert_eq!(another.progress().waiting[0].1, 99 - waiting, "it gets the others");
    drop((worker, another));
}

#[tokio::test(start_paused = true)]
async fn units_that_a_busy_worker_cannot_use_go_to_another_one() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    let course = Course::default();
    let busy = queue.worker().concurrency(1).limit(tenant());
    let handler = {
        let course = course.clone();
        move |task: Task<u64>| {
            let course = course.clone();
            async move {
                let hour = tenant_of(&task) == "b";
                course.handle(&task, if hour { SECS(3_600) } else { SECS(10) }).await;
            }
        }
    };
    // One of `a` runs elsewhere; then one of `a` waits here, and one of `b` has the only room for an hour.
    let first = queue.worker().concurrency(1).limit(tenant()).start(handler.clone()).await.expect("started");
    schedule(&queue, 0, 1, &["a"]).await;
    course.begun.reach(1).await;
    let busy = busy.start(handler.clone()).await.expect("started");
    queue.schedule(&1).header("tenant", "a").await.expect("scheduled");
    eventually(|| busy.progress().waiting[0].1 == 1, "it waits").await;
    queue.schedule(&2).header("tenant", "b").await.expect("scheduled");
    course.begun.reach(2).await;
    queue.schedule(&3).header("tenant", "a").await.expect("scheduled");
    course.done.reach(2).await;
    assert_eq!(course.done.all(), [0, 3], "the other worker goes on");
    first.shutdown().await;
    busy.shutdown_within(MS(0)).await;
}

/// A worker whose handlers are always busy with tasks that need nothing begins those that wait for limits all the same.
#[tokio::test(start_paused = true)]
async fn what_was_granted_comes_before_what_is_claimed() {
    let breaker = || Breaker::new().calls(2).open_for(SECS(2));
    let limits = [
        tenant(),
        tenant().rate(Rate::per_second(10)),
        tenant().rate(Rate::per_second(1)),
        Limit::by_header("tenant", "tenant").breaker(breaker()),
    ];
    for (nth, limit) in limits.into_iter().enumerate() {
        let queue = open(&memory(), 3).await;
        // These are due first. Those that fail are due after the others.
        let (limited, done) = if nth == 3 { (12, 3) } else { (5, 5) };
        schedule(&queue, 0, limited, &["a"]).await;
        for n in 1_000..1_400 {
            queue.schedule(&n).delay(MS(20)).await.expect("scheduled");
        }
        let (begun, failed) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
        let (start, tell, fails) = (Instant::now(), begun.clone(), failed.clone());
        let worker = queue.worker().concurrency(4).limit(limit).start(move |task: Task<u64>| {
            let (tell, fails) = (tell.clone(), fails.clone());
            async move {
                sleep(SECS(1)).await;
                // The service is away for the first calls.
                if task.payload < 1_000 && nth == 3 && start.elapsed() < SECS(10) {
                    fails.fetch_add(1, Ordering::Relaxed);
                    return Outcome::retry_after(MS(10), "503");
                }
                if task.payload < 1_000 {
                    tell.push(start.elapsed());
                }
                Outcome::Ack
            }
        });
        let worker = worker.await.expect("started");
        begun.reach(done).await;
        let last = begun.all()[done - 1];
        assert!(last < SECS(25), "{nth}: {last:?}");
        assert!(worker.report().done < 300, "{nth}: it was busy with others");
        assert_eq!(failed.load(Ordering::Relaxed) > 0, nth == 3);
        worker.shutdown_within(SECS(2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_without_a_wait_gathers_what_is_granted_together() {
    let queue = open(&memory(), 1).await;
    for n in 0..200 {
        queue.schedule(&n).header("tenant", "a").await.expect("scheduled");
    }
    let sizes = Seen::default();
    let tell = sizes.clone();
    let rate = tenant().rate(Rate::per_second(100).burst(50));
    let worker = queue.worker().concurrency(50).limit(rate).label("mails/eu:1");
    let worker = worker.start_batch((50, MS(0)), move |tasks: Vec<Task<u64>>| {
        tell.push(tasks.len());
        async {}
    });
    let worker = worker.await.expect("started");
    eventually(|| worker.report().done == 200, "all are done").await;
    assert!(sizes.all().iter().any(|size| *size >= 10), "{:?}", sizes.all());
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn recurring_tasks_fire_while_too_many_wait() {
    let queue = open(&memory(), 1).await;
    queue.recurring("each minute").every(SECS(60)).payload(&9).await.expect("recurs");
    schedule(&queue, 0, 20, &["a"]).await;
    let course = Course::default();
    let closed = tenant().at_most(0);
    let worker = course.start(queue.worker().concurrency(4).max_blocked(10).limit(closed), MS(1)).await;
    sleep(SECS(601)).await;
    let counts = queue.count().await.expect("counts");
    assert_eq!(course.begun.len(), 0);
    assert!(counts.waiting.total + counts.claimed >= 29, "{counts:?}");
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_counts_as_no_crash_of_what_waits() {
    let hold = SECS(10);
    for away in [hold / 2, hold, hold * 2] {
        let (backend, crashes) = (memory(), Seen::default());
        let links = [Arc::new(Link::default()), Arc::new(Link::default())];
        let mut workers = Vec::new();
        for link in &links {
            let queue = open(&link.over(&backend), 1).await;
            let tell = crashes.clone();
            let worker =
                queue.worker().hold(hold).concurrency(2).limit(tenant()).start(move |task: Task<u64>| {
                    tell.push((task.payload, task.crashes(), task.attempt()));
                    async { sleep(SECS(4)).await }
                });
            workers.push(worker.await.expect("started"));
        }
        schedule(&open(&backend, 1).await, 0, 12, &["a"]).await;
        crashes.reach(2).await;
        links.iter().for_each(|link| link.away.store(true, Ordering::Relaxed));
        sleep(away).await;
        links.iter().for_each(|link| link.away.store(false, Ordering::Relaxed));
        let done = || workers.iter().map(|worker| worker.report().done).sum::<u64>() == 12;
        eventually(done, "all are done").await;
        let all = crashes.all();
        assert!(all.iter().all(|(_, crashes, attempt)| (*crashes, *attempt) == (0, 1)), "{away:?}: {all:?}");
        for worker in workers {
            worker.shutdown().await;
        }
        all_free(&backend).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_body_counts_by_its_size() {
    let queue = DelayQueue::<String>::new("large").shards(1).open(&memory()).await.expect("opens");
    let body = "x".repeat((1 << 20) - 2);
    for _ in 0..100 {
        queue.schedule(&body).await.expect("scheduled");
    }
    let worker = queue.worker().concurrency(4).limit(Limit::global("one"));
    let worker = worker.start(async |_: Task<String>| sleep(SECS(60)).await).await.expect("started");
    sleep(SECS(5)).await;
    let waiting = worker.progress().waiting[0].1;
    assert!((64..=68).contains(&waiting), "{waiting} of 1 MiB wait");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn tasks_begin_at_a_rate_and_what_is_over_a_quota_is_dropped() {
    let backend = memory();
    let queue = open(&backend, 2).await;
    schedule(&queue, 0, 30, &["a"]).await;
    let course = Course::default();
    let rate = Limit::global("calls").rate(Rate::per_second(5));
    let worker = course.start(queue.worker().limit(rate), MS(1)).await;
    course.done.reach(30).await;
    let at: Vec<_> = course.begun.all().into_iter().map(|(_, at)| at).collect();
    for (nth, first) in at.iter().enumerate() {
        let within = at[nth..].iter().filter(|at| **at < *first + SECS(1)).count();
        assert!(within <= 7, "{within} in a second");
    }
    assert!(at[29] - at[0] < SECS(7), "{:?}", at[29] - at[0]);
    worker.shutdown().await;
    let quota = tenant().quota(Rate::per_day(10));
    schedule(&queue, 0, 25, &["a"]).await;
    let worker = course.start(queue.worker().limit(quota), MS(1)).await;
    eventually(|| worker.report().done + worker.report().discarded == 25, "all are settled").await;
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.discarded, report.dead), (10, 15, 0));
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_what_handlers_call_burns_no_attempts_and_buries_nothing() {
    let queue = open(&memory(), 2).await;
    schedule(&queue, 0, 300, &["a"]).await;
    let (away, failed) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let burned = Arc::new(AtomicUsize::new(0));
    let breaker = Breaker::new().calls(10).open_for(SECS(10));
    let handler = {
        let (away, failed, burned) = (away.clone(), failed.clone(), burned.clone());
        move |task: Task<u64>| {
            let (away, failed, burned) = (away.clone(), failed.clone(), burned.clone());
            async move {
                sleep(MS(20)).await;
                if away.load(Ordering::Relaxed) {
                    failed.fetch_add(1, Ordering::Relaxed);
                    return Outcome::retry("503");
                }
                burned.fetch_add(task.attempt() as usize - 1, Ordering::Relaxed);
                Outcome::Ack
            }
        }
    };
    let builder = queue.worker().limit(Limit::global("payments").breaker(breaker));
    let worker = builder.start(handler).await.expect("started");
    sleep(SECS(600)).await;
    let report = worker.report();
    assert_eq!((report.done, report.dead), (0, 0));
    // Ten opened it, those beside them were in handlers, and one tried every ten seconds.
    let failures = failed.load(Ordering::Relaxed);
    assert!((60..=100).contains(&failures), "{failures} calls failed");
    assert!(report.retried <= 10 + 61, "{report:?}");
    away.store(false, Ordering::Relaxed);
    eventually(|| worker.report().done == 300, "all are done").await;
    let report = worker.shutdown().await;
    assert_eq!((report.dead, burned.load(Ordering::Relaxed) as u64), (0, report.retried));
}

#[tokio::test(start_paused = true)]
async fn an_end_hands_back_what_waits_and_gives_units_back() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    schedule(&queue, 0, 10, &["a"]).await;
    let course = Course::default();
    let worker = course.start(queue.worker().limit(tenant()), SECS(3)).await;
    course.begun.reach(1).await;
    sleep(MS(500)).await;
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.handed_back), (1, 9));
    all_free(&backend).await;
    let second = Course::default();
    let worker = second.start(queue.worker().limit(tenant()), MS(10)).await;
    second.done.reach(9).await;
    assert_eq!(worker.shutdown().await.done, 9);
}

#[tokio::test(start_paused = true)]
async fn what_came_of_a_task_whose_units_were_lost_does_not_count() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    schedule(&queue, 0, 1, &["a"]).await;
    let reasons = Seen::default();
    let tell = reasons.clone();
    let worker = queue.worker().hold(SECS(6)).limit(tenant()).start(move |task: Task<u64>| {
        let tell = tell.clone();
        async move {
            tokio::select! {
                () = task.cancelled() => tell.push((task.attempt(), task.is_cancelled())),
                () = sleep(SECS(20)) => tell.push((task.attempt(), task.is_cancelled())),
            }
        }
    });
    let worker = worker.await.expect("started");
    sleep(SECS(1)).await;
    let permits = backend.permits().expect("permits");
    let usage = permits.usage(0, 10).await.expect("usage").keys;
    while permits.end(&usage[0].held[0].0).await.expect("ended") {}
    reasons.reach(2).await;
    assert_eq!(reasons.all(), [(1, true), (1, false)], "it is no attempt");
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.retried, report.dead), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_units_for_each_of_its_tasks() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    schedule(&queue, 0, 20, &["a", "b", "c"]).await;
    let sizes = Seen::default();
    let tell = sizes.clone();
    let builder = queue.worker().concurrency(20).limit(tenant().at_most(2));
    let worker = builder.start_batch((20, MS(100)), move |tasks: Vec<Task<u64>>| {
        let mut of: BTreeMap<String, usize> = BTreeMap::new();
        for task in &tasks {
            *of.entry(tenant_of(task)).or_default() += 1;
        }
        tell.push((tasks.len(), of.into_values().max().unwrap_or_default()));
        async { sleep(SECS(1)).await }
    });
    let worker = worker.await.expect("started");
    eventually(|| worker.report().done == 20, "all are done").await;
    assert!(sizes.all().iter().all(|(size, of_one)| *size <= 6 && *of_one <= 2), "{:?}", sizes.all());
    assert!(sizes.all().iter().any(|(size, _)| *size == 6), "{:?}", sizes.all());
    worker.shutdown().await;
    all_free(&backend).await;
}

#[tokio::test(start_paused = true)]
async fn limits_that_cannot_work_are_refused_at_the_start() {
    let queue = open(&memory(), 1).await;
    let twice = queue.worker().limit(Limit::global("a")).limit(Limit::by_key("a"));
    let refused = twice.start(async |_: Task<u64>| {}).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    let cancels = queue.worker().limit(tenant().or_cancel());
    let refused = cancels.start(async |_: Task<u64>| {}).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    let without = open(&memory().without(Capability::Permits), 1).await;
    let refused = without.worker().limit(tenant()).start(async |_: Task<u64>| {}).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
