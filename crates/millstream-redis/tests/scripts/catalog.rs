//! The catalog: topics that grow, places to start from, and counting.

use millstream_core::catalog::{Catalog, Start};
use millstream_core::error::ErrorKind;
use millstream_core::id::MessageId;
use millstream_core::log::{Append, Log};
use millstream_core::topic::TopicPartition;
use tokio::task::JoinSet;

use crate::server::{Bench, fetch, grant, ids, message};

#[tokio::test]
async fn a_topic_grows_with_a_place_for_every_group_and_never_shrinks() {
    let mut bench = Bench::new().await;
    let (name, meta) = (bench.spec.name.clone(), bench.keys.topic_meta(&bench.spec.name));
    let audit = "audit".parse().expect("name");
    bench.backend.create_group(&bench.spec, &audit, Start::Latest).await.expect("created");
    let grown = bench.backend.expand(&name, 700).await.expect("grown");
    assert_eq!((grown.partitions, grown.retention), (700, bench.spec.retention));
    for partitions in [0, 3, 700] {
        assert_eq!(bench.backend.expand(&name, partitions).await.expect("nothing to do"), grown);
    }
    assert_eq!(bench.backend.topic(&name).await.expect("there"), grown);
    let logs = bench.keys.topic_partitions(&name);
    assert_eq!(bench.int(&format!("SCARD {logs}")).await, 700);

    // What is sent to a new partition waits for a group that started with what comes, too.
    let last = TopicPartition::new(name.clone(), 699);
    let append = Append { topic_partition: last.clone(), fields: message("x") };
    let id = bench.backend.append(&[append]).await.remove(0).expect("appended");
    for group in [&bench.group, &audit] {
        let lease = grant(&bench.backend, &last, group, "n").await;
        let mut reader = bench.backend.reader(&lease).await.expect("a reader");
        assert_eq!(ids(&fetch(&mut reader, 10).await), [id], "{group}");
        let again = bench.backend.create_group(&grown, group, Start::Latest).await.expect("there");
        assert!(!again.new && again.partitions.is_empty(), "{group} was missing on {:?}", again.partitions);
    }

    let error = bench.backend.expand(&name, 16_385).await.expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let nowhere = "nowhere".parse().expect("name");
    assert_eq!(bench.backend.expand(&nowhere, 3).await.expect_err("none").kind(), ErrorKind::NotFound);
    let nothing = bench.keys.topic_meta(&nowhere);
    assert_eq!(bench.int(&format!("EXISTS {nothing}")).await, 0);
    bench.cmd(&format!("HSET {meta} format 2")).await;
    assert_eq!(bench.backend.expand(&name, 800).await.expect_err("newer").kind(), ErrorKind::Unsupported);
    bench.cmd(&format!("SET {meta} x")).await;
    assert_eq!(bench.backend.expand(&name, 800).await.expect_err("a string").kind(), ErrorKind::WrongType);
}

#[tokio::test]
async fn an_expansion_that_stopped_half_way_is_finished_and_of_two_the_larger_wins() {
    let mut bench = Bench::new().await;
    let name = bench.spec.name.clone();
    let tp = |n: u32| TopicPartition::new(name.clone(), n);
    let (two, logs) = (bench.keys.log(&tp(2)), bench.keys.topic_partitions(&name));
    bench.cmd(&format!("XGROUP CREATE {two} billing 0 MKSTREAM")).await;
    bench.cmd(&format!("SADD {logs} {two}")).await;
    assert_eq!(bench.backend.topic(&name).await.expect("there").partitions, 1, "nothing has grown yet");

    let mut calls = JoinSet::new();
    for partitions in [4, 9, 2, 6] {
        let (backend, name) = (bench.backend.clone(), name.clone());
        calls.spawn(async move { (partitions, backend.expand(&name, partitions).await.expect("grown")) });
    }
    for (asked, spec) in calls.join_all().await {
        assert!(spec.partitions >= asked, "{asked}: {spec:?}");
    }
    assert_eq!(bench.backend.topic(&name).await.expect("there").partitions, 9);
    assert_eq!(bench.int(&format!("SCARD {logs}")).await, 9);
    let stats = bench.backend.stats(&bench.backend.topic(&name).await.expect("there"), &bench.group).await;
    assert!(stats.expect("stats").iter().all(|one| one.position == Some(MessageId::ZERO)));
}

#[tokio::test]
async fn entries_are_counted_between_two_places() {
    let mut bench = Bench::new().await;
    let key = bench.log();
    for n in 1..=950 {
        // Ten to a millisecond.
        bench.cmd(&format!("XADD {key} {}-{} payload x", 1_000 + n / 10, n % 10)).await;
    }
    let id = |n: u64| MessageId::new(1_000 + n / 10, n % 10);
    let all = u64::MAX;
    let cases = [
        (Start::Earliest, None, all, 950),
        (Start::Earliest, None, 7, 7),
        (Start::Earliest, Some(id(400)), all, 400),
        (Start::After(id(1)), None, all, 949),
        (Start::After(id(1)), None, 400, 400),
        (Start::After(id(1)), None, 0, 0),
        (Start::After(id(200)), Some(id(601)), all, 401),
        (Start::After(id(200)), Some(id(601)), 401, 401),
        (Start::After(id(200)), Some(id(100)), all, 0),
        (Start::At(0), Some(id(200)), all, 200),
        (Start::At(1_001), None, all, 941),
        (Start::At(u64::MAX), None, all, 0),
        (Start::Latest, None, all, 0),
        (Start::After(MessageId::MAX), None, all, 0),
        (Start::Earliest, Some(MessageId::MAX), all, 950),
    ];
    for (start, end, limit, expected) in cases {
        let counted = bench.backend.count(&bench.tp, start, end, limit).await.expect("counted");
        assert_eq!(counted, expected, "{start:?} {end:?} {limit}");
    }
    let nowhere = TopicPartition::new("nowhere".parse().expect("name"), 0);
    for start in [Start::Earliest, Start::At(5)] {
        assert_eq!(bench.backend.count(&nowhere, start, None, all).await.expect("counted"), 0);
    }
    bench.cmd(&format!("DEL {key}")).await;
    bench.cmd(&format!("SET {key} x")).await;
    for start in [Start::Earliest, Start::At(5)] {
        let error = bench.backend.count(&bench.tp, start, None, all).await.expect_err("a string");
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert!(error.to_string().contains(key.as_str()), "{error}");
    }
}

#[tokio::test]
async fn a_group_starts_at_a_time() {
    let mut bench = Bench::new().await;
    let key = bench.log();
    let appended = [(5, 1), (7, 0), (7, 1), (9, 0)].map(|(ms, seq)| MessageId::new(ms, seq));
    for id in appended {
        bench.cmd(&format!("XADD {key} {id} payload x")).await;
    }
    for (ms, unread) in [(0, 4), (5, 4), (6, 3), (7, 3), (8, 1), (10, 0)] {
        let group = format!("at-{ms}").parse().expect("name");
        bench.backend.create_group(&bench.spec, &group, Start::At(ms)).await.expect("created");
        let lease = grant(&bench.backend, &bench.tp, &group, "n").await;
        let mut reader = bench.backend.reader(&lease).await.expect("a reader");
        assert_eq!(ids(&fetch(&mut reader, 10).await), appended[4 - unread..], "{ms}");
        let stats = bench.backend.stats(&bench.spec, &group).await.expect("stats");
        let position = if unread == 0 { MessageId::new(9, u64::MAX) } else { appended[3] };
        assert_eq!((stats[0].position, stats[0].pending), (Some(position), unread as u64), "{ms}");
    }
}
