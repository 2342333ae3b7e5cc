//! Verify on Redis: corruptions are planted by hand, found, repaired as far as they can be, and no message is lost by it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::{eventually, server::Server};
use millstream::admin::{Fault, Repaired, Verified, VerifyOptions};
use millstream::{Delivery, Millstream, Outcome, Start, Topic};
use millstream_core::keys::Keys;
use millstream_core::leases::Acquired;
use millstream_core::log::{Append, Entry, Source};
use millstream_core::recurring::Recurrence;
use millstream_core::schedule::{OnConflict, Place, ScheduleId, Scheduling, Shard};
use millstream_core::tasks::{ClaimRequest, QueueSpec};
use millstream_core::{
    Backend, Due, Envelope, GroupName, History, Lease, MessageId, Reader, Resource, Settlement, Timestamp,
    TopicPartition, TopicSpec, wire,
};

const ORDERS: Topic<u32> = Topic::new("orders").partitions(3);
const HOUR: Duration = Duration::from_secs(3_600);
const REPAIR: VerifyOptions = VerifyOptions { repair: true, limit: 1_000, progress: None };
const LOOK: VerifyOptions = VerifyOptions { repair: false, limit: 1_000, progress: None };

struct Stage {
    server: Server,
    mq: Millstream,
    backend: Backend,
    keys: Keys,
    topic: TopicSpec,
    group: GroupName,
}

impl Stage {
    async fn new() -> Self {
        let server = Server::start();
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        let backend = mq.backend().clone();
        let topic = backend.catalog().create_topic(&ORDERS.spec().expect("a topic")).await.expect("created");
        let group: GroupName = "billing".parse().expect("a name");
        backend.catalog().create_group(&topic, &group, Start::Earliest).await.expect("created");
        Self { server, mq, backend, keys: Keys::new(), topic, group }
    }

    fn partition(&self, number: u32) -> TopicPartition {
        TopicPartition::new(self.topic.name.clone(), number)
    }

    /// Appends these numbers as messages.
    async fn append(&self, partition: u32, numbers: impl IntoIterator<Item = u32>) -> Vec<MessageId> {
        let entry = |number: u32| {
            Append::new(self.partition(partition), wire::encode(&Envelope::new(number.to_string())))
        };
        let batch: Vec<_> = numbers.into_iter().map(entry).collect();
        self.backend.log().append(&batch).await.into_iter().map(|it| it.expect("appended").id).collect()
    }

    async fn own(&self, partition: u32) -> (Lease, Box<dyn Reader>) {
        let resource = Resource::partition(self.partition(partition), self.group.clone());
        let acquired = self
            .backend
            .leases()
            .acquire(&resource, "test", "nonce", HOUR, &millstream_core::Continuity::assured())
            .await
            .expect("asked");
        let Acquired::Granted(lease) = acquired else { panic!("not granted: {acquired:?}") };
        let reader = self.backend.log().reader(&lease).await.expect("a reader");
        (lease, reader)
    }

    async fn park(&self, lease: &Lease, entry: &Entry, after: Duration) {
        let retry = Settlement::Retry {
            due: Due::In(after),
            attempt: 2,
            origin: entry.receipt.id,
            error: "failed".to_owned(),
            history: History::default(),
            wait: None,
        };
        let settled = self.backend.log().settle(lease, &[(entry.receipt, retry)]).await.expect("settled");
        assert_eq!(settled.applied, 1);
    }

    async fn later(&self, place: &Place, id: &str, number: u32) {
        let scheduling = Scheduling {
            place: place.clone(),
            id: ScheduleId::new(id).expect("an id"),
            due: Due::In(HOUR),
            fields: wire::encode(&Envelope::new(number.to_string())),
            on_conflict: OnConflict::Reject,
        };
        self.backend.schedule().schedule(&[scheduling]).await.remove(0).expect("scheduled");
    }

    fn cli(&self, command: &str) -> String {
        self.server.cli(&command.split(' ').collect::<Vec<_>>())
    }

    async fn verify(&self, options: VerifyOptions) -> Verified {
        self.mq.admin().verify(&self.topic.name, options).await.expect("verified")
    }
}

fn faults(verified: &Verified) -> BTreeSet<Fault> {
    verified.verdicts.iter().map(|verdict| verdict.finding.fault).collect()
}

/// Everything that can be planted in a topic at once; and what must be handled in the end.
async fn corrupt(stage: &Stage) -> BTreeSet<u32> {
    let (keys, group) = (&stage.keys, &stage.group);
    let of = |number| {
        let tp = stage.partition(number);
        let place = Place::from(tp.clone());
        (
            keys.log(&tp),
            keys.retry_log(&tp, group),
            keys.retry_due(&tp, group),
            keys.retry_items(&tp, group),
            place,
        )
    };

    // Partition 0: twelve messages, of which ten were read.
    let ids = stage.append(0, 0..12).await;
    let (lease, mut reader) = stage.own(0).await;
    let entries = reader.fetch(10, Duration::ZERO).await.expect("read").entries;
    for entry in &entries[..4] {
        stage.park(&lease, entry, HOUR).await;
    }
    stage.park(&lease, &entries[5], Duration::ZERO).await;
    while stage.backend.schedule().promote(&lease, 10).await.expect("promoted").moved == 0 {}
    let mut again = reader.fetch(10, Duration::from_secs(1)).await.expect("read").entries;
    again.retain(|entry| entry.receipt.source == Source::Retry);
    let redelivery = again.first().expect("a redelivery").receipt.id;
    drop(reader);
    stage.backend.leases().release(&lease).await.expect("released");

    let (log, retry_log, due, items, place) = of(0);
    // 0: its body is lost, and still in the log. 1: lost for good. 2: no due time. 3: pending again. 4: a ghost.
    stage.cli(&format!("HDEL {items} {} {}", ids[0], ids[1]));
    stage.cli(&format!("XDEL {log} {} {}", ids[1], ids[4]));
    stage.cli(&format!("ZREM {due} {}", ids[2]));
    stage.cli(&format!("XCLAIM {log} billing owner 0 {} FORCE JUSTID", ids[3]));
    // 5: acknowledged in the retry log and not deleted. 6: under the name of somebody who is gone.
    stage.cli(&format!("XACK {retry_log} billing {redelivery}"));
    stage.cli(&format!("XCLAIM {log} billing somebody 0 {} IDLE 120000 JUSTID", ids[6]));
    let held = keys.held(&stage.partition(0), group);
    stage.cli(&format!("HSET {held} log:1-1 x retry:2-2 x"));
    for (id, number) in [("a", 20), ("b", 21)] {
        stage.later(&place, id, number).await;
    }
    stage.cli(&format!("ZREM {} a", keys.delay(&place)));
    stage.cli(&format!("HDEL {} b", keys.delay_items(&place)));

    // Partition 1: the position is beyond the end, the lease has none. Partition 2: the group is lost.
    stage.append(1, 30..35).await;
    stage.cli(&format!("XGROUP SETID {} billing 99999999999999-0", of(1).0));
    let lease = keys.lease(&stage.partition(1), group);
    stage.cli(&format!("SET {lease} for-ever"));
    stage.append(2, 40..45).await;
    stage.cli(&format!("XGROUP DESTROY {} billing", of(2).0));
    // What a person has to decide about.
    stage.cli(&format!("XGROUP CREATE {} strangers $", of(2).0));
    stage.cli(&format!("SET {} foreign", keys.recur(&of(2).4)));
    // The catalog.
    let topic = &stage.topic.name;
    stage.cli(&format!("SREM {} {topic}", keys.topics()));
    stage.cli(&format!("SREM {} {}", keys.topic_partitions(topic), of(1).0));
    stage.cli(&format!("SADD {} stream:of:nobody", keys.topic_partitions(topic)));

    // 1, 4 and 21 have no body any more: they are reported, and cannot be handled.
    let lost = [1, 4];
    (0..12).filter(|number| !lost.contains(number)).chain([20]).chain(30..35).chain(40..45).collect()
}

#[tokio::test]
async fn planted_corruptions_are_found_and_repaired_and_nothing_is_lost() {
    let stage = Stage::new().await;
    let expected = corrupt(&stage).await;
    let by_hand = BTreeSet::from([Fault::WrongType, Fault::GroupUnlisted, Fault::PartitionsUnfinished]);
    let mut planted = by_hand.clone();
    planted.extend([
        Fault::TopicUnlisted,
        Fault::PartitionUnlisted,
        Fault::GroupMissing,
        Fault::PositionAhead,
        Fault::LeaseBroken,
        Fault::RetryLost,
        Fault::RetryStranded,
        Fault::PendingAndParked,
        Fault::Ghost,
        Fault::RetryLeaked,
        Fault::NoteStray,
        Fault::ConsumerStray,
        Fault::BodyLost,
        Fault::BodyStranded,
    ]);
    let before = stage.cli("DBSIZE");
    let looked = stage.verify(LOOK).await;
    assert_eq!(faults(&looked), planted, "{looked:#?}");
    let same = stage.verify(LOOK).await;
    assert_eq!(
        (same.verdicts, stage.cli("DBSIZE")),
        (looked.verdicts.clone(), before),
        "a look changes nothing"
    );

    let repaired = stage.verify(REPAIR).await;
    // The bodies that are gone stay recorded.
    let recorded = BTreeSet::from([Fault::EntriesLost]);
    assert_eq!(faults(&repaired), &planted | &recorded);
    for verdict in &repaired.verdicts {
        let expected = match verdict.finding.fault {
            fault if by_hand.contains(&fault) => [Repaired::Person, Repaired::Person],
            Fault::EntriesLost => [Repaired::Record, Repaired::Record],
            // Who lists the topic lists its partitions.
            Fault::PartitionUnlisted => [Repaired::Yes, Repaired::Gone],
            _ => [Repaired::Yes, Repaired::Yes],
        };
        assert!(expected.contains(&verdict.repaired), "{verdict:?}");
    }
    assert_eq!(faults(&stage.verify(LOOK).await), &by_hand | &recorded, "what is left");

    // By hand.
    let place = Place::from(stage.partition(2));
    stage.cli(&format!("DEL {}", stage.keys.recur(&place)));
    stage.cli(&format!("XGROUP DESTROY {} strangers", stage.keys.log(&stage.partition(2))));
    stage.cli(&format!("SREM {} stream:of:nobody", stage.keys.topic_partitions(&stage.topic.name)));
    let verified = stage.verify(LOOK).await;
    assert!(verified.is_repaired() && !verified.is_sound() && !verified.lost().is_nothing(), "{verified:?}");
    handles(&stage, expected).await;
    let letters = stage.mq.dead_letters(&ORDERS, "billing").await.expect("dead letters");
    let letters = letters.list(100).await.expect("listed");
    assert_eq!(letters.iter().map(|letter| letter.reason.as_str()).collect::<Vec<_>>(), ["orphan"]);
}

/// Everything comes now that waits, and each number is handled at least once.
async fn handles(stage: &Stage, expected: BTreeSet<u32>) {
    let due = stage.keys.retry_due(&stage.partition(0), &stage.group);
    for origin in stage.cli(&format!("ZRANGE {due} 0 -1")).lines() {
        stage.cli(&format!("ZADD {due} XX 1 {origin}"));
    }
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let handler = {
        let seen = seen.clone();
        move |delivery: Delivery<u32>| {
            seen.lock().expect("lock").insert(delivery.payload);
            async { Outcome::Ack }
        }
    };
    let consumer = stage.mq.consumer(ORDERS, "billing").start(handler).await.expect("started");
    let all = async || *seen.lock().expect("lock") == expected;
    eventually(all, "every message that has a body is handled").await;
    let sound = async || stage.verify(LOOK).await.is_repaired();
    eventually(sound, "nothing is wrong when all is handled").await;
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_topic_whose_settings_are_gone_gets_them_back_from_its_partitions() {
    let stage = Stage::new().await;
    let expected: BTreeSet<u32> = (0..5).collect();
    stage.append(2, 0..5).await;
    stage.cli(&format!("DEL {}", stage.keys.topic_meta(&stage.topic.name)));
    stage.cli(&format!("SADD {} nothing", stage.keys.topics()));
    assert_eq!(faults(&stage.verify(LOOK).await), BTreeSet::from([Fault::TopicWithoutSettings]));
    assert!(stage.verify(REPAIR).await.is_sound());
    assert_eq!(stage.backend.catalog().topic(&stage.topic.name).await.expect("there").partitions, 3);
    handles(&stage, expected).await;

    let nothing = "nothing".parse().expect("a name");
    assert!(stage.mq.admin().verify(&nothing, REPAIR).await.expect("verified").is_sound());
    assert_eq!(stage.backend.catalog().topics().await.expect("listed"), [stage.topic.name]);
}

#[tokio::test]
async fn what_is_wrong_at_a_shard_is_found_and_repaired() {
    let stage = Stage::new().await;
    let spec = QueueSpec::new("mails".parse().expect("a name"), 1);
    let spec = stage.backend.tasks().expect("delay queues").create_queue(&spec).await.expect("created");
    let shard = Shard::new(spec.name.clone(), 0);
    let place = Place::from(shard.clone());
    for (id, number) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        stage.later(&place, id, number).await;
    }
    let now = ScheduleId::new("d").expect("an id");
    stage.backend.schedule().reschedule(&place, &[now], Due::NOW).await.expect("moved");
    let claimed = async || {
        let ask = ClaimRequest {
            worker: "w".to_owned(),
            limit: 10,
            hold: HOUR,
            crash_limit: 0,
            longest_sleep: HOUR,
            continuity: millstream_core::Continuity::assured(),
        };
        !stage
            .backend
            .tasks()
            .expect("delay queues")
            .claim(&shard, &ask)
            .await
            .expect("claimed")
            .tasks
            .is_empty()
    };
    eventually(claimed, "d is claimed").await;
    let keys = &stage.keys;
    stage.cli(&format!("ZREM {} a", keys.delay(&place)));
    stage.cli(&format!("HDEL {} b", keys.delay_items(&place)));
    stage.cli(&format!("ZADD {} 1 d", keys.delay(&place)));
    stage.cli(&format!("HSET {} nobody x", keys.task_states(&shard)));
    let admin = stage.mq.admin();
    let rule = Recurrence {
        id: ScheduleId::new("r").expect("an id"),
        rule: "every 5000 anchor 0 skip".into(),
        fields: wire::encode(&Envelope::new("1")),
        next: Some(Timestamp::from_millis(7)),
        paused: false,
    };
    let recurring = stage.backend.recurring().expect("recurring rules");
    recurring.put(&place, &rule, OnConflict::Keep).await.expect("kept");
    stage.cli(&format!("DEL {}", keys.recur(&place)));
    assert_eq!(recurring.due(&place).await.expect("an answer").recurrences, []);
    let planted = BTreeSet::from([
        Fault::BodyLost,
        Fault::BodyStranded,
        Fault::TaskTwice,
        Fault::StateStray,
        Fault::RuleStranded,
    ]);
    assert_eq!(faults(&admin.verify_queue(&spec.name, LOOK).await.expect("verified")), planted);
    let repaired = admin.verify_queue(&spec.name, REPAIR).await.expect("verified");
    let recorded = &planted | &BTreeSet::from([Fault::EntriesLost]);
    assert!(repaired.is_repaired() && faults(&repaired) == recorded, "{repaired:#?}");
    let verified = admin.verify_queue(&spec.name, LOOK).await.expect("verified");
    assert_eq!((verified.verdicts.len(), verified.is_sound(), verified.lost().pending), (1, false, 1));
    let waiting = stage.backend.schedule().scheduled(&place, None, 10).await.expect("listed");
    assert_eq!(waiting.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(recurring.due(&place).await.expect("an answer").recurrences, [rule], "it fires again");
}

#[tokio::test]
async fn nothing_is_found_while_everything_moves() {
    let stage = Stage::new().await;
    let handled = Arc::new(AtomicU32::new(0));
    let handler = {
        let handled = handled.clone();
        move |delivery: Delivery<u32>| {
            let fails = delivery.attempt() == 1 && delivery.payload.is_multiple_of(3);
            if !fails {
                handled.fetch_add(1, Ordering::Relaxed);
            }
            async move {
                if fails { Outcome::retry_after(Duration::from_millis(20), "again") } else { Outcome::Ack }
            }
        }
    };
    let consumer = stage.mq.consumer(ORDERS, "billing").start(handler).await.expect("started");
    for round in 0..20 {
        for partition in 0..3 {
            stage.append(partition, round * 100..(round + 1) * 100).await;
        }
        let verified = stage.verify(LOOK).await;
        assert_eq!(verified.verdicts, [], "round {round}");
    }
    let done = async || {
        let verified = stage.verify(LOOK).await;
        assert_eq!(verified.verdicts, []);
        handled.load(Ordering::Relaxed) == 6_000
    };
    eventually(done, "all is handled").await;
    consumer.shutdown().await;
}
