//! Keys of ours that somebody else has written to: verify names each, says sound of nothing that it could not look at,
//! and looks again behind its repairs.

use integration_tests::server::Server;
use millstream::admin::{Fault, InUse, Repaired, Verified, VerifyOptions};
use millstream::{ErrorKind, Millstream, Start, Topic};
use millstream_core::keys::Keys;
use millstream_core::schedule::Shard;
use millstream_core::tasks::QueueSpec;
use millstream_core::{GroupName, TopicName, TopicPartition};

const ORDERS: Topic<u32> = Topic::new("orders").partitions(1);
const REPAIR: VerifyOptions = VerifyOptions { repair: true, limit: 1_000, progress: None };
const LOOK: VerifyOptions = VerifyOptions { repair: false, limit: 1_000, progress: None };

struct Stage {
    server: Server,
    mq: Millstream,
    keys: Keys,
    topic: TopicName,
    group: GroupName,
    tp: TopicPartition,
}

impl Stage {
    async fn new() -> Self {
        let server = Server::start();
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        let spec =
            mq.backend().catalog().create_topic(&ORDERS.spec().expect("a topic")).await.expect("created");
        let group: GroupName = "billing".parse().expect("a name");
        mq.backend().catalog().create_group(&spec, &group, Start::Earliest).await.expect("created");
        let tp = TopicPartition::new(spec.name.clone(), 0);
        Self { server, mq, keys: Keys::new(), topic: spec.name, group, tp }
    }

    fn cli(&self, command: &str) -> String {
        self.server.cli(&command.split(' ').collect::<Vec<_>>())
    }

    async fn verify(&self, options: VerifyOptions) -> Verified {
        self.mq.admin().verify(&self.topic, options).await.expect("verified")
    }

    /// What is found, and of what.
    async fn found(&self) -> Vec<(Fault, String)> {
        let of = |verdict: millstream::admin::Verdict| (verdict.finding.fault, verdict.finding.id);
        self.verify(LOOK).await.verdicts.into_iter().map(of).collect()
    }
}

#[tokio::test]
async fn every_key_of_a_topic_and_of_its_groups_is_looked_at() {
    let stage = Stage::new().await;
    let (keys, topic, group) = (&stage.keys, &stage.topic, &stage.group);
    let all = [
        (keys.topic_meta(topic), "SET"),
        (keys.topic_partitions(topic), "SET"),
        (keys.topic_partitions(topic), "RPUSH"),
        (keys.topic_groups(topic), "SET"),
        (keys.topic_deleted(topic), "RPUSH"),
        (keys.topics(), "SET"),
        (keys.members(topic, group), "SET"),
        (keys.member(topic, group), "RPUSH"),
        (keys.assignment(topic, group), "SET"),
        (keys.changes(topic, group), "SET"),
        (keys.group_state(topic, group), "SET"),
        (keys.retry_due(&stage.tp, group), "SET"),
        (keys.log(&stage.tp), "SET"),
    ];
    assert_eq!(stage.found().await, []);
    for (key, command) in all {
        let there = stage.cli(&format!("EXISTS {key}")) != "0";
        if there {
            stage.cli(&format!("RENAME {key} aside"));
        }
        stage.cli(&format!("{command} {key} x"));
        let found = stage.found().await;
        assert!(found.contains(&(Fault::WrongType, key.to_string())), "{command} {key}: {found:?}");
        stage.cli(&format!("DEL {key}"));
        if there {
            stage.cli(&format!("RENAME aside {key}"));
        }
        assert_eq!(stage.found().await, [], "{key} is back");
    }

    let queue = QueueSpec::new("mails".parse().expect("a name"), 2);
    let queue =
        stage.mq.backend().tasks().expect("delay queues").create_queue(&queue).await.expect("created");
    stage.cli(&format!("DEL {}", keys.queues()));
    stage.cli(&format!("RPUSH {} x", keys.queues()));
    let verified = stage.mq.admin().verify_queue(&queue.name, LOOK).await.expect("verified");
    let faults: Vec<_> = verified.verdicts.iter().map(|it| (it.finding.fault, &*it.finding.id)).collect();
    assert_eq!(faults, [(Fault::WrongType, keys.queues().as_str())]);
    let _ = Shard::new(queue.name, 0);
}

#[tokio::test]
async fn what_makes_no_sense_is_told_and_is_not_sound() {
    let stage = Stage::new().await;
    let (keys, topic, group) = (&stage.keys, &stage.topic, &stage.group);
    let (meta, state, fence) =
        (keys.topic_meta(topic), keys.group_state(topic, group), keys.fence(&stage.tp, group));
    stage.cli(&format!("HSET {state} paused zzz"));
    stage.cli(&format!("HSET {fence} epoch 99999999999999999999"));
    let expected = [(Fault::SettingsDamaged, state.to_string()), (Fault::FenceDamaged, fence.to_string())];
    assert_eq!(stage.found().await, expected);
    assert!(stage.verify(REPAIR).await.verdicts.iter().all(|it| it.repaired == Repaired::Person));
    let admin = stage.mq.admin();
    assert!(admin.resume_group(topic, group).await.expect("resumed"));
    stage.cli(&format!("HDEL {fence} epoch"));
    assert_eq!(stage.found().await, []);

    for (field, value) in [("partitionCount", "abc"), ("retention", "yolo"), ("format", "x")] {
        stage.cli(&format!("HSET {meta} {field} {value}"));
        assert_eq!(stage.found().await, [(Fault::SettingsDamaged, meta.to_string())], "{field}");
        let refused = admin.delete_topic(topic, InUse::Refuse).await.expect_err("not forced");
        assert!(matches!(refused.kind(), ErrorKind::Protocol | ErrorKind::Unsupported), "{refused}");
        admin.delete_topic(topic, InUse::Force).await.expect("deleted");
        let left = stage.cli("KEYS *orders*");
        assert_eq!(left.trim(), keys.topic_deleted(topic).as_str(), "{field}: what it left");
        let spec = admin.create_topic(&ORDERS.spec().expect("a topic")).await.expect("created");
        admin.create_group(&spec.name, group, Start::Earliest).await.expect("created");
    }
    // What a newer version has made is not touched.
    stage.cli(&format!("HSET {meta} format 9"));
    let refused = admin.delete_topic(topic, InUse::Force).await.expect_err("a newer format");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    // A foreign key in the place of the settings says its name.
    stage.cli(&format!("RENAME {meta} aside"));
    stage.cli(&format!("SET {meta} x"));
    let refused = admin.delete_topic(topic, InUse::Force).await.expect_err("a foreign key");
    assert_eq!(refused.kind(), ErrorKind::WrongType);
    assert!(refused.to_string().contains(meta.as_str()), "{refused}");
}

#[tokio::test]
async fn behind_a_repair_it_is_looked_again() {
    let stage = Stage::new().await;
    let (keys, group) = (&stage.keys, &stage.group);
    let (log, retry_log, due) =
        (keys.log(&stage.tp), keys.retry_log(&stage.tp, group), keys.retry_due(&stage.tp, group));
    // Handed out of the retry log, settled and not deleted; and too large to be copied value by value.
    let body: String = (0..3_500).map(|at| format!(" f{at} v{at}")).collect();
    stage.server.cli(
        &format!("XADD {retry_log} * attempt 2 origin 1-1 error - history -{body}")
            .split(' ')
            .collect::<Vec<_>>(),
    );
    let id = stage.cli(&format!("XREVRANGE {retry_log} + - COUNT 1"));
    let id = id.split_whitespace().next().expect("an id").to_owned();
    stage.cli(&format!("XREADGROUP GROUP billing owner STREAMS {retry_log} >"));
    stage.cli(&format!("XACK {retry_log} billing {id}"));
    // Pending in the log, and a due time without a body.
    let pending = stage.cli(&format!("XADD {log} * payload 1")).trim().to_owned();
    stage.cli(&format!("XREADGROUP GROUP billing owner STREAMS {log} >"));
    stage.cli(&format!("ZADD {due} 1 {pending}"));

    let found: Vec<_> = stage.found().await.into_iter().map(|(fault, _)| fault).collect();
    assert_eq!(found, [Fault::RetryLost, Fault::RetryLeaked]);
    let repaired = stage.verify(REPAIR).await;
    assert!(repaired.verdicts.iter().all(|it| it.repaired == Repaired::Yes), "{repaired:#?}");
    assert!(repaired.is_sound());
    assert_eq!(stage.found().await, [], "and so it is");
    assert_eq!(stage.cli(&format!("ZCARD {due}")).trim(), "0", "what is pending is not parked");
    assert_eq!(stage.cli(&format!("XLEN {retry_log}")).trim(), "1", "and what leaked is there once");
    let again = stage.cli(&format!("XRANGE {retry_log} - +"));
    assert!(again.contains("packed") && !again.contains(&id), "under another id, in one field");
}

#[tokio::test]
async fn a_repair_that_is_not_done_is_still_wrong() {
    let stage = Stage::new().await;
    let (keys, group) = (&stage.keys, &stage.group);
    let (due, items) = (keys.retry_due(&stage.tp, group), keys.retry_items(&stage.tp, group));
    stage.cli(&format!("HSET {items} 1-1 x"));
    // Nobody may write: the repair fails, and says so; nothing is called sound.
    stage.cli("CONFIG SET min-replicas-to-write 1");
    let failed = stage.mq.admin().verify(&stage.topic, REPAIR).await;
    assert!(failed.as_ref().map_or(true, |verified| !verified.is_sound()), "{failed:?}");
    stage.cli("CONFIG SET min-replicas-to-write 0");
    assert!(stage.verify(REPAIR).await.is_sound());
    assert_eq!(stage.cli(&format!("ZCARD {due}")).trim(), "1");
}
