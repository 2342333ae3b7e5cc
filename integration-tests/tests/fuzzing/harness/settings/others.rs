//! Settings of workers, locks and calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_core::error::Error;
use millstream_core::policy::Exponential;
use millstream_delay::{DelayQueue, Task, WorkerConfig};
use millstream_lock::LockClient;
use millstream_runtime::IdempotentCalls;
use tokio::time::{sleep, timeout};

use super::super::Input;
use super::{DAY, SECOND, SOON, backend, count, outcome, refused, small, time};

pub(super) async fn worker(input: &mut Input<'_>) {
    let backend = backend();
    let mut config = WorkerConfig::default();
    let settings = input.number();
    let is = |bit: u32| settings & 1 << bit != 0;
    let times = [(0, &mut config.hold), (1, &mut config.shutdown_timeout), (2, &mut config.longest_sleep)];
    for (_, setting) in times.into_iter().filter(|(bit, _)| is(*bit)) {
        *setting = time(input);
    }
    if is(3) {
        config.concurrency = count(input);
    }
    if is(4) {
        config.crash_limit = small(input);
    }
    config.handler_timeout = is(5).then(|| time(input));
    config.done_window = is(6).then(|| time(input));
    if is(7) {
        config.label = String::from_utf8_lossy(input.bytes()).into_owned();
    }
    let (attempts, delay) = (small(input), time(input));
    if is(8) {
        config.retry = Arc::new(Exponential::from(delay).up_to(time(input)).attempts(attempts));
    }
    let (of, after, shutdown) = (input.byte(), time(input), config.shutdown_timeout);
    let queue = DelayQueue::<u64>::new("q").open(&backend).await.expect("a queue");
    let handled = Arc::new(AtomicU64::new(0));
    let counted = handled.clone();
    let started = queue.worker().config(config).start(move |_: Task<u64>| {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        let outcome = outcome(of, after, number);
        async move { outcome }
    });
    let worker = match started.await {
        Ok(worker) => worker,
        Err(error) => {
            let names = ["hold", "longest_sleep", "concurrency", "crash_limit", "handler_timeout"];
            return refused(&error, &[&names[..], &["done_window", "label", "retry"]].concat());
        }
    };
    queue.schedule(&1).await.expect("scheduled");
    queue.schedule(&2).delay(SECOND).await.expect("scheduled");
    let far = queue.schedule(&3).delay(after.saturating_add(DAY)).await;
    far.expect("any delay is one");
    // The second one may be noticed late, if a wake-up is lost.
    sleep(SOON).await;
    let handled = handled.load(Ordering::Relaxed);
    assert!(if of % 8 < 3 { handled == 2 } else { handled >= 2 }, "{handled} tasks of 2");
    let ended = timeout(shutdown.saturating_add(SOON), worker.shutdown()).await;
    assert!(ended.is_ok(), "it ends within {shutdown:?}");
}

pub(super) async fn locks_and_calls(input: &mut Input<'_>) {
    let backend = backend();
    let (ttl, wait, fence) = (time(input), time(input), input.number());
    let client = LockClient::new(&backend);
    let lock = || client.lock("l").ttl(ttl).fence_above(fence);
    match lock().wait(wait).acquire().await {
        Ok(held) => {
            assert!(held.fence() > fence || fence > 1 << 52);
            // Somebody else waits for it, and gets it when it is free.
            let other = lock().wait(2 * SECOND).owner("other").acquire();
            assert!(timeout(10 * SECOND, other).await.expect("it ends").is_err(), "it is held");
            sleep(SOON).await;
            held.release().await.expect("released");
            let next = lock().try_acquire().await.expect("free").expect("free");
            next.release().await.expect("released");
        }
        Err(error) => {
            assert!(error.to_string().contains("ttl") || error.to_string().contains("fence"), "{error}");
        }
    }
    let (ttl, kept, wait) = (time(input), time(input), time(input));
    let calls = IdempotentCalls::new(&backend, "c").lease_ttl(ttl).retention(kept).wait(wait);
    let once = || calls.run("key", || async { Ok::<u64, Error>(7) });
    match once().await {
        Ok(called) => {
            assert!(!called.is_duplicate && called.value == 7);
            if called.not_kept.is_none() && kept > SECOND {
                assert!(once().await.is_ok_and(|called| called.is_duplicate), "it is remembered");
            }
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(["ttl", "retention", "wait"].iter().any(|name| shown.contains(name)), "{shown}");
        }
    }
}
