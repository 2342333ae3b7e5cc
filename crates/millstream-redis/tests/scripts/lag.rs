//! The lag is exact or not known, whatever was done to the log, on whatever server.

use std::time::{Duration, Instant};

use millstream_core::catalog::{Catalog, PartitionStats};
use millstream_core::topic::TopicSpec;
use millstream_redis::{RedisBackend, RedisConfig};

use crate::server::Bench;

/// What is done, in short: `read <n>` by the group, `del <nth>`, `trim <nth>` (below), `maxlen <n>`, `add <n>`,
/// `setid <nth>`, `create <nth>` (above the nth). Ten entries are there; the group stands at the beginning.
const CASES: &[(&[&str], u64)] = &[
    (&[], 10),
    (&["read 4"], 6),
    (&["read 10"], 0),
    (&["create 5"], 5),
    (&["create 5", "del 2", "read 1"], 4),
    (&["create 10"], 0),
    (&["create 10", "add 3"], 3),
    (&["read 2", "del 5"], 7),
    (&["read 2", "del 3", "read 2"], 5),
    (&["read 2", "del 3", "read 2", "read 5"], 0),
    (&["read 4", "del 2"], 6),
    (&["del 10"], 9),
    (&["del 1"], 9),
    (&["read 9", "del 10"], 0),
    (&["read 9", "del 10", "add 2"], 2),
    (&["read 2", "trim 5"], 6),
    (&["read 2", "trim 5", "read 1"], 5),
    (&["read 6", "trim 5"], 4),
    (&["read 2", "del 3", "trim 4", "read 1"], 6),
    (&["read 2", "maxlen 0"], 0),
    (&["read 2", "maxlen 0", "add 2"], 2),
    (&["read 2", "maxlen 0", "add 2", "read 1"], 1),
    (
        &["del 1", "del 2", "del 3", "del 4", "del 5", "del 6", "del 7", "del 8", "del 9", "del 10", "add 2"],
        2,
    ),
    (&["read 4", "setid 7"], 3),
    (&["read 4", "setid 2", "read 1"], 7),
    (&["read 3", "del 6", "del 4", "read 3", "trim 3", "add 5", "read 2"], 5),
];

impl Bench {
    async fn apply(&mut self, step: &str, added: &mut u64) {
        let log = self.log();
        let (verb, figure) = step.split_once(' ').expect("a verb and a figure");
        let n: u64 = figure.parse().expect("a figure");
        let command = match verb {
            "read" => format!("XREADGROUP GROUP billing owner COUNT {n} STREAMS {log} >"),
            "del" => format!("XDEL {log} {n}-0"),
            "trim" => format!("XTRIM {log} MINID {n}-0"),
            "maxlen" => format!("XTRIM {log} MAXLEN {n}"),
            "setid" => format!("XGROUP SETID {log} billing {n}-0"),
            "create" => {
                self.cmd(&format!("XGROUP DESTROY {log} billing")).await;
                format!("XGROUP CREATE {log} billing {n}-0")
            }
            _ => {
                for _ in 0..n {
                    *added += 1;
                    self.cmd(&format!("XADD {log} {added}-0 f v")).await;
                }
                return;
            }
        };
        self.cmd(&command).await;
    }

    async fn lag_of(&self, backend: &RedisBackend) -> PartitionStats {
        backend.stats(&self.spec, &self.group).await.expect("stats").remove(0)
    }

    /// The same server, as if it said nothing of the lag.
    async fn silent(&self) -> RedisBackend {
        let config = RedisConfig::new(self.url.clone()).with_namespace(self.namespace.clone());
        RedisBackend::connect(config.with_count_lag(true)).await.expect("a backend")
    }
}

#[tokio::test]
async fn the_lag_is_exact_whatever_was_done_to_the_log() {
    let mut bench = Bench::new().await;
    let silent = bench.silent().await;
    let log = bench.log();
    for (steps, expected) in CASES {
        bench.cmd(&format!("DEL {log}")).await;
        let mut added = 0;
        bench.apply("add 10", &mut added).await;
        bench.cmd(&format!("XGROUP CREATE {log} billing 0")).await;
        for step in *steps {
            bench.apply(step, &mut added).await;
        }
        for (who, backend) in [("as the server is", &bench.backend), ("counted", &silent)] {
            let stats = bench.lag_of(backend).await;
            assert_eq!(stats.lag, Some(*expected), "{steps:?}, {who}: {stats:?}");
            assert_eq!(stats.lag_at_least, *expected, "{steps:?}, {who}");
        }
    }
}

/// A log that begins with an entry that was deleted behind, so that nobody's count is believed.
async fn long(bench: &mut Bench, entries: usize, position: usize) {
    let log = bench.log();
    bench.cmd(&format!("DEL {log}")).await;
    for from in (1..=entries).step_by(2_000) {
        let mut pipe = redis::pipe();
        for n in from..(from + 2_000).min(entries + 1) {
            pipe.cmd("XADD")
                .arg(log.as_str())
                .arg(format!("{n}-0"))
                .arg("payload")
                .arg("x".repeat(50))
                .ignore();
        }
        pipe.exec_async(&mut bench.raw).await.expect("appended");
    }
    bench.cmd(&format!("XDEL {log} {}-0", entries - 1)).await;
    bench.cmd(&format!("XGROUP CREATE {log} billing {position}-0")).await;
}

#[tokio::test]
async fn where_both_sides_are_long_it_is_not_known_and_the_server_is_not_held_up() {
    let mut bench = Bench::private(&["--slowlog-log-slower-than", "5000"]).await;
    let entries = 60_000;
    for (position, lag, at_least) in [
        (0, Some(59_999), 59_999),
        (900, Some(59_099), 59_099),
        (30_000, None, 10_000),
        (59_000, Some(999), 999),
    ] {
        long(&mut bench, entries, position).await;
        bench.cmd("SLOWLOG RESET").await;
        let stats = bench.lag_of(&bench.backend).await;
        assert_eq!((stats.lag, stats.lag_at_least), (lag, at_least), "at {position}: {stats:?}");
        assert_eq!(bench.int("SLOWLOG LEN").await, 0, "{:?}", bench.cmd("SLOWLOG GET").await);
    }
}

/// Prints what it takes; run it with `--ignored --nocapture`, on an otherwise idle machine.
#[tokio::test]
#[ignore = "measures; takes its time"]
async fn how_long_it_takes_over_a_million_entries() {
    let mut bench = Bench::new().await;
    for position in [0, 1_000, 5_000, 500_000, 999_000, 1_000_000] {
        long(&mut bench, 1_000_000, position).await;
        let mut took = Vec::new();
        let mut stats = None;
        for _ in 0..5 {
            let start = Instant::now();
            stats = Some(bench.lag_of(&bench.backend).await);
            took.push(start.elapsed());
        }
        took.sort_unstable();
        let stats = stats.expect("five times");
        println!("at {position}: lag {:?}, at least {}, {:?}", stats.lag, stats.lag_at_least, took[2]);
        assert!(took[2] < Duration::from_millis(50), "{took:?}");
    }
    let wide = TopicSpec::new("wide".parse().expect("name"), 64).expect("a topic");
    bench.backend.create_topic(&wide).await.expect("created");
    let start = Instant::now();
    for _ in 0..4 {
        bench.backend.stats(&wide, &bench.group).await.expect("stats");
    }
    println!("64 partitions, 4 groups: {:?}", start.elapsed());
}
