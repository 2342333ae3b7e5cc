//! `trim_tasks`: what a call costs the server, data of somebody else, and settings that make no sense.

use std::time::Duration;

use millstream_core::error::ErrorKind;
use millstream_core::tasks::{QueueChange, QueueSpec, TrimTasksBy, TrimmedTasks};
use millstream_core::{DeadLetterRetention, Timestamp};

use crate::server::Bench;
use crate::tasks::shard;

/// An age that has passed by the next request.
const NONE: Duration = Duration::from_millis(1);
const WORKER: TrimTasksBy = TrimTasksBy::Worker { until: Timestamp::from_millis(u64::MAX) };

impl Bench {
    /// Adds dead tasks with a payload of so many bytes, by a script.
    async fn kill_fast(&mut self, count: usize, bytes: usize) {
        let fill = redis::Script::new(
            "local body = string.rep('x', tonumber(ARGV[2])) for i = 1, tonumber(ARGV[1]) do \
             redis.call('XADD', KEYS[1], '*', 'reason', 'exhausted', 'attempts', '3', 'error', 'boom', 'history', '', \
             'task', i, 'queue', 'mails', 'shard', '1', 'payload', body) end",
        );
        let dead = self.keys.dead_tasks(&shard());
        let mut filled = fill.key(dead.as_str());
        filled.arg(count).arg(bytes).invoke_async::<()>(&mut self.raw).await.expect("filled");
    }

    async fn trim_tasks(&self, retention: DeadLetterRetention, by: TrimTasksBy) -> TrimmedTasks {
        self.tasks().trim_dead(&shard(), retention, by).await.expect("trimmed")
    }

    async fn dead_count(&mut self) -> i64 {
        let dead = self.keys.dead_tasks(&shard());
        self.int(&format!("XLEN {dead}")).await
    }
}

#[tokio::test]
async fn many_dead_tasks_never_hold_up_the_server() {
    const COUNT: usize = 60_000;
    for age in [true, false] {
        let mut bench = Bench::private(&[]).await;
        bench.kill_fast(COUNT, 40).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let (retention, stay) =
            if age { (DeadLetterRetention::age(NONE), 0) } else { (DeadLetterRetention::length(7), 7) };
        let load = bench.watch_load().await;
        let would = bench.trim_tasks(retention, TrimTasksBy::DryRun).await;
        assert_eq!((would.dropped(), would.more), ((COUNT - stay) as u64, false));
        let trimmed = bench.trim_tasks(retention, WORKER).await;
        bench.is_never_held_up(&load, Duration::from_millis(5)).await;
        assert_eq!(trimmed, would, "64 calls are enough");
        assert_eq!(bench.dead_count().await, stay as i64);
    }
}

#[tokio::test]
async fn large_dead_tasks_never_hold_up_the_server() {
    for age in [true, false] {
        let mut bench = Bench::private(&[]).await;
        // A small one in front is no estimate of what follows.
        bench.kill_fast(1, 1).await;
        bench.kill_fast(90, 1 << 20).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let retention = if age { DeadLetterRetention::age(NONE) } else { DeadLetterRetention::length(1) };
        let load = bench.watch_load().await;
        let would = bench.trim_tasks(retention, TrimTasksBy::DryRun).await;
        let trimmed = bench.trim_tasks(retention, WORKER).await;
        bench.is_never_held_up(&load, Duration::from_millis(10)).await;
        let expected = if age { TrimmedTasks::new(91, 0) } else { TrimmedTasks::new(0, 90) };
        assert_eq!((would, trimmed), (expected, expected));
    }
}

/// Nodes of the stream that hold more tasks than one step drops: they are dropped one by one.
#[tokio::test]
async fn streams_of_large_nodes_are_trimmed_too() {
    let mut bench =
        Bench::private(&["--stream-node-max-entries", "1000", "--stream-node-max-bytes", "0"]).await;
    bench.kill_fast(2_500, 10).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(bench.trim_tasks(DeadLetterRetention::length(2_000), WORKER).await.excess, 500);
    assert_eq!(bench.trim_tasks(DeadLetterRetention::age(NONE), WORKER).await.aged, 2_000);
    assert_eq!(bench.dead_count().await, 0);
}

#[tokio::test]
async fn a_full_server_does_not_refuse_a_trim() {
    let mut bench = Bench::private(&[]).await;
    bench.kill_fast(9, 10).await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    assert_eq!(bench.trim_tasks(DeadLetterRetention::length(5), WORKER).await.excess, 4);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(bench.trim_tasks(DeadLetterRetention::age(NONE), WORKER).await.aged, 5);
}

#[tokio::test]
async fn a_foreign_type_is_told_and_foreign_entries_are_dropped_like_others() {
    let mut bench = Bench::new().await;
    let (dead, one) = (bench.keys.dead_tasks(&shard()), DeadLetterRetention::length(1));
    bench.kill_fast(1, 10).await;
    bench.cmd(&format!("XADD {dead} * their entry")).await;
    bench.kill_fast(1, 10).await;
    assert_eq!(bench.trim_tasks(one, WORKER).await.excess, 2);
    bench.cmd(&format!("DEL {dead}")).await;
    bench.cmd(&format!("SET {dead} theirs")).await;
    for by in [WORKER, TrimTasksBy::Operator, TrimTasksBy::DryRun] {
        let refused = bench.tasks().trim_dead(&shard(), one, by).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::WrongType, "{by:?}");
        assert!(refused.to_string().contains(dead.as_str()), "{refused}");
    }
    assert_eq!(bench.int(&format!("STRLEN {dead}")).await, 6);
}

#[tokio::test]
async fn a_stored_retention_that_makes_no_sense_is_told() {
    let mut bench = Bench::new().await;
    let spec = QueueSpec::new(shard().queue, 2);
    let meta = bench.keys.queue_meta(&spec.name);
    // A client of an earlier version creates a queue without that field.
    bench.cmd(&format!("HSET {meta} shards 2 format 1")).await;
    let month = DeadLetterRetention::age(Duration::from_secs(30 * 86_400));
    let asked = spec.clone().with_dead_letter_retention(month);
    assert_eq!(bench.tasks().create_queue(&asked).await.expect("there"), spec);
    for (stored, kind) in [
        ("age:0", ErrorKind::Protocol),
        ("age:1,age:1", ErrorKind::Protocol),
        ("bytes:9", ErrorKind::Unsupported),
    ] {
        bench.cmd(&format!("HSET {meta} deadLetterRetention {stored}")).await;
        let change = QueueChange::new().dead_letter_retention(month);
        for refused in
            [bench.tasks().queue(&spec.name).await, bench.tasks().alter_queue(&spec.name, &change).await]
        {
            let refused = refused.expect_err("makes no sense");
            assert_eq!(refused.kind(), kind, "{stored}");
            assert!(refused.to_string().contains("mails"), "{refused}");
        }
    }
    bench.cmd(&format!("HDEL {meta} deadLetterRetention")).await;
    let change = QueueChange::new().dead_letter_retention(month);
    assert_eq!(bench.tasks().alter_queue(&spec.name, &change).await.expect("altered"), asked);
    assert_eq!(bench.tasks().create_queue(&spec).await.expect("there"), asked);
}
