//! Hooks when partitions come and go: awaited, in their place between messages and owners, and bounded.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::{ErrorKind, RebalanceListener, Start, TopicPartition};
use millstream_runtime::{Concurrency, Sharing};
use tokio::time::Instant;

use crate::support::group::group;
use crate::support::*;

const SECOND: Duration = Duration::from_secs(1);

type Lines = Arc<Mutex<Vec<String>>>;

/// Writes a line at the begin and the end of each hook.
#[derive(Debug)]
struct Lister {
    name: &'static str,
    lines: Lines,
    takes: Duration,
}

impl Lister {
    async fn write(&self, what: &str, topic_partition: &TopicPartition) {
        let line = format!("{} {what} {}", self.name, topic_partition.partition);
        self.lines.lock().expect("lock").push(line.clone());
        tokio::time::sleep(self.takes).await;
        self.lines.lock().expect("lock").push(format!("{line} done"));
    }
}

#[async_trait]
impl RebalanceListener for Lister {
    async fn acquired(&self, topic_partition: &TopicPartition, epoch: u64) {
        assert!(epoch > 0);
        self.write("acquired", topic_partition).await;
    }

    async fn before_release(&self, topic_partition: &TopicPartition, _: u64) {
        self.write("releases", topic_partition).await;
    }

    async fn after_loss(&self, topic_partition: &TopicPartition, _: u64) {
        self.write("lost", topic_partition).await;
    }
}

fn position(lines: &[String], line: &str) -> usize {
    lines.iter().position(|it| it == line).unwrap_or_else(|| panic!("{line}: {lines:#?}"))
}

#[tokio::test(start_paused = true)]
async fn a_partition_moves_between_two_hooks_and_no_message_overtakes_them() {
    let group = group(2);
    let lines = Lines::default();
    let listener = |name| Lister { name, lines: lines.clone(), takes: MS(400) };
    let load = group.load().await;
    let began = Instant::now();
    let a = group.join("a", MS(1), |builder| builder.on_rebalance(listener("a"))).await;
    eventually(|| group.count() > 0, || "nothing is handled".into()).await;
    assert!(began.elapsed() >= MS(400), "no message before the hook has ended");

    let b = group.join("b", MS(1), |builder| builder.on_rebalance(listener("b"))).await;
    group.balanced(&[1, 1]).await;
    let moved = *group.history.of("b").first().expect("one");
    eventually(|| lines.lock().expect("lock").len() == 8, || format!("{lines:#?}")).await;
    let seen = lines.lock().expect("lock").clone();
    assert!(
        position(&seen, &format!("a releases {moved} done"))
            < position(&seen, &format!("b acquired {moved}")),
        "{seen:#?}"
    );
    assert_eq!(group.history.overlaps(), []);

    // A seek lets the partition go and takes it again.
    let tp = TopicPartition::new("orders".parse().expect("a name"), moved);
    b.consumer.seek(&tp, Start::Latest).await.expect("sought");
    let again = || lines.lock().expect("lock").iter().filter(|it| it.starts_with("b acquired")).count() == 4;
    eventually(again, || format!("{lines:#?}")).await;
    assert_eq!(
        lines.lock().expect("lock")[8..10],
        [format!("b releases {moved}"), format!("b releases {moved} done")]
    );

    load.stop().await;
    b.leave().await;
    a.leave().await;
    let seen = lines.lock().expect("lock").clone();
    let count = |what: &str| seen.iter().filter(|it| it.contains(what) && it.ends_with("done")).count();
    assert_eq!(
        (count("acquired"), count("releases"), count("lost")),
        (count("releases"), count("acquired"), 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_never_ends_costs_one_ttl_and_a_lost_lease_is_told() {
    let group = group(1);
    let lines = Lines::default();
    let listener = Lister { name: "a", lines: lines.clone(), takes: Duration::from_secs(1_000_000) };
    let load = group.load().await;
    let began = Instant::now();
    let a = group.join("a", MS(1), |builder| builder.lease_ttl(2 * SECOND).on_rebalance(listener)).await;
    eventually(|| group.count() > 0, || "nothing is handled".into()).await;
    assert!((2 * SECOND..4 * SECOND).contains(&began.elapsed()), "{:?}", began.elapsed());

    a.link.freeze();
    let b = group.join("b", MS(1), |builder| builder.lease_ttl(2 * SECOND)).await;
    group.balanced(&[1]).await;
    eventually(|| group.history.of("b").len() == 1, || format!("{:?}", group.history.owners())).await;
    a.link.thaw();
    let lost = || lines.lock().expect("lock").contains(&"a lost 0".to_owned());
    eventually(lost, || format!("{lines:#?}")).await;
    load.stop().await;
    b.leave().await;
    a.leave().await;
    assert!(!lines.lock().expect("lock").iter().any(|it| it.ends_with("done")), "{lines:#?}");
}

/// Panics in each hook.
#[derive(Debug)]
struct Broken;

#[async_trait]
impl RebalanceListener for Broken {
    async fn acquired(&self, _: &TopicPartition, _: u64) {
        panic!("a hook panics")
    }

    async fn before_release(&self, _: &TopicPartition, _: u64) {
        panic!("a hook panics")
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_is_told_and_shared_consumers_have_none() {
    let bench = bench();
    produce(&bench, 4).await;
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |delivery: millstream_runtime::Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").on_rebalance(Broken).start(handler.clone()).await;
    let consumer = consumer.expect("started");
    until(&seen, 4).await;
    let report = consumer.shutdown().await;
    assert_eq!(report.acked, 4);
    assert_eq!(bench.told.lines("RebalanceListener"), 2);

    let shared = bench.consumer(NUMBERS, "g").on_rebalance(Broken).sharing(Sharing::Shared);
    let refused = shared.concurrency(Concurrency::Unordered(2)).start(handler).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
}
