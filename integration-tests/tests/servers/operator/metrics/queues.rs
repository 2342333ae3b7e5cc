//! Delay queues, what recurs, and what has lost its body when it is due.

use millstream::DeadLetterRetention;
use millstream::delay::{DelayQueue, Shard, Task, Worker};
use millstream_core::tasks::ClaimRequest;
use millstream_core::{Backend, Timestamp};

use super::hands::Gate;
use super::*;

const MAILS: &[(&str, &str)] = &[("queue", "mails"), ("shard", "0")];
const QUEUE: &[(&str, &str)] = &[("queue", "mails")];
const HOUR: Duration = Duration::from_secs(3_600);

async fn mails(scene: &Fixture) -> DelayQueue<u64> {
    let mails = DelayQueue::<u64>::new("mails").observer(scene.metrics.clone());
    mails.open(scene.mq.backend()).await.expect("a queue")
}

/// A worker handles one task, and drops one of two dead ones.
pub(super) async fn one_dead_task_is_dropped(scene: &Fixture) -> Worker {
    let mails = DelayQueue::<u64>::new("mails").observer(scene.metrics.clone());
    let mails = mails.dead_letter_retention(DeadLetterRetention::length(1));
    let mails = mails.open(scene.mq.backend()).await.expect("a queue");
    let worker = mails.worker().start(async |task: Task<u64>| match task.payload {
        0 => Outcome::dead_letter("no use"),
        _ => Outcome::Ack,
    });
    let worker = worker.await.expect("a worker");
    for number in [1, 0, 0] {
        mails.schedule(&number).await.expect("scheduled");
    }
    worker
}

fn shard() -> Shard {
    Shard::new("mails".parse().expect("a name"), 0)
}

/// A worker claims one task, and dies.
async fn claim_and_die(backend: &Backend) {
    claim_begin_and_die(backend, "dead", false).await;
}

/// The same; its handler has begun or not, as far as it says.
async fn claim_begin_and_die(backend: &Backend, worker: &str, begun: bool) {
    let hold = Duration::from_millis(300);
    let ask = ClaimRequest {
        worker: worker.into(),
        limit: 1,
        hold,
        crash_limit: 0,
        longest_sleep: HOUR,
        continuity: millstream_core::Continuity::assured(),
    };
    let claims = async || {
        let tasks = backend.tasks().expect("delay queues").claim(&shard(), &ask).await.expect("asked").tasks;
        let claims: Vec<_> = tasks.into_iter().map(|task| (task.id, task.token)).collect();
        backend
            .tasks()
            .expect("delay queues")
            .extend(&shard(), &claims, hold, begun)
            .await
            .expect("extended");
        !claims.is_empty()
    };
    eventually(claims, "it is claimed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_wait_for_a_limit_are_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let mails = mails(&scene).await;
    let gate = Gate::new();
    let at_gate = gate.clone();
    let worker = mails.worker().limit(Limit::global("bank")).start(move |_: Task<u64>| {
        let gate = at_gate.clone();
        async move { gate.pass().await }
    });
    let worker = worker.await.expect("started");
    for number in 0..4 {
        mails.schedule(&number).await.expect("scheduled");
    }
    let waiting = &[("limit", "bank"), ("queue", "mails")][..];
    gate.came(1).await;
    let all = &[("queue_limit_waiting", waiting, 3.0), ("tasks_running", QUEUE, 4.0)];
    scene.sees("three wait for one", all).await;
    gate.open.add_permits(4);
    let none = &[("queue_limit_waiting", waiting, 0.0), ("tasks_running", QUEUE, 0.0)];
    scene.sees("all is done, and nothing waits", none).await;
    assert_eq!(worker.shutdown().await.done, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let mails = mails(&scene).await;
    for number in 0..5 {
        mails.schedule(&number).await.expect("scheduled");
    }
    for number in 5..7 {
        mails.schedule(&number).delay(HOUR).await.expect("scheduled");
    }
    let waiting =
        [("tasks_waiting", MAILS, 7.0), ("tasks_overdue", MAILS, 5.0), ("tasks_claimed", MAILS, 0.0)];
    scene.sees("all wait", &waiting).await;

    let gate = Gate::new();
    let wait = gate.clone();
    let worker = mails.worker().concurrency(2).retry(Fixed::new(Duration::from_millis(10)).attempts(3));
    let worker = worker.start(move |task: Task<u64>| {
        let wait = wait.clone();
        async move {
            wait.pass().await;
            match task.payload {
                1 if task.attempt() == 1 => Outcome::retry("once"),
                2 => Outcome::dead_letter("no use"),
                3 if wait.once() => Outcome::Snooze(Duration::from_millis(10)),
                _ => Outcome::Ack,
            }
        }
    });
    let worker = worker.await.expect("started");
    gate.came(2).await;
    scene
        .sees(
            "two are in hand",
            &[
                ("tasks_running", QUEUE, 2.0),
                ("tasks_claimed", MAILS, 2.0),
                ("tasks_expired", MAILS, 0.0),
                ("tasks_waiting", MAILS, 5.0),
                ("tasks_overdue", MAILS, 3.0),
                ("worker_ready", QUEUE, 1.0),
                ("worker_live", QUEUE, 1.0),
            ],
        )
        .await;
    gate.open.add_permits(100);
    let worked = |result| [("queue", "mails"), ("shard", "0"), ("result", result)];
    let took = |result| [("queue", "mails"), ("result", result)];
    let found = scene
        .sees(
            "five have come to an end",
            &[
                ("tasks_worked_total", &worked("acked"), 4.0),
                ("tasks_worked_total", &worked("retried"), 1.0),
                ("tasks_worked_total", &worked("dead"), 1.0),
                ("tasks_worked_total", &worked("snoozed"), 1.0),
                ("task_claims_total", MAILS, 7.0),
                ("task_reclaims_total", MAILS, 0.0),
                ("tasks_crashed_total", MAILS, 0.0),
                ("tasks_late_acks_total", MAILS, 0.0),
                ("task_claims_lost_total", MAILS, 0.0),
                ("task_handler_seconds_count", &took("acked"), 4.0),
                ("task_handler_seconds_count", QUEUE, 7.0),
                ("tasks_running", QUEUE, 0.0),
                ("tasks_claimed", MAILS, 0.0),
                ("tasks_waiting", MAILS, 2.0),
                ("tasks_overdue", MAILS, 0.0),
                ("tasks_dead", MAILS, 1.0),
            ],
        )
        .await;
    // Once for each first attempt; one that is snoozed has its first again.
    let late = found.sum("millstream_delay_error_seconds_count", QUEUE);
    assert_eq!(late, Some(6.0));
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.retried, report.dead), (4, 1, 1), "the worker counts the same");
    let ready = scene.scrape().await.sum("millstream_worker_ready", QUEUE);
    assert!(ready.is_some_and(f64::is_nan), "what has ended says nothing: {ready:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_run_out_are_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let mails = mails(&scene).await;
    mails.schedule(&1).id("a").await.expect("scheduled");
    claim_and_die(scene.mq.backend()).await;
    let nobody =
        [("tasks_claimed", MAILS, 1.0), ("tasks_expired", MAILS, 1.0), ("tasks_waiting", MAILS, 0.0)];
    scene.sees("a dead worker has it", &nobody).await;

    let gate = Gate::new();
    let wait = gate.clone();
    let worker = mails.worker().hold(Duration::from_secs(2)).start(move |_: Task<u64>| {
        let wait = wait.clone();
        async move { wait.pass().await }
    });
    let worker = worker.await.expect("started");
    gate.came(1).await;
    scene
        .sees(
            "another one has it",
            &[
                ("task_claims_total", MAILS, 1.0),
                ("task_reclaims_total", MAILS, 1.0),
                ("tasks_expired", MAILS, 0.0),
                ("task_claims_lost_total", MAILS, 0.0),
            ],
        )
        .await;
    redis.pause();
    let lost = |scrape: &Scrape| scrape.sum("millstream_task_claims_lost_total", MAILS) == Some(1.0);
    scene.until("its claim runs out", lost).await;
    redis.resume();
    gate.open.add_permits(1);
    let done = [("queue", "mails"), ("result", "acked")];
    scene
        .sees(
            "it is done all the same",
            &[
                ("tasks_worked_total", &done, 1.0),
                ("task_claims_lost_total", MAILS, 1.0),
                ("tasks_claimed", MAILS, 0.0),
                ("tasks_late_acks_total", MAILS, 0.0),
            ],
        )
        .await;

    // Somebody takes a task out of its hands.
    mails.schedule(&2).id("b").await.expect("scheduled");
    gate.came(1).await;
    assert_eq!(redis.cli(&["ZREM", scene.keys.claims(&shard()).as_str(), "b"]), "1");
    gate.open.add_permits(1);
    scene
        .sees(
            "what is said of it comes too late",
            &[("tasks_late_acks_total", MAILS, 1.0), ("tasks_worked_total", &done, 2.0)],
        )
        .await;
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_over_which_processes_die_is_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let mails = mails(&scene).await;
    mails.schedule(&1).id("killer").await.expect("scheduled");
    for worker in ["one", "another"] {
        claim_begin_and_die(scene.mq.backend(), worker, true).await;
    }
    // One from between the two claims would show the same.
    scene.samples_anew().await;
    scene.sees("its worker is dead", &[("tasks_expired", MAILS, 1.0)]).await;
    let worker = mails.worker().crash_limit(2).hold(Duration::from_secs(1));
    let worker = worker.start(async |_: Task<u64>| {}).await.expect("started");
    scene
        .sees(
            "it is given up",
            &[
                ("tasks_crashed_total", MAILS, 1.0),
                ("task_claims_total", MAILS, 0.0),
                ("tasks_dead", MAILS, 1.0),
                ("tasks_expired", MAILS, 0.0),
            ],
        )
        .await;
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_recurs_is_counted() {
    const PERIOD: Duration = Duration::from_millis(500);
    let scene = Fixture::at(&shared_url()).await;
    let mails = mails(&scene).await;
    let payload = 1;
    mails.recurring("daily").every(PERIOD).grace(PERIOD).payload(&payload).await.expect("put");
    let first = mails.recurring_list().await.expect("listed")[0].next.expect("a time");
    let due: Arc<Mutex<BTreeSet<Timestamp>>> = Arc::default();
    // Nobody is there for a while.
    tokio::time::sleep(PERIOD * 4).await;
    let tell = due.clone();
    let worker = mails.worker().start(move |task: Task<u64>| {
        tell.lock().expect("lock").insert(task.due());
        async {}
    });
    let worker = worker.await.expect("started");
    eventually(async || due.lock().expect("lock").len() >= 4, "it has fired").await;
    assert!(mails.recurring("daily").pause().await.expect("paused"));
    let none_left = [("tasks_waiting", MAILS, 0.0), ("tasks_claimed", MAILS, 0.0)];
    scene.sees("all of it is done", &none_left).await;
    let due = due.lock().expect("lock").clone();
    let last = *due.last().expect("some");
    let times = last.saturating_duration_since(first).as_millis() / PERIOD.as_millis() + 1;
    let (fired, missed) = (due.len() as f64, times as f64 - due.len() as f64);
    assert!(missed >= 1.0, "{times} times, {fired} fired");
    scene
        .sees(
            "each time fired or was missed",
            &[("fired_total", QUEUE, fired), ("missed_total", QUEUE, missed)],
        )
        .await;
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_lost_its_body_is_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    for number in 0..2 {
        let sent = producer.send(&number).delay(Duration::from_millis(1)).partition(1);
        sent.await.expect("sent for later");
    }
    let tp = TopicPartition::new("orders".parse().expect("name"), 1);
    let items = scene.keys.delay_items(&tp.into());
    let id = redis.cli(&["HRANDFIELD", items.as_str()]);
    assert_eq!(redis.cli(&["HDEL", items.as_str(), &id]), "1");
    let consumer = scene.mq.consumer(ORDERS, "billing").start(async |_: Delivery<u64>| {}).await;
    let consumer = consumer.expect("started");
    let at = &[("topic", "orders"), ("partition", "1")][..];
    scene
        .sees(
            "one came, one was lost",
            &[
                ("orphans_total", at, 1.0),
                ("promoted_total", at, 1.0),
                ("acked_total", at, 1.0),
                ("delayed", at, 0.0),
            ],
        )
        .await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_tasks_that_retention_drops_are_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let kept = DeadLetterRetention::length(2).and_age(HOUR);
    let mails = DelayQueue::<u64>::new("mails").observer(scene.metrics.clone()).dead_letter_retention(kept);
    let mails = mails.open(scene.mq.backend()).await.expect("a queue");
    for number in 0..12 {
        mails.schedule(&number).await.expect("scheduled");
    }
    let worker =
        mails.worker().start(async |_: Task<u64>| Outcome::dead_letter("no use")).await.expect("started");
    let aged = [("queue", "mails"), ("shard", "0"), ("reason", "age")];
    let excess = [("queue", "mails"), ("shard", "0"), ("reason", "length")];
    let figures: [figures::Figure<'_>; 2] =
        [("tasks_dead", MAILS, 2.0), ("dead_tasks_dropped_total", &excess, 10.0)];
    scene.sees("those that are too many are dropped", &figures).await;
    // The rest by an operator, for its age.
    let none = DeadLetterRetention::age(Duration::from_millis(1));
    let admin = scene.mq.admin();
    let dead = admin.dead_tasks(&"mails".parse().expect("a name")).await.expect("the queue");
    let all_are_old = async || dead.trim(none).await.is_ok() && dead.count().await.expect("counted") == 0;
    eventually(all_are_old, "the last ones are dropped").await;
    worker.shutdown().await;
    let observed = scene.until("operators are counted by their process", |scrape| {
        scrape.sum("millstream_dead_tasks_dropped_total", &aged) == Some(2.0)
    });
    assert_eq!(observed.await.sum("millstream_dead_tasks_dropped_total", &excess), Some(10.0));
}
