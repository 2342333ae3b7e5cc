//! Deleting topics and groups: every key of theirs goes, and none of anybody else.

pub(crate) mod twice;
pub(crate) mod unfinished;

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::cancels::WorkPlace;
use millstream_core::catalog::{Catalog, REMEMBERED, Start};
use millstream_core::error::ErrorKind;
use millstream_core::keys::{Key, Keys};
use millstream_core::leases::Lease;
use millstream_core::log::{Append, Log};
use millstream_core::members::Members;
use millstream_core::name::GroupName;
use millstream_core::recurring::{Recurrence, Recurring};
use millstream_core::schedule::{Due, OnConflict, Place, Schedule, Scheduling};
use millstream_core::topic::{Retention, TopicChange, TopicPartition, TopicSpec};
use redis::Value;

use crate::members::{assignment, member};
use crate::schedule::id;
use crate::server::{Bench, dead, fetch, grant, message, retry};

/// Runs every script of this role, for the tests that look at keys and permissions.
pub(crate) async fn life(bench: &mut Bench) {
    let spec = TopicSpec::new("brief".parse().expect("name"), 2).expect("a topic");
    fill(bench, &spec, "billing").await;
    let change = TopicChange::new().retention(Retention::Length(1)).max_length(9);
    bench.backend.alter_topic(&spec.name, &change).await.expect("changed");
    let lease = owner(bench, &spec, "billing", "trimming").await;
    bench.backend.trim(&lease, Retention::Length(1)).await.expect("trimmed");
    assert!(!bench.backend.pins(&spec).await.expect("pins").is_empty());
    assert!(bench.backend.delete_group(&spec.name, &group("billing")).await.expect("deleted"));
    assert!(bench.backend.delete_topic(&spec.name).await.expect("deleted"));
}

pub(crate) fn group(name: &str) -> GroupName {
    name.parse().expect("a name")
}

async fn owner(bench: &Bench, spec: &TopicSpec, name: &str, nonce: &str) -> Lease {
    let tp = TopicPartition::new(spec.name.clone(), 0);
    let lease = bench.keys.lease(&tp, &group(name));
    let mut raw = bench.raw.clone();
    redis::cmd("DEL").arg(lease.as_str()).exec_async(&mut raw).await.expect("deleted");
    grant(&bench.backend, &tp, &group(name), nonce).await
}

/// Makes every key that there can be of a topic and a group.
pub(crate) async fn fill(bench: &mut Bench, spec: &TopicSpec, name: &str) {
    let tp = TopicPartition::new(spec.name.clone(), 0);
    bench.backend.create_topic(spec).await.expect("created");
    bench.backend.create_group(spec, &group(name), Start::Earliest).await.expect("created");
    for tp in spec.iter() {
        let append = |n: usize| Append::new(tp.clone(), message(&n.to_string()));
        let batch: Vec<_> = (0..6).map(append).collect();
        for id in bench.backend.append(&batch).await {
            id.expect("appended");
        }
    }
    let lease = owner(bench, spec, name, "owner").await;
    let mut reader = bench.backend.reader(&lease).await.expect("a reader");
    let read = fetch(&mut reader, 5).await.entries;
    let note = millstream_core::log::Note { attempt: 1, by: "m".into(), ..Default::default() };
    let at = |n: usize| read[n].receipt;
    let batch = [
        (at(0), retry(Duration::ZERO, 2, at(0).id)),
        (at(1), retry(Duration::from_secs(60), 2, at(1).id)),
        (at(2), dead(at(2).id)),
        (at(3), millstream_core::log::Settlement::Hold(note)),
    ];
    bench.backend.settle(&lease, &batch).await.expect("settled");
    bench.backend.promote(&lease, 9).await.expect("promoted");
    // Only packed topics have these.
    let (packs, settled) = (bench.keys.packs(&tp), bench.keys.settled(&tp, &group(name)));
    bench.cmd(&format!("XADD {packs} * count 2 more 1")).await;
    bench.cmd(&format!("HSET {settled} 1-1 x")).await;
    let cancels = bench.keys.cancels(&WorkPlace::Group(tp.clone(), group(name)));
    bench.cmd(&format!("HSET {cancels} changes 1")).await;
    let (batches, notes) = (bench.keys.batches(&tp), bench.keys.batch_notes(&tp.clone().into()));
    bench.cmd(&format!("ZADD {batches} 1 x")).await;
    bench.cmd(&format!("XADD {notes} * x y")).await;
    let one = member("m", "m-1");
    let pulse = bench.backend.heartbeat(&spec.name, &group(name), &one, true).await.expect("a pulse");
    let assigned = assignment(&[("m", &[0])]);
    let published = bench.backend.publish(&spec.name, &group(name), pulse.version, &assigned).await;
    assert!(published.expect("an answer"));
    assert!(bench.backend.set_paused(&spec.name, &group(name), true).await.expect("an answer"));
    let place = Place::from(tp);
    let later = Scheduling {
        place: place.clone(),
        id: id("later"),
        due: Due::In(Duration::from_secs(60)),
        fields: message("later"),
        on_conflict: OnConflict::default(),
    };
    bench.backend.schedule(&[later]).await.remove(0).expect("scheduled");
    let again = Recurrence {
        id: id("again"),
        rule: "every 5s".into(),
        fields: message("again"),
        next: Some(Timestamp::from_millis(4_000_000_000_000)),
        paused: false,
    };
    Recurring::put(&bench.backend, &place, &again, OnConflict::Keep).await.expect("kept");
}

/// All that is on the server, byte for byte; of sets the members, since their order is nobody's.
pub(crate) async fn everything(bench: &mut Bench) -> BTreeMap<String, Vec<Vec<u8>>> {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut bench.raw).await.expect("keys");
    let mut all = BTreeMap::new();
    for key in keys {
        let kind: String = redis::cmd("TYPE").arg(&key).query_async(&mut bench.raw).await.expect("a type");
        let mut held: Vec<Vec<u8>> = if kind == "set" {
            redis::cmd("SMEMBERS").arg(&key).query_async(&mut bench.raw).await.expect("members")
        } else {
            vec![redis::cmd("DUMP").arg(&key).query_async(&mut bench.raw).await.expect("a dump")]
        };
        held.sort_unstable();
        all.insert(key, held);
    }
    all
}

/// The keys that are not the same in both.
pub(crate) fn differing(
    one: &BTreeMap<String, Vec<Vec<u8>>>,
    other: &BTreeMap<String, Vec<Vec<u8>>>,
) -> Vec<String> {
    let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
    keys.filter(|key| one.get(*key) != other.get(*key)).cloned().collect()
}

pub(crate) fn spec(name: &str, partitions: u32) -> TopicSpec {
    TopicSpec::new(name.parse().expect("name"), partitions).expect("a topic")
}

#[tokio::test]
async fn a_deleted_topic_leaves_nothing_and_takes_nothing_else() {
    let mut bench = Bench::private(&[]).await;
    for neighbour in ["order", "orders-2", "orders.p.0", "p"] {
        fill(&mut bench, &spec(neighbour, 2), "billing").await;
    }
    bench.cmd("XADD stream:topic:{flights:p:0} * payload x").await;
    bench.cmd("SET somebody else").await;
    let before = everything(&mut bench).await;
    let flights = spec("flights", 3);
    for group in ["billing", "audit", "billing-2"] {
        fill(&mut bench, &flights, group).await;
    }
    // A group that somebody made by hand, with keys of its own, and one with a name that is none of ours.
    let (hand, log) = (group("hand"), bench.keys.log(&TopicPartition::new(flights.name.clone(), 1)));
    bench.cmd(&format!("XGROUP CREATE {log} hand 0")).await;
    bench.cmd(&format!("XGROUP CREATE {log} not:ours 0")).await;
    let tp = TopicPartition::new(flights.name.clone(), 2);
    grant(&bench.backend, &tp, &hand, "first").await;
    let filled = everything(&mut bench).await;
    assert!(filled.len() > before.len() + 50, "{} keys and {} keys", before.len(), filled.len());
    // Of each kind of key that a topic or group can have there is one.
    let kinds = all_kinds(&bench.keys, &flights);
    for key in &kinds {
        assert!(filled.contains_key(key), "{key} was not made: the test does not test it");
    }
    assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
    forgotten(&mut bench, &flights).await;
    assert_eq!(differing(&everything(&mut bench).await, &before), [""; 0]);
    assert!(!bench.backend.delete_topic(&flights.name).await.expect("nothing to do"));
}

/// Lets the time pass for which it is remembered that a topic was deleted: one key, which goes by itself.
pub(crate) async fn forgotten(bench: &mut Bench, spec: &TopicSpec) {
    goes_by_itself(bench, &bench.keys.topic_deleted(&spec.name)).await;
}

pub(crate) async fn goes_by_itself(bench: &mut Bench, key: &Key) {
    let left = bench.int(&format!("PTTL {key}")).await;
    let remembered = i64::try_from(REMEMBERED.as_millis()).expect("small");
    assert!((1..=remembered).contains(&left), "{key} lasts {left} ms");
    bench.cmd(&format!("DEL {key}")).await;
}

/// All kinds of keys that are made for a topic and a group of it.
fn all_kinds(keys: &Keys, spec: &TopicSpec) -> Vec<String> {
    let (tp, group) = (TopicPartition::new(spec.name.clone(), 0), group("billing"));
    let place = Place::from(tp.clone());
    let all = [
        keys.log(&tp),
        keys.packs(&tp),
        keys.retry_log(&tp, &group),
        keys.dead_letters(&tp, &group),
        keys.lease(&tp, &group),
        keys.fence(&tp, &group),
        keys.retry_due(&tp, &group),
        keys.retry_items(&tp, &group),
        keys.held(&tp, &group),
        keys.settled(&tp, &group),
        keys.cancels(&WorkPlace::Group(tp.clone(), group.clone())),
        keys.batches(&tp),
        keys.batch_notes(&place),
        keys.delay(&place),
        keys.delay_items(&place),
        keys.recur(&place),
        keys.recur_items(&place),
        keys.wake(&place),
        keys.members(&spec.name, &group),
        keys.member(&spec.name, &group),
        keys.assignment(&spec.name, &group),
        keys.changes(&spec.name, &group),
        keys.topics(),
        keys.topic_meta(&spec.name),
        keys.topic_partitions(&spec.name),
        keys.topic_groups(&spec.name),
        keys.group_state(&spec.name, &group),
    ];
    all.iter().map(ToString::to_string).collect()
}

/// The gate of a reader has a name that only the fence knows: it goes with it.
#[tokio::test]
async fn no_gate_outlives_its_group_or_topic() {
    let mut bench = Bench::private(&[]).await;
    for of_topic in [false, true] {
        let flights = spec("flights", 1);
        bench.backend.create_topic(&flights).await.expect("created");
        bench.backend.create_group(&flights, &group("billing"), Start::Earliest).await.expect("created");
        let tp = TopicPartition::new(flights.name.clone(), 0);
        let lease = grant(&bench.backend, &tp, &group("billing"), "first").await;
        let mut reader = bench.backend.reader(&lease).await.expect("a reader");
        fetch(&mut reader, 10).await;
        assert_eq!(bench.cmd("KEYS *:gate:*").await.as_sequence().map_or(0, <[_]>::len), 1);
        if of_topic {
            assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
        } else {
            assert!(bench.backend.delete_group(&flights.name, &group("billing")).await.expect("deleted"));
        }
        assert_eq!(bench.cmd("KEYS *:gate:*").await.as_sequence().map_or(1, <[_]>::len), 0, "{of_topic}");
        let refused = reader.fetch(10, Duration::ZERO).await.expect_err("deleted");
        assert_eq!(refused.kind(), ErrorKind::Fenced);
        assert_eq!(
            bench.cmd("KEYS *:gate:*").await.as_sequence().map_or(1, <[_]>::len),
            0,
            "{of_topic}: none comes back"
        );
    }
}

#[tokio::test]
async fn a_deletion_that_was_stopped_can_be_asked_again() {
    let mut bench = Bench::private(&[]).await;
    let before = everything(&mut bench).await;
    let flights = spec("flights", 2);
    fill(&mut bench, &flights, "billing").await;
    let log = bench.keys.log(&TopicPartition::new(flights.name.clone(), 0));
    let meta = bench.keys.topic_meta(&flights.name);
    // As far as it had come: marked, and a log gone.
    bench.cmd(&format!("HSET {meta} deleting 2")).await;
    bench.cmd(&format!("HDEL {meta} partitionCount")).await;
    bench.cmd(&format!("UNLINK {log}")).await;
    for error in [
        bench.backend.topic(&flights.name).await.expect_err("being deleted"),
        bench.backend.create_topic(&flights).await.expect_err("being deleted"),
        bench.backend.expand(&flights.name, 3).await.expect_err("being deleted"),
    ] {
        assert_eq!(error.kind(), millstream_core::ErrorKind::NotFound, "{error}");
    }
    assert!(bench.backend.topics().await.expect("topics").contains(&flights.name), "it can be found");
    assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
    forgotten(&mut bench, &flights).await;
    assert_eq!(differing(&everything(&mut bench).await, &before), [""; 0]);
    // All but its name was gone.
    let registry = bench.keys.topics();
    bench.cmd(&format!("SADD {registry} flights")).await;
    assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
    assert_eq!(differing(&everything(&mut bench).await, &before), [""; 0]);
}

#[tokio::test]
async fn a_deleted_group_leaves_nothing_and_takes_nothing_else() {
    let mut bench = Bench::private(&[]).await;
    let flights = spec("flights", 2);
    fill(&mut bench, &flights, "audit").await;
    let before = everything(&mut bench).await;
    bench.backend.create_group(&flights, &group("billing"), Start::Earliest).await.expect("created");
    let tp = TopicPartition::new(flights.name.clone(), 0);
    let lease = grant(&bench.backend, &tp, &group("billing"), "first").await;
    let mut reader = bench.backend.reader(&lease).await.expect("a reader");
    let read = fetch(&mut reader, 5).await.entries;
    bench.backend.settle(&lease, &[(read[0].receipt, dead(read[0].receipt.id))]).await.expect("settled");
    let one = member("m", "m-1");
    bench.backend.heartbeat(&flights.name, &group("billing"), &one, true).await.expect("a pulse");
    assert!(bench.backend.delete_group(&flights.name, &group("billing")).await.expect("deleted"));
    let state = bench.keys.group_state(&flights.name, &group("billing"));
    goes_by_itself(&mut bench, &state).await;
    let after = everything(&mut bench).await;
    let names = |all: &BTreeMap<String, _>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    // A dump of a stream contains its history as well; the dumps of all other keys are unchanged.
    let logs: Vec<_> = flights.iter().map(|tp| bench.keys.log(&tp).to_string()).collect();
    let changed: Vec<_> = differing(&after, &before).into_iter().filter(|key| !logs.contains(key)).collect();
    assert_eq!(changed, [""; 0]);
    assert!(!bench.backend.delete_group(&flights.name, &group("billing")).await.expect("nothing to do"));
}

/// Much is pending, and the server is never held up for long.
#[tokio::test]
async fn deleting_never_blocks_the_server() {
    let mut bench = Bench::private(&[]).await;
    let (spec, name) = (bench.spec.clone(), bench.group.clone());
    bench.append_many(40_000).await;
    let log = bench.log();
    bench.cmd(&format!("XGROUP CREATE {log} other 0")).await;
    for group in ["billing", "other"] {
        for _ in 0..40 {
            bench.cmd(&format!("XREADGROUP GROUP {group} owner COUNT 1000 STREAMS {log} >")).await;
        }
    }
    let load = bench.watch_load().await;
    assert!(bench.backend.delete_group(&spec.name, &name).await.expect("deleted"));
    assert!(bench.backend.delete_topic(&spec.name).await.expect("deleted"));
    bench.is_never_held_up(&load, Duration::from_millis(5)).await;
    forgotten(&mut bench, &spec).await;
    let state = bench.keys.group_state(&spec.name, &name);
    goes_by_itself(&mut bench, &state).await;
    assert_eq!(bench.cmd("KEYS *").await, Value::Array(Vec::new()));
}
