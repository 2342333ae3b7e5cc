//! What handlers of tasks have in common with those of messages: layers, extractors, batches, operations that take effect once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::idempotency::{Begun, Idempotency, Marker, Operation};
use millstream_core::policy::{Fixed, Never};
use millstream_core::tasks::ClaimRequest;
use millstream_core::{Check, Continuity, Error, ErrorKind, Outcome, Result};
use millstream_engine::extract::{Attempt, Payload, State, with_state};
use tokio::time::Instant;

use millstream_engine::{Answer, Delivery, Idempotent, Layer, Next, Timeout};

use crate::tests::support::{MS, SECS, Seen, events, eventually, memory, open, queue};
use crate::{DelayQueue, Task};

/// Adds to the payload, and tells what it sees.
struct Adds(u64, Seen<String>);

#[async_trait]
impl Layer for Adds {
    async fn handle(&self, mut delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        let payload: u64 = std::str::from_utf8(&delivery.payload).expect("text").parse().expect("a number");
        let (place, id) = (delivery.topic_partition().clone(), delivery.message_id());
        self.1.push(format!("{payload} {place} {} {id}", delivery.group()));
        delivery.payload = (payload + self.0).to_string().into();
        let answer = next.run(delivery).await;
        self.1.push(format!("done {}", answer.is_done()));
        answer
    }
}

#[tokio::test(start_paused = true)]
async fn layers_are_around_the_handler_of_tasks_and_see_the_queue() {
    let (queue, seen, told) = (queue().await, Seen::default(), Seen::default());
    queue.schedule(&1).id("one").delay(MS(0)).await.expect("scheduled");
    let tell = seen.clone();
    let worker = queue.worker().layer(Adds(10, told.clone())).layer(Adds(100, told.clone()));
    let worker = worker.start(move |task: Task<u64>| {
        tell.push((task.id().to_string(), task.payload));
        async {}
    });
    let worker = worker.await.expect("starts");
    seen.reach(1).await;
    assert_eq!(worker.shutdown().await.done, 1);
    assert_eq!(seen.all(), [("one".to_owned(), 111)]);
    let place = "q/0 @tasks one";
    assert_eq!(
        told.all(),
        [format!("1 {place}"), format!("11 {place}"), "done true".into(), "done true".into()]
    );
}

#[tokio::test(start_paused = true)]
async fn a_layer_limits_the_time_of_a_handler_of_tasks() {
    let queue = queue().await;
    queue.schedule(&1).delay(MS(0)).await.expect("scheduled");
    let worker = queue.worker().retry(Never).layer(Timeout::new(SECS(2)));
    let worker = worker.start(async |_: Task<u64>| tokio::time::sleep(SECS(3_600)).await);
    assert_eq!(worker.await.expect("starts").drain().await.dead, 1);
    let dead = queue.dead().list(10).await.expect("listed");
    assert_eq!(dead[0].error, "handler timed out after 2s");
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_tasks_has_parts_of_the_task_and_a_state_as_arguments() {
    async fn add(
        State(sum): State<Arc<AtomicUsize>>,
        Attempt(nth): Attempt,
        Payload(n): Payload<u64>,
    ) -> Outcome {
        sum.fetch_add(usize::try_from(n).expect("small"), Ordering::Relaxed);
        if nth == 1 { Outcome::retry("once more") } else { Outcome::Ack }
    }
    let (queue, sum) = (queue().await, Arc::<AtomicUsize>::default());
    queue.schedule(&21).delay(MS(0)).await.expect("scheduled");
    let worker =
        queue.worker().retry(Fixed::new(MS(0))).start(with_state(sum.clone(), add)).await.expect("starts");
    let report = worker.drain().await;
    assert_eq!((report.done, report.retried, sum.load(Ordering::Relaxed)), (1, 1, 42));
}

#[tokio::test(start_paused = true)]
async fn tasks_come_in_batches_that_are_full_or_have_waited() {
    let (queue, seen) = (queue().await, Seen::default());
    for n in 0..5u64 {
        queue.schedule(&n).delay(MS(n)).await.expect("scheduled");
    }
    let tell = seen.clone();
    let worker = queue.worker().concurrency(4).start_batch((3, SECS(60)), move |tasks: Vec<Task<u64>>| {
        let outcomes = tasks.iter().map(|task| match (task.payload, task.attempt()) {
            (1, 1) => Outcome::retry_after(SECS(1), "not yet"),
            (2, _) => Outcome::dead_letter("never"),
            _ => Outcome::Ack,
        });
        let outcomes = outcomes.collect::<Vec<_>>();
        tell.push(tasks.iter().map(|task| task.payload).collect::<Vec<_>>());
        async { outcomes }
    });
    let worker = worker.await.expect("starts");
    seen.reach(2).await;
    // The first three are a full batch. The one that failed comes back after a second and is the third of the next.
    assert_eq!(seen.all(), [vec![0, 1, 2], vec![3, 4, 1]]);
    queue.schedule(&9).delay(MS(0)).await.expect("scheduled");
    seen.reach(3).await;
    assert_eq!(seen.all()[2], [9], "it has waited for others for a minute");
    let report = worker.drain().await;
    assert_eq!((report.done, report.retried, report.dead), (4 + 1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_not_full_is_handed_back_when_the_worker_ends() {
    let (queue, seen) = (queue().await, Seen::default());
    queue.schedule(&1).delay(MS(0)).await.expect("scheduled");
    let tell = seen.clone();
    let worker = queue.worker().start_batch((3, SECS(60)), move |tasks: Vec<Task<u64>>| {
        tell.push(tasks.len());
        async {}
    });
    let worker = worker.await.expect("starts");
    eventually(|| worker.progress().running == 1, "the task is held").await;
    assert_eq!(worker.shutdown().await.handed_back, 1);
    assert_eq!((seen.len(), queue.count().await.expect("counts").waiting.total), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_never_larger_than_what_a_worker_may_hold() {
    let (queue, seen) = (queue().await, Seen::default());
    for n in 0..4u64 {
        queue.schedule(&n).delay(MS(0)).await.expect("scheduled");
    }
    let tell = seen.clone();
    let worker =
        queue.worker().concurrency(2).start_batch((100, SECS(3_600)), move |tasks: Vec<Task<u64>>| {
            tell.push(tasks.len());
            async {}
        });
    let worker = worker.await.expect("starts");
    seen.reach(2).await;
    assert_eq!(seen.all(), [2, 2]);
    assert_eq!(worker.shutdown().await.done, 4);
}

#[tokio::test(start_paused = true)]
async fn an_operation_of_two_tasks_takes_effect_once() {
    let (queue, calls) = (open(&memory(), 4).await, Seen::default());
    for id in ["a", "b", "c"] {
        queue.schedule(&7).id(id).header("payment", "p-7").delay(MS(0)).await.expect("scheduled");
    }
    queue.schedule(&8).id("d").delay(MS(0)).await.expect("scheduled");
    let once = Idempotent::by_header("payment").retries_within(SECS(60));
    let tell = calls.clone();
    let worker = queue.worker().idempotent(once).start(move |task: Task<u64>| {
        tell.push(task.payload);
        // Longer than a marker lasts without an extension.
        async { tokio::time::sleep(SECS(100)).await }
    });
    let worker = worker.await.expect("starts");
    let report = worker.drain().await;
    assert_eq!((report.done, report.dead, calls.all()), (3, 1, vec![7]), "one has no id of an operation");
    assert!(report.snoozed >= 2, "the others come back while the first one runs: {report:?}");
}

/// Markers that cannot be extended while the test says so.
struct NotExtended(Arc<dyn Idempotency>, Arc<AtomicBool>);

#[async_trait]
impl Idempotency for NotExtended {
    async fn begin(&self, of: &Operation, by: &str, token: &str, ttl: std::time::Duration) -> Result<Begun> {
        self.0.begin(of, by, token, ttl).await
    }

    async fn extend(&self, markers: &[Marker]) -> Vec<Result<()>> {
        match self.1.load(Ordering::Relaxed) {
            true => vec![Err(Error::new(ErrorKind::Unavailable, "away")); markers.len()],
            false => self.0.extend(markers).await,
        }
    }

    async fn complete(&self, marker: &Marker, result: &[u8], kept: std::time::Duration) -> Result<()> {
        self.0.complete(marker, result, kept).await
    }

    async fn abandon(&self, marker: &Marker) -> Result<()> {
        self.0.abandon(marker).await
    }
}

/// The only handler ends while its marker cannot be extended, and no later one shows that this is over.
#[tokio::test(start_paused = true)]
async fn extensions_that_failed_work_again_when_the_server_has_answered() {
    let (backend, away) = (memory(), Arc::new(AtomicBool::new(true)));
    let markers = backend.idempotency().expect("markers").clone();
    let backend = backend.with_idempotency(Arc::new(NotExtended(markers, away.clone())));
    let (observer, seen) = events();
    let queue = DelayQueue::<u64>::new("q").observer(observer).open(&backend).await.expect("opens");
    queue.schedule(&1).id("a").await.expect("scheduled");
    let once = Idempotent::by_message_id().retries_within(SECS(60));
    let worker = queue.worker().hold(SECS(3)).idempotent(once).start(|_: Task<u64>| async {
        tokio::time::sleep(SECS(5)).await;
    });
    let worker = worker.await.expect("starts");
    let of = |event: &str| {
        let is = |it: &&String| it.starts_with(event) && it.contains("extend_markers");
        seen.all().iter().filter(is).count()
    };
    eventually(|| worker.report().done == 1, "it is done").await;
    // The end of the task was stored: that may count as an answer already.
    assert!(of("Failing") > 0, "{:?}", seen.all());
    away.store(false, Ordering::Relaxed);
    tokio::time::sleep(SECS(60)).await;
    assert_eq!(of("Recovered"), 1, "{:?}", seen.all());
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_done_under_its_id_is_done_once() {
    let (queue, calls) = (queue().await, Seen::default());
    let tell = calls.clone();
    let once = Idempotent::by_message_id().retries_within(SECS(60));
    let worker = queue.worker().idempotent(once).start(move |task: Task<u64>| {
        tell.push(task.payload);
        async {}
    });
    let worker = worker.await.expect("starts");
    for (nth, payload) in (1..).zip([1u64, 1, 2]) {
        queue.schedule(&payload).id("report").delay(MS(0)).await.expect("scheduled");
        eventually(|| worker.report().done == nth, "it is done").await;
    }
    assert_eq!(worker.shutdown().await.done, 3);
    assert_eq!(calls.all(), [1, 2], "the same id and payload are the same operation");
}

#[tokio::test(start_paused = true)]
async fn a_check_is_asked_inside_of_layers_with_the_payload_that_they_left() {
    let (queue, asked, told) = (queue().await, Seen::default(), Seen::default());
    queue.schedule(&1).delay(MS(0)).await.expect("scheduled");
    let tell = asked.clone();
    let worker =
        queue.worker().retry(Fixed::new(MS(0))).layer(Adds(10, told)).check(move |task: Task<u64>| {
            tell.push(task.payload);
            async { Ok::<_, String>(Check::Complete) }
        });
    let worker =
        worker.start(async |_: Task<u64>| Err::<(), _>("its answer was lost")).await.expect("starts");
    let report = worker.drain().await;
    assert_eq!((report.done, report.retried, asked.all()), (1, 1, vec![11]));
}

#[tokio::test(start_paused = true)]
async fn layers_with_batches_and_a_short_retention_are_refused() {
    let queue = queue().await;
    let worker =
        queue.worker().layer(Timeout::new(SECS(1))).idempotent(Idempotent::by_header("").retention(MS(0)));
    let error = worker.start_batch((0, SECS(1)), async |_: Vec<Task<u64>>| ()).await.expect_err("refused");
    let problems = error.problems().join("; ");
    for part in ["layers are for", "batch size is 0", "name of the header", "retention is 0ns"] {
        assert!(problems.contains(part), "{part}: {problems}");
    }
}

#[tokio::test(start_paused = true)]
async fn partial_batches_of_many_shards_do_not_keep_the_room_from_each_other() {
    let (queue, seen) = (open(&memory(), 4).await, Seen::default());
    for n in 0..40u64 {
        queue.schedule(&n).delay(MS(0)).await.expect("scheduled");
    }
    let (tell, began) = (seen.clone(), Instant::now());
    let worker =
        queue.worker().concurrency(6).start_batch((100, SECS(3_600)), move |tasks: Vec<Task<u64>>| {
            tasks.iter().for_each(|task| tell.push(task.payload));
            async {}
        });
    let worker = worker.await.expect("starts");
    seen.reach(36).await;
    assert!(began.elapsed() < SECS(60), "{:?}", began.elapsed());
    // What is left takes less than all room. A drain does not wait for others.
    let drained = worker.drain().await;
    assert_eq!((drained.done, drained.handed_back), (40, 0));
    assert!(began.elapsed() < SECS(60), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_may_end_workers_is_handled_alone() {
    let (backend, seen) = (memory(), Seen::default());
    let queue = open(&backend, 1).await;
    for n in 0..3u64 {
        queue.schedule(&n).delay(MS(0)).await.expect("scheduled");
    }
    // A worker that ends while it has all of them.
    let shard = queue.inner.spec.iter().next().expect("a shard");
    let asks = ClaimRequest {
        worker: "gone".into(),
        limit: 10,
        hold: SECS(1),
        crash_limit: 3,
        longest_sleep: SECS(15),
        continuity: Continuity::assured(),
    };
    let claimed = backend.tasks().expect("tasks").claim(&shard, &asks).await.expect("claimed");
    assert_eq!(claimed.tasks.len(), 3);
    let tell = seen.clone();
    let worker = queue.worker().hold(SECS(1)).start_batch((3, SECS(60)), move |tasks: Vec<Task<u64>>| {
        tell.push(tasks.iter().map(Task::crashes).collect::<Vec<_>>());
        async {}
    });
    let worker = worker.await.expect("starts");
    seen.reach(3).await;
    assert_eq!(seen.all(), [[1], [1], [1]]);
    assert_eq!(worker.shutdown().await.done, 3);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_handed_back_frees_its_operation() {
    let (queue, seen) = (queue().await, Seen::default());
    queue.schedule(&1).header("payment", "p-1").delay(MS(0)).await.expect("scheduled");
    let worker = |long: bool| {
        let (once, tell) = (Idempotent::by_header("payment").retries_within(SECS(60)), seen.clone());
        queue.worker().hold(SECS(600)).idempotent(once).start(move |task: Task<u64>| {
            tell.push(task.crashes());
            async move {
                if long {
                    std::future::pending::<()>().await;
                }
            }
        })
    };
    let first = worker(true).await.expect("starts");
    seen.reach(1).await;
    assert_eq!(first.shutdown_within(SECS(1)).await.handed_back, 1);
    let began = Instant::now();
    let second = worker(false).await.expect("starts");
    seen.reach(2).await;
    assert!(began.elapsed() < SECS(60), "it waits for no marker: {:?}", began.elapsed());
    assert_eq!(second.shutdown().await.done, 1);
}

#[tokio::test(start_paused = true)]
async fn the_longest_id_of_a_task_names_an_operation() {
    let (queue, calls) = (queue().await, Seen::default());
    let id = "i".repeat(256);
    for once in [Idempotent::by_header("payment"), Idempotent::by_message_id()] {
        queue.schedule(&1).id(&id).header("payment", "p-1").delay(MS(0)).await.expect("scheduled");
        let tell = calls.clone();
        let worker =
            queue.worker().idempotent(once.retries_within(SECS(60))).start(move |task: Task<u64>| {
                tell.push(task.payload);
                async {}
            });
        let report = worker.await.expect("starts").drain().await;
        assert_eq!((report.done, report.dead, report.retried), (1, 0, 0));
    }
    assert_eq!(calls.len(), 2, "they are two operations");
}
