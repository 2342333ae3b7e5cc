//! Appends with dedup ids: requests that follow each other, records of ids, and what the server refuses.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::ErrorKind;
use millstream_core::log::{
    Append, Appended, Appender, DedupId, DedupIdentity, Durability, Log, UniqueIdentity,
};
use millstream_core::topic::{Partition, TopicPartition};
use millstream_redis::{RedisBackend, RedisConfig};
use redis::Value;
use tokio::time::timeout;

use crate::server::{Bench, message};

const HOUR: Duration = Duration::from_secs(3_600);

fn item(tp: &TopicPartition, id: &str, payload: &str) -> Append {
    let id = DedupId::new(id.to_owned()).expect("an id");
    let identity = DedupIdentity { id, window: HOUR, earlier: Vec::new() };
    Append::new(tp.clone(), message(payload)).with(identity)
}

async fn finish(appender: &mut Box<dyn Appender>) -> Vec<Appended> {
    let results = timeout(Duration::from_secs(60), appender.finish()).await.expect("an answer");
    results.into_iter().map(|result| result.expect("appended")).collect()
}

async fn append(bench: &Bench, id: &str) -> Appended {
    bench.backend.append(&[item(&bench.tp, id, id)]).await.remove(0).expect("appended")
}

#[tokio::test]
async fn an_id_of_a_request_under_way_counts_for_the_next_one() {
    let mut bench = Bench::new().await;
    let mut appender = bench.backend.appender(Durability::Stored).expect("an appender");
    // Each request repeats a third of the one before, and one id of its own.
    for request in 0..10 {
        let ids = (request * 400..request * 400 + 600).chain([request * 400 + 599]);
        appender.begin(Arc::new(
            ids.map(|n| item(&bench.tp, &format!("an id of some length {n}"), "x")).collect(),
        ));
    }
    let mut first: Vec<Appended> = Vec::new();
    for request in 0..10_usize {
        let results = finish(&mut appender).await;
        assert_eq!(results.len(), 601);
        for (at, result) in results[..600].iter().enumerate() {
            let n = request * 400 + at;
            assert_eq!(result.is_duplicate, n < first.len(), "id {n}");
            if result.is_duplicate {
                assert_eq!(result.id, first[n].id, "id {n} has the place of the first time");
            } else {
                first.push(*result);
            }
        }
        assert_eq!((results[600].id, results[600].is_duplicate), (results[599].id, true));
    }
    assert!(finish(&mut appender).await.is_empty(), "nothing is under way");
    assert!(first.windows(2).all(|two| two[0].id < two[1].id), "in their order");
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 4_200);
}

#[tokio::test]
async fn two_producers_with_the_same_ids_store_each_once() {
    let mut bench = Bench::new().await;
    let mut sending = Vec::new();
    for sender in 0..4 {
        let (backend, tp) = (bench.backend.clone(), bench.tp.clone());
        sending.push(tokio::spawn(async move {
            let mut appender = backend.appender(Durability::Stored).expect("an appender");
            for request in 0..8 {
                let ids = request * 100..request * 100 + 100;
                appender.begin(Arc::new(
                    ids.map(|n| item(&tp, &format!("order {n}"), &sender.to_string())).collect(),
                ));
            }
            let mut results = Vec::new();
            for _ in 0..8 {
                results.extend(finish(&mut appender).await);
            }
            results
        }));
    }
    let mut all = Vec::new();
    for sender in sending {
        all.push(sender.await.expect("a sender"));
    }
    for n in 0..800 {
        let of_id: Vec<&Appended> = all.iter().map(|results| &results[n]).collect();
        assert_eq!(of_id.iter().filter(|it| !it.is_duplicate).count(), 1, "id {n} is stored once");
        assert!(of_id.iter().all(|it| it.id == of_id[0].id), "all get the place of the first");
    }
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 800);
}

#[tokio::test]
async fn large_bodies_are_stored_in_their_order() {
    let mut bench = Bench::new().await;
    let large = "x".repeat(1 << 20);
    let batch: Vec<_> = (0..14).map(|n| item(&bench.tp, &format!("large {n}"), &large)).collect();
    let results = bench.backend.append(&batch).await;
    let ids: Vec<_> = results.into_iter().map(|result| result.expect("appended").id).collect();
    assert!(ids.windows(2).all(|two| two[0] < two[1]));
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 14);
    bench.cmd(&format!("DEL {log}")).await;
}

/// Names of records, without the one of the state.
async fn names(bench: &mut Bench, key: &str) -> Vec<Vec<u8>> {
    let Value::Array(names) = bench.cmd(&format!("HKEYS {key}")).await else { panic!("no names") };
    let bytes = |name: &Value| match name {
        Value::BulkString(name) => name.clone(),
        other => panic!("{other:?}"),
    };
    let mut names: Vec<_> = names.iter().map(bytes).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn records_have_short_names_and_leave_when_their_window_is_over() {
    let mut bench = Bench::new().await;
    let (dedup, old) = (bench.keys.dedup(&bench.tp).to_string(), bench.keys.dedup_old(&bench.tp).to_string());
    let long = "an id of more than fifteen bytes";
    let first = append(&bench, "short").await;
    append(&bench, long).await;
    let digest = sha1_smol::Sha1::from(long).digest().bytes()[..16].to_vec();
    let mut expected = vec![b"short".to_vec(), digest];
    expected.sort_unstable();
    assert_eq!(names(&mut bench, &dedup).await, expected);
    assert!(
        (HOUR.as_millis() as i64..=2 * HOUR.as_millis() as i64)
            .contains(&bench.int(&format!("PTTL {dedup}")).await)
    );

    // Two windows after the first record, the hash becomes the old one. What is in it counts for its window.
    let begun = async |bench: &mut Bench, windows: u64| {
        let begin = first.id.ms - windows * 3_600_000;
        let state = format!("{begin} 3600000");
        let mut set = redis::cmd("HSET");
        set.arg(&dedup).arg("").arg(state);
        set.query_async::<Value>(&mut bench.raw).await.expect("set");
    };
    begun(&mut bench, 1).await;
    append(&bench, "second").await;
    assert_eq!(bench.int(&format!("EXISTS {old}")).await, 0, "one window after it, it stays");
    begun(&mut bench, 2).await;
    append(&bench, "third").await;
    assert_eq!(bench.int(&format!("EXISTS {dedup}")).await, 0);
    assert_eq!(names(&mut bench, &old).await.len(), 4);
    assert!(bench.int(&format!("PTTL {old}")).await >= HOUR.as_millis() as i64);
    let again = append(&bench, "short").await;
    assert_eq!((again.id, again.is_duplicate), (first.id, true), "it is found in the old one");

    // A window after the new one has begun, all in the old one is out of its window.
    assert!(!append(&bench, "fourth").await.is_duplicate);
    assert_eq!(bench.int(&format!("EXISTS {old}")).await, 1);
    begun(&mut bench, 1).await;
    assert!(append(&bench, "fourth").await.is_duplicate);
    assert_eq!(bench.int(&format!("EXISTS {old}")).await, 1, "a repetition writes nothing");
    assert!(!append(&bench, "fifth").await.is_duplicate);
    assert_eq!(bench.int(&format!("EXISTS {old}")).await, 0);
}

#[tokio::test]
async fn scripts_that_are_forgotten_keep_nothing_from_being_stored() {
    let mut bench = Bench::private(&[]).await;
    let other = TopicPartition::new("other".parse().expect("a name"), 0);
    for round in 0..3 {
        bench.cmd("SCRIPT FLUSH").await;
        let ids = (0..300).map(|n| format!("{round} {n}"));
        let batch: Vec<_> = ids.flat_map(|id| [item(&bench.tp, &id, "x"), item(&other, &id, "x")]).collect();
        let results = bench.backend.append(&batch).await;
        assert!(results.into_iter().all(|result| result.is_ok_and(|done| !done.is_duplicate)));
    }
}

#[tokio::test]
async fn a_record_of_a_wrong_type_is_named_and_concerns_its_partition_alone() {
    let mut bench = Bench::new().await;
    let other = TopicPartition::new("other".parse().expect("a name"), 0);
    let dedup = bench.keys.dedup(&bench.tp);
    bench.cmd(&format!("SET {dedup} foreign")).await;
    let batch = [item(&bench.tp, "a", "x"), item(&other, "a", "x"), item(&bench.tp, "a", "y")];
    let results = bench.backend.append(&batch).await;
    for at in [0, 2] {
        let error = results[at].as_ref().expect_err("a foreign key");
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert!(error.to_string().contains(&format!("{dedup} is a string, not a hash")), "{error}");
    }
    assert!(results[1].is_ok());
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 0);
    bench.cmd(&format!("DEL {dedup}")).await;
}

#[tokio::test]
async fn a_user_who_may_do_the_half_of_it_stores_nothing() {
    let mut bench = Bench::private(&[]).await;
    bench.cmd("ACL SETUSER half on >secret ~* &* +@all -hset").await;
    let url = bench.url.replace("redis://", "redis://half:secret@");
    let config = RedisConfig::new(url).with_namespace(bench.namespace.clone());
    let backend = RedisBackend::connect(config).await.expect("a backend");
    let result = backend.append(&[item(&bench.tp, "a", "x")]).await.remove(0);
    assert_eq!(result.expect_err("no right").kind(), ErrorKind::Denied);
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 0);
    bench.cmd("ACL SETUSER half +hset").await;
    assert!(!backend.append(&[item(&bench.tp, "a", "x")]).await.remove(0).expect("stored").is_duplicate);
}

#[tokio::test]
async fn a_server_without_memory_refuses_a_request_as_a_whole() {
    let mut bench = Bench::private(&[]).await;
    append(&bench, "before").await;
    bench.cmd("CONFIG SET maxmemory 1mb").await;
    let batch: Vec<_> = (0..50).map(|n| item(&bench.tp, &format!("{n}"), "x")).collect();
    for result in bench.backend.append(&batch).await {
        assert_eq!(result.expect_err("no memory").kind(), ErrorKind::Backpressure);
    }
    let (log, dedup) = (bench.log(), bench.keys.dedup(&bench.tp).to_string());
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 1);
    assert_eq!(names(&mut bench, &dedup).await, [b"before"]);
    bench.cmd("CONFIG SET maxmemory 0").await;
    assert!(bench.backend.append(&batch).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn an_appender_refuses_what_looks_first_and_ids_that_are_to_be_confirmed() {
    let bench = Bench::new().await;
    let id = || DedupId::new("a").expect("an id");
    let append = || Append::new(bench.tp.clone(), message("x"));
    let earlier = DedupIdentity { id: id(), window: HOUR, earlier: vec![Partition(7)] };
    let unique = UniqueIdentity { id: id(), send: 1, earlier: Vec::new() };
    for (durability, append) in [
        (Durability::Stored, append().with(earlier)),
        (Durability::Stored, append().with(unique)),
        (Durability::Fsynced, item(&bench.tp, "a", "x")),
    ] {
        let mut appender = bench.backend.appender(durability).expect("an appender");
        // In their order, behind one that is stored or refused by itself.
        appender.begin(Arc::new(vec![Append::new(bench.tp.clone(), message("y"))]));
        appender.begin(Arc::new(vec![append]));
        appender.finish().await;
        let results = timeout(Duration::from_secs(60), appender.finish()).await.expect("an answer");
        let kinds: Vec<_> =
            results.iter().map(|result| result.as_ref().map_err(millstream_core::Error::kind)).collect();
        assert_eq!(kinds, [Err(ErrorKind::Unsupported)]);
    }
}
