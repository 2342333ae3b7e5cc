//! Moving a group that is not running, and looking beforehand; topics that grow under producers.

use std::time::Duration;

use crate::support::scenario::Scenario;
use crate::support::*;
use millstream_admin::{Admin, SeekPreview};
use millstream_core::{
    ErrorKind, GroupName, MessageId, Outcome, Partition, Retention, Start, Topic, TopicSpec,
};
use millstream_runtime::{Delivery, Record};
use tokio::time::sleep;

const WIDE: Topic<u64> = Topic::new("numbers").partitions(2).retention(Retention::Keep);

fn group() -> GroupName {
    "g".parse().expect("name")
}

async fn topic(bench: &Bench) -> TopicSpec {
    bench.backend.catalog().topic(&"numbers".parse().expect("name")).await.expect("a topic")
}

/// Ten messages in each of two partitions, a second apart; the first six of each are handled, and the sixth waits for
/// its next attempt. Gives back the ids in the first partition.
async fn half_way(bench: &Bench) -> Vec<MessageId> {
    let producer = bench.producer(WIDE).await;
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(producer.send(&n).partition(0).await.expect("sent").id);
        producer.send(&(n + 100)).partition(1).await.expect("sent");
        sleep(Duration::from_secs(1)).await;
    }
    let course = Scenario::default();
    let consumer = bench.consumer(WIDE, "g").start({
        let course = course.clone();
        move |delivery: Delivery<u64>| {
            drop(course.begin(&delivery));
            let fails = delivery.payload % 100 == 5;
            async move {
                if fails { Outcome::retry_after(Duration::from_secs(3_600), "no") } else { Outcome::Ack }
            }
        }
    });
    let consumer = consumer.await.expect("started");
    course.until(12).await;
    consumer.shutdown().await;
    for n in 6..10 {
        ids.push(producer.send(&n).partition(0).await.expect("sent").id);
        producer.send(&(n + 100)).partition(1).await.expect("sent");
        sleep(Duration::from_secs(1)).await;
    }
    ids
}

/// What a consumer of the group is given from now on in the first partition.
async fn given(bench: &Bench, count: usize) -> Vec<(u64, u32)> {
    let course = Scenario::default();
    let consumer = bench.consumer(WIDE, "g").start({
        let course = course.clone();
        move |delivery: Delivery<u64>| {
            drop(course.begin(&delivery));
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    course.until(count).await;
    sleep(Duration::from_secs(60)).await;
    consumer.shutdown().await;
    let calls = course.calls();
    assert_eq!(calls.len(), count, "{:?}", course.order());
    calls.iter().filter(|call| call.partition == 0).map(|call| (call.value, call.attempt)).collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_preview_tells_is_what_a_seek_does() {
    let bench = bench();
    let ids = half_way(&bench).await;
    let topic = topic(&bench).await;
    let at = |start| {
        let (backend, topic) = (bench.backend.clone(), topic.clone());
        async move {
            let previews = Admin::new(backend.clone())
                .reset_group_preview(&topic.name, &group(), start)
                .await
                .expect("a preview");
            previews.into_iter().map(|look| (look.reread, look.skipped)).collect::<Vec<_>>()
        }
    };
    assert_eq!(at(Start::Earliest).await, [(6, 0), (6, 0)]);
    assert_eq!(at(Start::Latest).await, [(0, 4), (0, 4)]);
    assert_eq!(at(Start::At(ids[3].timestamp())).await, [(3, 0), (3, 0)]);
    assert_eq!(at(Start::At(ids[8].timestamp())).await, [(0, 2), (0, 2)]);
    assert_eq!(at(Start::After(ids[5])).await[0], (0, 0));
    assert_eq!(at(Start::After(ids[1])).await[0], (4, 0));
    assert_eq!(at(Start::After(ids[7])).await[0], (0, 2));

    let previews = Admin::new(bench.backend.clone())
        .reset_group_preview(&topic.name, &group(), Start::Latest)
        .await
        .expect("a preview");
    let SeekPreview { partition, position, pending, .. } = previews[0];
    assert_eq!((partition, position, pending), (Partition(0), Some(ids[5]), 0));

    Admin::new(bench.backend.clone())
        .reset_group(&topic.name, &group(), Start::At(ids[3].timestamp()))
        .await
        .expect("sought");
    let order: Vec<u64> = given(&bench, 14).await.into_iter().map(|(value, _)| value).collect();
    assert_eq!(order, [3, 4, 5, 6, 7, 8, 9]);
    Admin::new(bench.backend.clone())
        .reset_group(&topic.name, &group(), Start::Latest)
        .await
        .expect("sought");
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(given(&bench, 2).await, [(5, 2)], "what waits for its retry is not moved");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_runs_is_not_moved_and_its_owner_is_named() {
    let bench = bench();
    half_way(&bench).await;
    let topic = topic(&bench).await;
    let before = bench.backend.catalog().stats(&topic, &group()).await.expect("stats");
    let running = bench.consumer(WIDE, "g").label("billing-7").max_partitions(1).pin([1]);
    let running = running.start(|_: Delivery<u64>| std::future::pending::<()>()).await.expect("started");
    eventually(|| bench.told.lines("Assigned") == 3, || "an owner".into()).await;
    let error = Admin::new(bench.backend.clone())
        .reset_group(&topic.name, &group(), Start::Earliest)
        .await
        .expect_err("owned");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(error.to_string().contains("owned by billing-7-"), "{error}");
    let mut after = bench.backend.catalog().stats(&topic, &group()).await.expect("stats");
    // What is left has grown older.
    (after[0].oldest, after[0].oldest_parked) = (before[0].oldest, before[0].oldest_parked);
    assert_eq!(after[0], before[0], "nothing was done to the one that nobody owns");
    running.shutdown_within(Duration::ZERO).await;
    Admin::new(bench.backend.clone())
        .reset_group(&topic.name, &group(), Start::Earliest)
        .await
        .expect("free now, all of it");
    let order: Vec<u64> = given(&bench, 20).await.into_iter().map(|(value, _)| value).collect();
    assert_eq!(order, (0..10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_there_is_an_error_and_one_that_was_lost_somewhere_is_mended() {
    let bench = bench();
    half_way(&bench).await;
    let topic = topic(&bench).await;
    let nobody = "nobody".parse().expect("name");
    for error in [
        Admin::new(bench.backend.clone()).reset_group(&topic.name, &nobody, Start::Earliest).await.map(drop),
        Admin::new(bench.backend.clone())
            .reset_group_preview(&topic.name, &nobody, Start::Earliest)
            .await
            .map(drop),
    ] {
        assert_eq!(error.expect_err("no group").kind(), ErrorKind::NotFound);
    }
    let groups = bench.backend.catalog().groups(&topic.name).await.expect("groups");
    assert_eq!(groups, [group()], "none was created");
    assert!(bench.memory.operator().destroy_group(&partition(), &group()));
    let previews = Admin::new(bench.backend.clone())
        .reset_group_preview(&topic.name, &group(), Start::Earliest)
        .await
        .expect("a preview");
    assert_eq!(previews[0].position, None);
    Admin::new(bench.backend.clone())
        .reset_group(&topic.name, &group(), Start::Earliest)
        .await
        .expect("sought");
    assert_eq!(given(&bench, 20).await.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn producers_learn_that_a_topic_has_grown() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let fixed = bench.producing(NUMBERS).refresh(None).await.expect("a producer");
    let name = "numbers".parse().expect("name");
    bench.backend.catalog().expand(&name, 4).await.expect("expanded");
    assert_eq!(producer.partitions(), 1);
    let error = producer.send(&1).partition(3).await.expect_err("not known yet");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    sleep(Duration::from_secs(61)).await;
    assert_eq!((producer.partitions(), fixed.partitions()), (4, 1));
    producer.send(&1).partition(3).await.expect("sent");
    let values: Vec<u64> = (0..100).collect();
    let sent = producer.send_all(values.iter().map(|n| Record::new(n).key(n.to_le_bytes()))).await;
    let used: std::collections::BTreeSet<_> =
        sent.into_iter().map(|sent| sent.expect("sent").partition.0).collect();
    assert_eq!(used.len(), 4);
    let error = bench.producing(NUMBERS).refresh(MS(1)).await.expect_err("too often");
    assert!(error.to_string().contains("refresh is 1ms"), "{error}");
}
