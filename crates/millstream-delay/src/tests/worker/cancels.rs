//! Tasks that are cancelled from outside while a worker has them.

use millstream_core::cancels::{CancelMark, CancelRequest, WorkPlace};
use millstream_core::{Backend, LimitKey, MessageResult, Outcome, Reply, ScheduleId, Shard};
use millstream_engine::Limit;
use millstream_engine::delivery::CancelReason;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::sleep;

use crate::tests::support::{MS, SECS, Seen, memory, open};
use crate::{RequestedTask, Task};

fn place() -> WorkPlace {
    WorkPlace::Shard(Shard::new("q".parse().expect("a name"), 0))
}

async fn cancel(backend: &Backend, id: &ScheduleId) -> Option<CancelMark> {
    backend
        .cancels()
        .expect("the role")
        .cancel(&place(), id.as_str(), &CancelRequest::default())
        .await
        .expect("cancelled")
}

/// Waits for the answer.
async fn answer(backend: &Backend, id: &ScheduleId) -> Option<CancelMark> {
    backend.cancels().expect("the role").mark(&place(), id.as_str(), SECS(60)).await.expect("no error")
}

async fn result(backend: &Backend, requested: &RequestedTask<u64>) -> Option<MessageResult> {
    backend.log().result(&requested.id, SECS(60)).await.expect("no error")
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_asked_and_its_task_ends_with_it() {
    let backend = memory();
    let (queue, seen) = (open(&backend, 1).await, Seen::default());
    let tell = seen.clone();
    let handler = move |task: Task<u64>| {
        let tell = tell.clone();
        async move {
            task.cancelled().await;
            tell.push((task.payload, task.cancel_reason()));
            sleep(SECS(1)).await;
            match task.payload {
                0 => Outcome::retry("it stops"),
                1 => Outcome::snooze(SECS(60)),
                2 => Outcome::dead_letter("it stops"),
                3 => panic!("it stops"),
                _ => Outcome::Reply(Reply::json(&task.payload)),
            }
        }
    };
    let worker = queue.worker().concurrency(8).replies(true).start(handler).await.expect("started");
    let mut tasks = Vec::new();
    for number in 0..5 {
        let id = ScheduleId::new(format!("task-{number}")).expect("an id");
        let requested = queue.schedule(&number).id(id.as_str()).reply::<u64>().begin().await;
        tasks.push((id, requested.expect("stored")));
    }
    sleep(SECS(5)).await;
    assert_eq!(seen.all(), [], "nobody has cancelled");
    for (number, (id, requested)) in (0..).zip(&tasks) {
        assert_eq!(cancel(&backend, id).await, Some(CancelMark::Asked), "{id}");
        seen.reach(number + 1).await;
        assert_eq!(seen.all().last(), Some(&(number as u64, Some(CancelReason::Cancelled))));
        let expected = match number {
            4 => CancelMark::Asked,
            _ => CancelMark::Stopped,
        };
        assert_eq!(answer(&backend, id).await, Some(expected), "{id}");
        let found = result(&backend, requested).await.expect("a result");
        match number {
            4 => assert_eq!(found.decode::<u64>().expect("a reply"), 4),
            _ => assert_eq!(found, MessageResult::cancelled(1)),
        }
    }
    // Nothing comes back, and nothing is dead.
    sleep(SECS(600)).await;
    assert_eq!(seen.len(), 5);
    let counts = queue.count().await.expect("counts");
    assert_eq!((counts.waiting.total, counts.claimed, counts.dead), (0, 0, 0));
    // The id is free, and the mark is not that of the next task.
    let again = queue.schedule(&4).id("task-0").reply::<u64>().begin().await.expect("stored");
    sleep(SECS(5)).await;
    assert_eq!(seen.len(), 5, "the next task with this id is not asked");
    assert_eq!(cancel(&backend, &tasks[0].0).await, Some(CancelMark::Asked));
    assert!(result(&backend, &again).await.is_some());
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.discarded, report.retried, report.stale), (2, 4, 0, 0), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_limits_ends_without_a_handler() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    let (begin, mut begun) = unbounded_channel();
    let handler = move |task: Task<u64>| {
        begin.send(task.payload).expect("a test");
        async move {
            sleep(SECS(10)).await;
            Reply::json(&task.payload)
        }
    };
    let limit = Limit::new("one", |_| LimitKey::new(["all"]).ok()).at_most(1);
    let worker = queue.worker().concurrency(4).limit(limit).start(handler).await.expect("started");
    let mut tasks = Vec::new();
    for number in 0..3_u64 {
        let id = ScheduleId::new(format!("task-{number}")).expect("an id");
        let requested = queue.schedule(&number).id(id.as_str()).reply::<u64>().begin().await;
        tasks.push((id, requested.expect("stored")));
        sleep(SECS(1)).await;
    }
    let (id, requested) = &tasks[1];
    assert_eq!(cancel(&backend, id).await, Some(CancelMark::Asked), "it is claimed, and waits");
    assert_eq!(answer(&backend, id).await, Some(CancelMark::Cancelled));
    assert_eq!(result(&backend, requested).await, Some(MessageResult::cancelled(0)));
    for at in [0, 2] {
        let found = result(&backend, &tasks[at].1).await.expect("a result");
        assert_eq!(found.decode::<u64>().expect("a reply"), at as u64);
    }
    assert_eq!((begun.recv().await, begun.recv().await), (Some(0), Some(2)));
    let report = worker.shutdown().await;
    assert_eq!((report.done, report.discarded, report.handed_back), (2, 1, 0), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_removed_where_it_waits_and_its_sender_is_told() {
    let backend = memory();
    let (queue, seen) = (open(&backend, 1).await, Seen::default());
    let tell = seen.clone();
    let handler = move |task: Task<u64>| {
        tell.push(task.attempt());
        async { Outcome::retry_after(SECS(600), "later") }
    };
    let worker = queue.worker().start(handler).await.expect("started");
    let requested = queue.schedule(&7).id("seven").reply::<u64>().begin().await.expect("stored");
    seen.reach(1).await;
    sleep(MS(100)).await;
    assert!(queue.cancel("seven").await.expect("cancelled"), "it waits");
    assert!(!queue.cancel("seven").await.expect("looked for"), "it is gone");
    assert_eq!(result(&backend, &requested).await, Some(MessageResult::cancelled(1)));
    sleep(SECS(1_200)).await;
    assert_eq!(seen.all(), [1]);
    worker.shutdown().await;
}
