//! Deletions and expansions that were stopped half-way: a repeated request completes them, and no client undoes them.

use millstream_core::audit::{Audit, Check, Fault, Finding, Scope};
use millstream_core::catalog::{Catalog, Start};
use millstream_core::topic::TopicPartition;
use millstream_core::{ErrorKind, MessageId};

use crate::deleting::{differing, everything, fill, forgotten, group, spec};
use crate::server::{Bench, grant};

async fn look(bench: &Bench, scope: &Scope, check: Check) -> Vec<Finding> {
    bench.backend.audit(scope, check, None).await.expect("looked at").findings
}

/// The list of topics goes before the settings: whatever stops it, the same again does the rest.
#[tokio::test]
async fn a_topic_that_is_off_the_list_already_can_be_deleted_again() {
    let mut bench = Bench::private(&[]).await;
    let before = everything(&mut bench).await;
    let flights = spec("flights", 2);
    fill(&mut bench, &flights, "billing").await;
    let (meta, registry) = (bench.keys.topic_meta(&flights.name), bench.keys.topics());
    bench.cmd(&format!("HSET {meta} deleting 2")).await;
    bench.cmd(&format!("HDEL {meta} partitionCount")).await;
    bench.cmd(&format!("SREM {registry} flights")).await;
    assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
    forgotten(&mut bench, &flights).await;
    assert_eq!(differing(&everything(&mut bench).await, &before), [""; 0]);
}

/// An expansion made partitions, and was stopped before it said so.
#[tokio::test]
async fn what_an_unfinished_expansion_made_goes_as_well() {
    let mut bench = Bench::private(&[]).await;
    let before = everything(&mut bench).await;
    let flights = spec("flights", 2);
    fill(&mut bench, &flights, "billing").await;
    bench.backend.expand(&flights.name, 5).await.expect("grown");
    let (meta, tp) = (bench.keys.topic_meta(&flights.name), TopicPartition::new(flights.name.clone(), 4));
    bench.cmd(&format!("HSET {meta} partitionCount 2")).await;
    grant(&bench.backend, &tp, &group("billing"), "first").await;
    assert!(bench.backend.delete_group(&flights.name, &group("billing")).await.expect("deleted"));
    let fence = bench.keys.fence(&tp, &group("billing"));
    assert_eq!(bench.int(&format!("EXISTS {fence}")).await, 0, "a partition that nobody sees is forgotten");
    bench
        .backend
        .create_group(&spec("flights", 5), &group("billing"), Start::Earliest)
        .await
        .expect("created");
    assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
    forgotten(&mut bench, &flights).await;
    assert_eq!(differing(&everything(&mut bench).await, &before), [""; 0]);
}

/// An expansion that cannot list its partitions has made none: what is made is always found again.
#[tokio::test]
async fn partitions_are_listed_before_anything_is_made_there() {
    let mut bench = Bench::private(&[]).await;
    let flights = spec("flights", 1);
    fill(&mut bench, &flights, "billing").await;
    let listed = bench.keys.topic_partitions(&flights.name);
    bench.cmd(&format!("DEL {listed}")).await;
    bench.cmd(&format!("SET {listed} foreign")).await;
    bench.backend.expand(&flights.name, 2).await.expect_err("a foreign type");
    let log = bench.keys.log(&TopicPartition::new(flights.name, 1));
    assert_eq!(bench.int(&format!("EXISTS {log}")).await, 0);
}

/// The mark is set first: requests in the middle return it, and `verify` does not restore what is being deleted.
#[tokio::test]
async fn a_group_whose_deletion_was_stopped_is_not_repaired() {
    let mut bench = Bench::private(&[]).await;
    let flights = spec("flights", 2);
    fill(&mut bench, &flights, "billing").await;
    let (state, log) = (
        bench.keys.group_state(&flights.name, &group("billing")),
        bench.keys.log(&TopicPartition::new(flights.name.clone(), 0)),
    );
    // As far as it had come.
    bench.cmd(&format!("HSET {state} deleting 1700000000000")).await;
    bench.cmd(&format!("XGROUP DESTROY {log} billing")).await;
    let tp = TopicPartition::new(flights.name.clone(), 0);
    for error in [
        bench.backend.create_group(&flights, &group("billing"), Start::Earliest).await.expect_err("deleting"),
        bench.backend.restore_group(&tp, &group("billing"), MessageId::ZERO).await.expect_err("deleting"),
        bench.backend.set_paused(&flights.name, &group("billing"), true).await.expect_err("deleting"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Deleted, "{error}");
    }
    assert!(bench.backend.group_state(&flights.name, &group("billing")).await.expect("a state").deleting);
    let (whole, part) = (Scope::Topic(flights.name.clone()), Scope::Group(tp, group("billing")));
    let found = look(&bench, &whole, Check::Catalog).await;
    assert_eq!(
        found.iter().map(|it| (it.fault, &*it.id)).collect::<Vec<_>>(),
        [(Fault::DeletionUnfinished, "billing")]
    );
    assert_eq!(look(&bench, &part, Check::Position).await, [], "nobody wants it back");
    let missing = Finding::new(Fault::GroupMissing, &part, "log", "as an older look found it");
    for finding in [&found[0], &missing] {
        assert!(!bench.backend.repair(finding).await.expect("an answer"), "{finding}");
    }
    assert!(bench.backend.delete_group(&flights.name, &group("billing")).await.expect("deleted"));
    assert!(!bench.backend.repair(&missing).await.expect("an answer"), "not listed any more");
    assert_eq!(look(&bench, &whole, Check::Catalog).await, []);
}

#[tokio::test]
async fn a_topic_whose_deletion_was_stopped_is_not_repaired() {
    let mut bench = Bench::private(&[]).await;
    let flights = spec("flights", 2);
    fill(&mut bench, &flights, "billing").await;
    let meta = bench.keys.topic_meta(&flights.name);
    bench.cmd(&format!("HSET {meta} deleting 2")).await;
    bench.cmd(&format!("HDEL {meta} partitionCount")).await;
    let whole = Scope::Topic(flights.name.clone());
    let found = look(&bench, &whole, Check::Catalog).await;
    assert_eq!(found.iter().map(|it| it.fault).collect::<Vec<_>>(), [Fault::DeletionUnfinished]);
    assert!(!bench.backend.repair(&found[0]).await.expect("an answer"));
    assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
    // Listed still, and remembered as deleted: it comes off the list.
    let (registry, listed) = (bench.keys.topics(), bench.keys.topic_partitions(&flights.name));
    bench.cmd(&format!("SADD {registry} flights")).await;
    bench
        .cmd(&format!("SADD {listed} {}", bench.keys.log(&TopicPartition::new(flights.name.clone(), 0))))
        .await;
    let found = look(&bench, &whole, Check::Catalog).await;
    assert_eq!(found.iter().map(|it| it.fault).collect::<Vec<_>>(), [Fault::TopicWithoutSettings]);
    assert!(bench.backend.repair(&found[0]).await.expect("an answer"));
    assert_eq!(bench.int(&format!("SISMEMBER {registry} flights")).await, 0);
    assert_eq!(bench.int(&format!("EXISTS {meta}")).await, 0, "it was not made again");
}

/// Out of memory is when one deletes.
#[tokio::test]
async fn topics_and_groups_can_be_deleted_and_paused_out_of_memory() {
    let mut bench = Bench::private(&[]).await;
    let flights = spec("flights", 2);
    fill(&mut bench, &flights, "billing").await;
    fill(&mut bench, &flights, "audit").await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    assert!(bench.backend.set_paused(&flights.name, &group("audit"), false).await.expect("an answer"));
    assert!(bench.backend.set_paused(&flights.name, &group("audit"), true).await.expect("an answer"));
    assert!(bench.backend.delete_group(&flights.name, &group("billing")).await.expect("deleted"));
    let tp = TopicPartition::new(flights.name.clone(), 0);
    let restored = bench.backend.restore_group(&tp, &group("billing"), MessageId::ZERO).await;
    assert_eq!(restored.expect_err("deleted").kind(), ErrorKind::Deleted);
    assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
    let restored = bench.backend.restore_topic(&flights).await;
    assert_eq!(restored.expect_err("deleted").kind(), ErrorKind::Deleted);
}
