//! A group that somebody moves with `XGROUP SETID`, and groups that only look like one.

use std::time::Duration;

use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::admin::{Fault, VerifyOptions};
use millstream::{Concurrency, Consumer, Delivery, Millstream, Retention, Sharing, Topic};

const JOBS: Topic<u64> = Topic::new("jobs").retention(Retention::Keep);
const LOG: &str = "stream:topic:{jobs:p:0}";

struct Stage {
    server: Server,
    mq: Millstream,
}

impl Stage {
    async fn new() -> Self {
        let server = Server::start();
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        Self { server, mq }
    }

    async fn send(&self, count: u64) {
        let producer = self.mq.producer(JOBS).await.expect("a producer");
        for number in 0..count {
            producer.send(&number).await.expect("sent");
        }
    }

    async fn handles(&self, sharing: Sharing, count: u64) {
        let mut builder = self.mq.consumer(JOBS, "g").lease_ttl(Duration::from_secs(3)).sharing(sharing);
        if sharing == Sharing::Shared {
            builder = builder.concurrency(Concurrency::Unordered(2));
        }
        let consumer: Consumer = builder.start(async |_: Delivery<u64>| {}).await.expect("started");
        eventually(async || consumer.report().acked == count, "all are handled").await;
        consumer.shutdown().await;
    }

    async fn findings(&self) -> Vec<(Fault, String)> {
        let name = "jobs".parse().expect("a name");
        let verified = self.mq.admin().verify(&name, VerifyOptions::default()).await.expect("verified");
        verified.verdicts.into_iter().map(|it| (it.finding.fault, it.finding.detail)).collect()
    }

    /// Lets the server's clock pass what its answers may differ by: entries that come now are newer than the last read.
    async fn time_passes(&self) {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_are_skipped_by_hand_are_told_until_somebody_reads_on() {
    let stage = Stage::new().await;
    stage.send(3).await;
    stage.handles(Sharing::Exclusive, 3).await;
    assert_eq!(stage.findings().await, []);
    stage.time_passes().await;
    stage.send(5).await;
    assert_eq!(stage.findings().await, [], "they are unread");
    stage.server.cli(&["XGROUP", "SETID", LOG, "g", "$"]);
    let [(Fault::PositionSkipped, detail)] = &stage.findings().await[..] else { panic!("not found") };
    assert!(detail.ends_with("entries skipped: at least 5"), "{detail}");
    // What is trimmed meanwhile was skipped all the same.
    stage.server.cli(&["XTRIM", LOG, "MAXLEN", "0"]);
    let found = stage.findings().await;
    assert!(found.iter().any(|(fault, _)| *fault == Fault::PositionSkipped), "{found:?}");
    stage.send(1).await;
    stage.handles(Sharing::Exclusive, 1).await;
    let found = stage.findings().await;
    assert!(found.iter().all(|(fault, _)| *fault != Fault::PositionSkipped), "{found:?}");
}

/// Clients that move a group create it anew, and members that share partitions leave no name behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_moved_by_a_client_or_read_by_others_was_not_moved_by_hand() {
    let stage = Stage::new().await;
    stage.send(3).await;
    stage.handles(Sharing::Exclusive, 3).await;
    stage.time_passes().await;
    stage.send(4).await;
    stage.handles(Sharing::Shared, 4).await;
    assert_eq!(stage.findings().await, [], "others have read on");
    stage.time_passes().await;
    stage.send(2).await;
    let (topic, group) = ("jobs".parse().expect("a name"), "g".parse().expect("a name"));
    stage.mq.admin().reset_group(&topic, &group, millstream::Start::Latest).await.expect("moved");
    assert_eq!(stage.findings().await, [], "it was moved as it should be");
}
