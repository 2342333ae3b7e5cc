//! Messages that are larger than the default limits, in topics and queues whose programs allow them.

use bytes::Bytes;
use millstream::crates::core::Limits;
use millstream::crates::runtime::ProducerConfig;
use millstream::delay::{DelayQueue, Task};
use millstream::{ConsumerConfig, Delivery, Never, Outcome, Retention, Topic};
use serde_json::Value;

use crate::support::cli::Cli;
use crate::support::feed::eventually;

const SIZE: usize = 2 << 20;
/// It keeps what one group has settled for the next one.
const LARGE: Topic<Bytes> = Topic::raw("large").retention(Retention::Keep);

/// A message that is larger than each of the default limits.
fn payload() -> Bytes {
    Bytes::from(vec![b'x'; SIZE])
}

/// A tool's own limit settles nothing, and hides nothing.
#[tokio::test]
async fn a_message_is_as_large_as_its_topic_allows() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let mut config = ProducerConfig::default();
    config.limits = Limits::NONE;
    let producer = mq.producer(LARGE).config(config).await.expect("a topic");
    let payload = payload();
    let sent = producer.send(&payload).key(vec![b'k'; 2_000]).header("h", vec![b'h'; 9_000]);
    sent.await.expect("sent");
    // What it gets is what was sent.
    let counts = format!("test $(wc -c) = {SIZE}");
    let ran =
        cli.run(["consume", "large", "-g", "done", "--until-empty", "--fail-on-dead", "--exec", &counts]);
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (0, "created group done of large at earliest\n1 message done\n")
    );
    let printed = cli.ok("consume large -g printed --until-empty --format payload");
    assert_eq!(printed.trim_end().len(), SIZE);

    let mut config = ConsumerConfig::default();
    config.limits = Limits::NONE;
    let consumer = mq.consumer(LARGE, "dead").config(config);
    let consumer =
        consumer.start(async |_: Delivery<Bytes>| Outcome::dead_letter("no")).await.expect("started");
    eventually("it is dead", async || consumer.report().dead == 1).await;
    consumer.shutdown().await;
    let letters = cli.json("dlq list large dead --filter xxx");
    assert_eq!(letters["letters"][0]["payload"].as_str().map(str::len), Some(SIZE), "it is a message");
    let ran =
        cli.run(["dlq", "consume", "large", "dead", "--then", "leave", "--until-empty", "--exec", &counts]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.stderr.contains("failed"), "{ran:?}");
    cli.ok("topic create other");
    cli.ok("dlq replay large dead --all --to-topic other --set-header a=1 --yes");
    assert_eq!(cli.json("dlq count large dead")["count"], 0);
    let replayed = crate::support::envelope::lines(&cli.ok("consume other -g g --until-empty --json"));
    assert_eq!(replayed[0]["payload"].as_str().map(str::len), Some(SIZE));
    assert_eq!(replayed[0]["headers"]["a"], Value::from("1"));
}

/// What sends has a limit of its own, since programs with the default ones would refuse the message. It can be raised.
#[tokio::test]
async fn a_message_that_is_sent_is_as_large_as_the_option_allows() {
    let cli = Cli::new();
    cli.ok("topic create large");
    cli.ok("queue create large");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("payload");
    std::fs::write(&file, payload()).expect("written");
    let file = file.to_str().expect("a path");
    let commands: [&[&str]; 4] = [
        &["produce", "large", "--format", "raw", file],
        &["produce", "large", "--format", "lines", file],
        &["queue", "add", "large", "--id", "one", "--file", file],
        &["schedule", "add", "large", "one", "--every", "1h", "--file", file],
    ];
    for command in commands {
        let ran = cli.run(command);
        assert!(ran.code != 0 && ran.stderr.contains("; --max-payload allows more"), "{command:?}: {ran:?}");
        let ran = cli.run(&[command, &["--max-payload", "1MiB"]].concat()[..]);
        assert!(ran.code != 0, "{command:?}: {ran:?}");
        let ran = cli.run(&[command, &["--max-payload", "2MiB"]].concat()[..]);
        assert_eq!(ran.code, 0, "{command:?}: {ran:?}");
    }
    let all = crate::support::envelope::lines(&cli.ok("consume large -g g --until-empty --json"));
    let sizes: Vec<_> = all.iter().map(|it| it["payload"].as_str().map(str::len)).collect();
    assert_eq!(sizes, [Some(SIZE); 2]);
    let counts = format!("test $(wc -c) = {SIZE}");
    let ran = cli.run(["queue", "work", "large", "--exec", &counts, "--until-empty", "--fail-on-dead"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "1 task done\n"), "{ran:?}");
}

#[tokio::test]
async fn a_task_is_as_large_as_its_queue_allows() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let queue = DelayQueue::raw("large").limits(Limits::NONE).open(mq.backend()).await.expect("a queue");
    queue.schedule(&payload()).id("one").await.expect("scheduled");
    let counts = format!("test $(wc -c) = {SIZE}");
    let ran = cli.run(["queue", "work", "large", "--exec", &counts, "--until-empty", "--fail-on-dead"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "1 task done\n"), "{ran:?}");
    queue.schedule(&payload()).id("two").await.expect("scheduled");
    let worker = queue.worker().retry(Never).start(async |_: Task<Bytes>| Outcome::dead_letter("no"));
    let worker = worker.await.expect("a worker");
    eventually("it is dead", async || worker.report().dead == 1).await;
    worker.shutdown().await;
    let dead = cli.json("queue dead show large two");
    assert_eq!(dead["payload"].as_str().map(str::len), Some(SIZE));
    cli.ok("queue dead edit large two --set-header a=1");
    let ran = cli.run(["queue", "work", "large", "--exec", &counts, "--until-empty", "--fail-on-dead"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "1 task done\n"), "{ran:?}");
}
