//! Scheduling, looking, cancelling; without workers.

use bytes::Bytes;
use millstream_core::policy::Fixed;
use millstream_core::schedule::{Due, Placed};
use millstream_core::{ErrorKind, Limits, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;

use crate::tests::support::{EPOCH, MS, SECS, Seen, memory, open, queue};
use crate::{DelayQueue, Task, TaskRecord};

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn what_is_scheduled_is_found_by_its_id_with_its_time() {
    let queue = queue().await;
    let scheduled = queue.schedule(&7).delay(SECS(60)).id("seven").key("k").header("h", "v").await;
    assert_eq!(scheduled.expect("scheduled").placed, Placed::New);
    let found = queue.get("seven").await.expect("read").expect("there");
    assert_eq!((found.due, found.payload().expect("a number")), (at(EPOCH + 60_000), 7));
    let envelope = found.envelope().expect("a message");
    assert_eq!(envelope.key.as_deref(), Some(&b"k"[..]));
    assert_eq!(envelope.headers.get_str("h"), Some("v"));
    assert!(queue.get("eight").await.expect("read").is_none());
    let counts = queue.count().await.expect("counts");
    assert_eq!((counts.waiting.total, counts.waiting.overdue), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_id_is_kept_replaced_or_rejected() {
    let queue = queue().await;
    let payload = async || queue.get("x").await.expect("read").expect("there").payload().expect("a number");
    queue.schedule(&1).delay(SECS(9)).id("x").await.expect("scheduled");
    assert_eq!(queue.schedule(&2).id("x").await.expect("kept").placed, Placed::Kept);
    assert_eq!(payload().await, 1);
    let error = queue.schedule(&2).id("x").reject().await.expect_err("there is one");
    assert_eq!(error.kind(), ErrorKind::Exists);
    let replaced = queue.schedule(&3).at(at(EPOCH + 5)).id("x").replace().await.expect("replaced");
    assert_eq!((replaced.placed, payload().await), (Placed::Replaced, 3));
    assert_eq!(queue.get("x").await.expect("read").expect("there").due, at(EPOCH + 5));
}

#[tokio::test(start_paused = true)]
async fn a_task_is_debounced_or_its_last_payload_kept() {
    let queue = queue().await;
    let waits = async |id: &str| {
        let found = queue.get(id).await.expect("read").expect("there");
        (found.payload().expect("a number"), found.due)
    };
    for (number, delay) in [(1, 9), (2, 20), (3, 5)] {
        queue.schedule(&number).delay(SECS(delay)).debounce("quiet").await.expect("scheduled");
        queue.schedule(&number).delay(SECS(delay)).keep_last("first").await.expect("scheduled");
    }
    assert_eq!(waits("quiet").await, (3, at(EPOCH + 20_000)));
    assert_eq!(waits("first").await, (3, at(EPOCH + 9_000)));

    // While it is worked on nothing can take the payload: that is an error, and not a task that was kept.
    queue.run_now("quiet").await.expect("moved");
    let (begun, ends) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, end) = (begun.clone(), ends.clone());
    let worker = queue.worker().start(move |_: Task<u64>| {
        let (begins, end) = (begins.clone(), end.clone());
        async move {
            begins.notify_one();
            end.notified().await;
        }
    });
    let worker = worker.await.expect("started");
    begun.notified().await;
    for error in [
        queue.schedule(&4).delay(SECS(1)).debounce("quiet").await,
        queue.schedule(&4).delay(SECS(1)).keep_last("quiet").await,
    ] {
        assert_eq!(error.expect_err("it is worked on").kind(), ErrorKind::Exists);
    }
    ends.notify_one();
    while worker.report().done == 0 {
        tokio::time::sleep(MS(1)).await;
    }
    let free = queue.schedule(&4).delay(SECS(100)).debounce("quiet").await.expect("scheduled");
    assert_eq!(free.placed, Placed::New);
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn many_at_once_have_a_result_each() {
    let queue = open(&memory(), 4).await;
    let numbers: Vec<u64> = (0..500).collect();
    let record = |number| TaskRecord::new(number).delay(MS(*number)).id(format!("n-{number}"));
    let bad = TaskRecord::new(&9).id("");
    let records =
        numbers.iter().map(record).take(250).chain([bad]).chain(numbers.iter().skip(250).map(record));
    let results = queue.schedule_all(records).await;
    assert_eq!(results.len(), 501);
    assert_eq!(results[250].as_ref().expect_err("no id").kind(), ErrorKind::InvalidName);
    let ids: Vec<_> = results.into_iter().flatten().map(|scheduled| scheduled.id.to_string()).collect();
    let expected: Vec<_> = numbers.iter().map(|number| format!("n-{number}")).collect();
    assert_eq!(ids, expected);
    assert_eq!(queue.count().await.expect("counts").waiting.total, 500);
}

#[tokio::test(start_paused = true)]
async fn ids_of_ours_differ() {
    let queue = queue().await;
    let results = queue.schedule_all((0..300).map(|_| TaskRecord::new(&1).delay(SECS(1)))).await;
    let ids: BTreeSet<_> = results.into_iter().map(|result| result.expect("scheduled").id).collect();
    assert_eq!(ids.len(), 300);
}

#[tokio::test(start_paused = true)]
async fn pages_go_over_all_shards_by_due_time() {
    let queue = open(&memory(), 8).await;
    for number in 0..57u64 {
        // Some of one millisecond, too.
        let due = MS(1_000 + (number * 37 % 50) / 2 * 2);
        queue.schedule(&number).delay(due).await.expect("scheduled");
    }
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = queue.list(after.as_ref(), 10).await.expect("a page");
        seen.extend(page.iter().map(|task| (task.due, task.id.clone())));
        let Some(last) = page.into_iter().next_back() else { break };
        after = Some(last);
    }
    assert_eq!(seen.len(), 57);
    assert!(seen.is_sorted());
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 57, "none twice");
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_cancelled_and_moved() {
    let queue = open(&memory(), 3).await;
    queue.schedule(&1).delay(SECS(10)).id("a").await.expect("scheduled");
    assert!(queue.reschedule("a", SECS(20)).await.expect("moved"));
    assert_eq!(queue.get("a").await.expect("read").expect("there").due, at(EPOCH + 20_000));
    assert!(queue.reschedule("a", at(EPOCH + 3_000)).await.expect("moved"));
    assert_eq!(queue.get("a").await.expect("read").expect("there").due, at(EPOCH + 3_000));
    assert!(queue.run_now("a").await.expect("moved"));
    assert_eq!(queue.count().await.expect("counts").waiting.overdue, 1);
    assert!(queue.cancel("a").await.expect("cancelled"));
    assert!(!queue.cancel("a").await.expect("no more"));
    assert!(!queue.reschedule("a", Due::NOW).await.expect("no more"));
}

#[tokio::test(start_paused = true)]
async fn the_stored_number_of_shards_wins() {
    let backend = memory();
    assert_eq!(open(&backend, 4).await.shards(), 4);
    assert_eq!(open(&backend, 2).await.shards(), 4);
}

#[tokio::test(start_paused = true)]
async fn all_that_is_wrong_is_said_at_once() {
    let error = DelayQueue::<u64>::new("bad name").shards(0).open(&memory()).await.expect_err("invalid");
    assert_eq!(error.problems().len(), 2, "{error}");
    let worker = queue().await.worker().concurrency(0).crash_limit(1).hold(MS(1)).label("a b");
    let worker = worker.longest_sleep(MS(0)).retry(Fixed::new(MS(1)).attempts(0));
    let error = worker.handler_timeout(MS(0)).start(async |_: Task<u64>| ()).await.expect_err("invalid");
    assert_eq!(error.problems().len(), 7, "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_is_refused_and_what_cannot_be_read_is_buried() {
    let backend = memory();
    let raw =
        DelayQueue::raw("q").limits(Limits::default().with_payload(10)).open(&backend).await.expect("opens");
    let error = raw.schedule(&Bytes::from_static(b"01234567890")).await.expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    raw.schedule(&Bytes::from_static(b"no number")).id("bad").await.expect("scheduled");
    let numbers = open(&backend, 1).await;
    assert_eq!(
        numbers.get("bad").await.expect("read").expect("there").payload().expect_err("none").kind(),
        ErrorKind::Decode
    );
    let worker = numbers.worker().start(async |_: Task<u64>| ()).await.expect("starts");
    assert_eq!(worker.drain().await.dead, 1);
    let dead = numbers.dead().list(9).await.expect("list");
    assert_eq!((dead[0].reason.as_str(), dead[0].attempts), ("undecodable", 0));
    assert!(numbers.dead().payload(&dead[0]).is_err());
    assert_eq!(raw.dead().payload(&dead[0]).expect("bytes"), "no number");
}

#[tokio::test(start_paused = true)]
async fn dead_tasks_are_replayed_and_purged() {
    let queue = open(&memory(), 3).await;
    let seen = Seen::default();
    let work = |queue: DelayQueue<u64>, fail: bool, seen: Seen<u64>| async move {
        let worker = queue.worker().retry(millstream_core::policy::Never);
        let handler = move |task: Task<u64>| {
            seen.push(task.payload);
            async move { if fail { Err("no") } else { Ok(()) } }
        };
        worker.start(handler).await.expect("starts").drain().await
    };
    for number in 0..7u64 {
        queue.schedule(&number).id(number.to_string()).await.expect("scheduled");
    }
    assert_eq!(work(queue.clone(), true, seen.clone()).await.dead, 7);
    let dead = queue.dead();
    assert_eq!(dead.count().await.expect("counts"), 7);
    let letters = dead.list(100).await.expect("list");
    assert!(letters.iter().all(|letter| letter.error == "no" && letter.attempts == 1));
    assert_eq!(dead.replay(&letters[..2]).await.expect("replayed"), 2);
    assert_eq!(dead.replay(&letters[..2]).await.expect("no more"), 0);
    assert_eq!(dead.purge(&letters[2..3]).await.expect("purged"), 1);
    assert_eq!(dead.replay_all().await.expect("replayed"), 4);
    assert_eq!(work(queue.clone(), false, seen.clone()).await.done, 6);
    assert_eq!(seen.len(), 13);
    assert_eq!(dead.purge_all().await.expect("nothing"), 0);
    assert_eq!(dead.count().await.expect("counts"), 0);
}

/// Two programs schedule the same tasks, one of them late: each task runs once within the window.
#[tokio::test(start_paused = true)]
async fn a_task_that_was_done_is_not_scheduled_again_within_its_window() {
    let queue = queue().await;
    let seen = Seen::default();
    let handler = seen.clone();
    let worker = queue.worker().retry(Fixed::new(MS(1)).attempts(1)).done_window(SECS(60));
    let worker = worker.start(move |task: Task<u64>| {
        handler.push(task.payload);
        async move { if task.payload == 7 { Err("no") } else { Ok(()) } }
    });
    let worker = worker.await.expect("started");
    let schedule = async |number: u64| {
        queue.schedule(&number).id(format!("n-{number}")).await.expect("scheduled").placed
    };
    for number in [1, 7] {
        assert_eq!(schedule(number).await, Placed::New);
    }
    while worker.report().done + worker.report().dead < 2 {
        tokio::time::sleep(MS(1)).await;
    }
    assert_eq!(schedule(1).await, Placed::Done);
    let error = queue.schedule(&1).id("n-1").reject().await.expect_err("it is done");
    assert_eq!(error.kind(), ErrorKind::Exists);
    assert_eq!(schedule(7).await, Placed::New, "it was given up and not done");
    tokio::time::sleep(SECS(61)).await;
    assert_eq!(schedule(1).await, Placed::New);
    while worker.report().done < 2 {
        tokio::time::sleep(MS(1)).await;
    }
    worker.shutdown().await;
    assert_eq!(seen.all().iter().filter(|number| **number == 1).count(), 2);
    let refused = queue.worker().done_window(MS(0)).start(async |_: Task<u64>| ()).await;
    assert_eq!(refused.expect_err("too short").kind(), ErrorKind::InvalidConfig);
}
