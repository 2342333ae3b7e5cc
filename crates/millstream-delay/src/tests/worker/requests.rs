//! Requests: the reply of a task reaches whoever scheduled it, or they learn why there is none.

use std::future::IntoFuture;

use bytes::Bytes;
use futures_util::future::join_all;
use millstream_core::codec::Raw;
use millstream_core::policy::{Discard, Fixed, Never};
use millstream_core::results::DISCARDED;
use millstream_core::schedule::Placed;
use millstream_core::{Capability, ErrorKind, Outcome, Rate, Reply};
use millstream_engine::Limit;
use millstream_engine::requests::{Followed, RequestError, ResultFuture};
use tokio::time::Instant;

use crate::tests::support::{MS, SECS, Seen, memory, open, queue};
use crate::{DelayQueue, Task, TaskRequest};

/// Doubles even numbers, and refuses odd ones.
async fn double(task: Task<u64>) -> Result<Reply, String> {
    match task.payload % 2 {
        0 => Ok(Reply::json(&(task.payload * 2))),
        _ => Err(format!("{} is odd", task.payload)),
    }
}

fn ask<'a>(queue: &'a DelayQueue<u64>, number: &'a u64) -> TaskRequest<'a, u64, u64> {
    queue.schedule(number).reply::<u64>().within(SECS(60))
}

/// Returns the reason, attempts and error of a request that failed.
fn failed(result: Result<u64, RequestError>) -> (String, u32, String) {
    match result {
        Err(RequestError::Failed { reason, attempts, error, .. }) => (reason.into(), attempts, error),
        other => panic!("it did not fail: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_has_the_reply_to_it_or_the_error() {
    let queue = open(&memory(), 3).await;
    let worker = queue.worker().retry(Fixed::new(SECS(1)).attempts(2)).start(double).await.expect("starts");
    let numbers: Vec<u64> = (0..300).collect();
    let results = join_all(numbers.iter().map(|number| ask(&queue, number).into_future())).await;
    for (number, result) in numbers.iter().zip(results) {
        match number % 2 {
            0 => assert_eq!(result.expect("a reply"), number * 2),
            _ => assert_eq!(failed(result), ("exhausted".into(), 2, format!("{number} is odd"))),
        }
    }
    assert_eq!(worker.shutdown().await.done, 150);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_due_later_can_be_waited_for_then() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    let requested = queue.schedule(&6).delay(SECS(100)).reply::<u64>().begin().await.expect("stored");
    assert_eq!(requested.task.placed, Placed::New);
    let worker = queue.worker().start(double).await.expect("starts");
    let early = requested.within(SECS(99)).await;
    assert!(matches!(early, Err(RequestError::Timeout { .. })), "{early:?}");
    let begun = Instant::now();
    assert_eq!(requested.within(SECS(10)).await.expect("a reply"), 12);
    assert!(begun.elapsed() <= SECS(1) + MS(5), "{:?}", begun.elapsed());
    // By its id, in any process, until its time is over.
    let id = requested.id.to_string().parse().expect("an id");
    let found = ResultFuture::new(&backend, &id).await.expect("no error").expect("a result");
    assert_eq!(found.decode::<u64>().expect("a number"), 12);
    tokio::time::sleep(SECS(3_600)).await;
    assert_eq!(ResultFuture::new(&backend, &id).await.expect("no error"), None);
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_not_needed_has_no_result_for_who_asks() {
    let queue = queue().await;
    let first = queue.schedule(&2).id("a").delay(SECS(1)).reply::<u64>().begin().await.expect("stored");
    let kept = queue.schedule(&4).id("a").reply::<u64>().within(SECS(60)).await;
    match kept {
        Err(RequestError::NotSent(error)) => assert_eq!(error.kind(), ErrorKind::Exists, "{error}"),
        other => panic!("{other:?}"),
    }
    let worker = queue.worker().done_window(SECS(600)).start(double).await.expect("starts");
    assert_eq!(first.within(SECS(10)).await.expect("a reply"), 4);
    let done = queue.schedule(&4).id("a").reply::<u64>().within(SECS(60)).await;
    assert!(matches!(done, Err(RequestError::NotSent(_))), "it was done: {done:?}");
    // A task that takes the place of another one answers its own request.
    let replaced = queue.schedule(&6).id("b").delay(SECS(1)).reply::<u64>().begin().await.expect("stored");
    let last = queue.schedule(&8).id("b").replace().reply::<u64>().within(SECS(60)).await;
    assert_eq!(last.expect("a reply"), 16);
    let none = replaced.within(SECS(10)).await;
    assert!(matches!(none, Err(RequestError::Timeout { .. })), "{none:?}");
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_each_task_is_its_result() {
    let queue = queue().await;
    let handler = async |task: Task<u64>| match task.payload {
        1 => panic!("on purpose"),
        2 => std::future::pending().await,
        3 if task.attempt() == 1 => Err("once".to_owned()),
        3 => Ok(Reply::json(&33)),
        _ => Err("no".to_owned()),
    };
    let worker = queue.worker().retry(Fixed::new(SECS(1)).attempts(2)).handler_timeout(SECS(5));
    let worker = worker.start(handler).await.expect("starts");
    assert!(failed(ask(&queue, &1).await).2.contains("on purpose"));
    assert_eq!(failed(ask(&queue, &2).await).1, 2, "both attempts took too long");
    assert_eq!(ask(&queue, &3).await.expect("the reply of a retry"), 33);
    assert_eq!(failed(ask(&queue, &4).await), ("exhausted".into(), 2, "no".into()));
    worker.shutdown().await;
    // One that the policy discards.
    let worker = queue.worker().retry(Never).dead_letters(Discard).start(double).await.expect("starts");
    assert_eq!(failed(ask(&queue, &5).await), (DISCARDED.into(), 1, "5 is odd".into()));
    worker.shutdown().await;
    // One that its limit drops, before its payload is read.
    let hourly = Limit::global("hourly").quota(Rate::per_hour(1));
    let worker = queue.worker().limit(hourly).start(double).await.expect("starts");
    assert_eq!(ask(&queue, &6).await.expect("a reply"), 12);
    assert_eq!(failed(ask(&queue, &8).await).0, DISCARDED);
    worker.shutdown().await;
    assert_eq!(queue.count().await.expect("counts").claimed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_never_replies_stores_nothing_unless_it_says_so() {
    let queue = queue().await;
    let silent = queue.worker().start(async |_: Task<u64>| {}).await.expect("starts");
    let none = queue.schedule(&1).reply::<u64>().within(SECS(5)).await;
    assert!(matches!(none, Err(RequestError::Timeout { .. })), "{none:?}");
    silent.shutdown().await;
    // Its type says nothing; it replies.
    let some = queue.worker().start(async |_: Task<u64>| Outcome::reply(&"one")).await.expect("starts");
    let one = queue.schedule(&1).reply::<String>().within(SECS(5)).await;
    assert_eq!(one.expect("a reply"), "one");
    some.shutdown().await;
    let says = queue.worker().replies(true).start(async |_: Task<u64>| {}).await.expect("starts");
    let none = queue.schedule(&1).reply::<u64>().within(SECS(5)).await;
    assert!(matches!(none, Err(RequestError::NoReply { .. })), "{none:?}");
    says.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn replies_of_a_mebibyte_are_settled_a_few_at_a_time() {
    let queue = queue().await;
    let seen = Seen::default();
    let tell = seen.clone();
    let handler = move |task: Task<u64>| {
        tell.push(task.payload);
        async move { Reply::bytes(vec![b'0' + (task.payload % 10) as u8; 1 << 20]) }
    };
    let worker = queue.worker().concurrency(50).start(handler).await.expect("starts");
    let numbers: Vec<u64> = (0..50).collect();
    let asked = numbers.iter().map(|number| queue.schedule(number).reply_with::<Bytes>(&Raw).into_future());
    for (number, reply) in numbers.iter().zip(join_all(asked).await) {
        let reply = reply.expect("a reply");
        assert_eq!((reply.len(), reply[0]), (1 << 20, b'0' + (number % 10) as u8), "{number}");
    }
    assert_eq!(seen.len(), 50, "each ran once");
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_backend_without_results_refuses_to_ask() {
    let backend = memory().without(Capability::Results);
    let queue = open(&backend, 1).await;
    let refused = ask(&queue, &2).await;
    match refused {
        Err(RequestError::NotSent(error)) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(queue.count().await.expect("counts").waiting.total, 0, "nothing was scheduled");
}

#[tokio::test(start_paused = true)]
async fn whoever_follows_a_task_sees_the_work_of_each_attempt() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    let requested = queue.schedule(&6).reply::<u64>().begin().await.expect("stored");
    let handler = async |task: Task<u64>| {
        task.progress(0.5, "half");
        tokio::time::sleep(SECS(100)).await;
        task.log("all");
        if task.attempt() == 1 { Err("once more") } else { Ok(Reply::json(&12)) }
    };
    // Its claim is renewed meanwhile, and it comes back once.
    let worker = queue.worker().retry(Fixed::new(SECS(1)).attempts(2)).start(handler).await.expect("starts");
    let (mut follow, mut lines) = (requested.follow(), Vec::new());
    let result = loop {
        match follow.next().await.expect("no error") {
            Some(Followed::Progress(line)) => lines.push((line.attempt, line.to_string())),
            Some(Followed::Result(result)) => break result,
            other => panic!("{other:?} before the result"),
        }
    };
    assert_eq!(result.decode::<u64>().expect("a number"), 12);
    let lines: Vec<_> = lines.iter().map(|(attempt, text)| (*attempt, &**text)).collect();
    assert_eq!(lines, [(1, "50.0 % half"), (1, "50.0 % all"), (2, "50.0 % half"), (2, "50.0 % all")]);
    worker.shutdown().await;
}
