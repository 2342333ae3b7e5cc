//! Groups of instances that come and go in an orderly way.

pub(crate) mod deleted;
pub(crate) mod faults;
pub(crate) mod idle;
pub(crate) mod instances;
pub(crate) mod lost;
pub(crate) mod pause;
pub(crate) mod rebalance;
pub(crate) mod refused;
pub(crate) mod scale;
pub(crate) mod threads;

use std::time::Duration;

use crate::support::group::{Group, Instance, group};
use crate::support::*;
use futures_util::future::join_all;
use millstream_core::{MemberId, Topic};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn one_to_five_to_two_instances_under_load_lose_and_repeat_nothing() {
    for seed in 0..8 {
        fastrand::seed(seed);
        one_to_five_to_two(Group { latency: seed % 4, ..group(32) }).await;
    }
}

async fn one_to_five_to_two(group: Group) {
    let load = group.load().await;
    let started = tokio::time::Instant::now();
    let a = group.join("a", MS(2), |builder| builder).await;
    group.balanced(&[32]).await;
    assert!(started.elapsed() < MS(40), "who is alone waits for nobody: {:?}", started.elapsed());
    assert_eq!(group.history.moves(), 32);
    tokio::time::sleep(SECOND).await;

    let kept = group.history.of("a");
    let names = ["b", "c", "d", "e"];
    let mut others = join_all(names.map(|name| group.join(name, MS(2), |builder| builder))).await;
    group.balanced(&[7, 7, 6, 6, 6]).await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(group.history.sizes(), [7, 7, 6, 6, 6], "it stays");
    assert_eq!(group.history.moves(), 25, "no more than balance needs, in one go");
    assert!(group.history.of("a").is_subset(&kept));
    let gap = group.history.gap();
    assert!(gap <= MS(300), "without an owner for {gap:?}");

    let (b, leaving) = (others.remove(0), others);
    let kept = [group.history.of("a"), group.history.of("b")];
    let moving = 32 - kept[0].len() - kept[1].len();
    let reports = join_all(leaving.into_iter().map(Instance::leave)).await;
    group.balanced(&[16, 16]).await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(group.history.moves(), moving, "only what the leavers had");
    assert!(kept[0].is_subset(&group.history.of("a")) && kept[1].is_subset(&group.history.of("b")));
    let gap = group.history.gap();
    assert!(gap <= MS(300), "without an owner for {gap:?}");

    let sent = load.stop().await;
    eventually(|| group.count() as u64 >= sent, || format!("{sent}, of {}", group.count())).await;
    let rest = [b.leave().await, a.leave().await];
    group.assert_once_in_order(sent);
    let acked: u64 = reports.iter().chain(&rest).map(|report| report.acked).sum();
    assert_eq!(acked, sent, "the reports are true");
    assert_eq!(group.history.overlaps(), []);
    assert_eq!(group.history.sizes(), [0; 0], "all is given back");
    assert_eq!(group.told.lines("LeaseLost") + group.told.lines("Failing"), 0, "{:#?}", group.told.all());
}

#[tokio::test(start_paused = true)]
async fn the_last_one_leaves_at_once_and_the_next_one_begins_at_once() {
    let group = group(4);
    let a = group.join("a", MS(0), |builder| builder).await;
    group.balanced(&[4]).await;
    let started = tokio::time::Instant::now();
    a.leave().await;
    assert!(started.elapsed() < MS(10), "{:?}", started.elapsed());
    let b = group.join("b", MS(0), |builder| builder).await;
    group.balanced(&[4]).await;
    assert!(started.elapsed() < MS(40), "{:?}", started.elapsed());
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn who_leaves_goes_on_until_others_are_assigned_its_partitions() {
    let group = group(8);
    let a = group.join("a", MS(0), |builder| builder).await;
    let b = group.join("b", MS(0), |builder| builder).await;
    let c = group.join("c", MS(0), |builder| builder).await;
    group.balanced(&[3, 3, 2]).await;
    tokio::time::sleep(SECOND).await;
    group.history.gap();
    let (load, owned) = (group.load().await, group.history.of("a"));
    let leaving = tokio::spawn(a.leave());
    tokio::time::sleep(MS(90)).await;
    assert_eq!(group.history.of("a"), owned, "others do not know yet what they are to take");
    group.balanced(&[4, 4]).await;
    assert!(group.history.gap() <= MS(60), "the time between two looks");
    leaving.await.expect("no panic");
    let sent = load.stop().await;
    eventually(|| group.count() as u64 >= sent, || format!("{sent}, of {}", group.count())).await;
    b.leave().await;
    c.leave().await;
    group.assert_once_in_order(sent);
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_keeps_its_partition_until_it_is_done() {
    let group = group(2);
    let set = |builder: millstream_runtime::ConsumerBuilder<u64>| builder.lease_ttl(SECOND);
    let a = group.join("a", 20 * SECOND, set).await;
    group.balanced(&[2]).await;
    let load = group.load().await;
    eventually(|| group.count() == 2, || "one handler each".into()).await;
    let sent = load.stop().await;
    assert!(sent >= 2);
    let b = group.join("b", MS(0), set).await;
    tokio::time::sleep(18 * SECOND).await;
    assert_eq!((group.history.sizes(), group.count()), (vec![2], 2), "18 times the ttl");
    group.balanced(&[1, 1]).await;
    assert!(group.history.gap() <= MS(260), "looks are seldom by now");
    assert_eq!((group.told.lines("LeaseLost"), group.history.overlaps()), (0, vec![]));
    let acked = a.leave().await.acked + b.leave().await.acked;
    assert_eq!(acked, group.count() as u64);
    let given = group.count();
    assert_eq!(group.distinct(), given, "none was begun twice");
}

#[tokio::test(start_paused = true)]
async fn limits_and_pins_are_kept() {
    let group = group(10);
    let a = group.join("a", MS(0), |builder| builder.max_partitions(2)).await;
    let b = group.join("b", MS(0), |builder| builder.pin([7, 9]).max_partitions(3)).await;
    group.balanced(&[3, 2]).await;
    assert!(group.history.of("b").is_superset(&[7, 9].into()), "and 5 are left over");
    let c = group.join("c", MS(0), |builder| builder).await;
    group.balanced(&[5, 3, 2]).await;
    for instance in [a, b, c] {
        instance.leave().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_grows_is_consumed_whole() {
    let group = group(4);
    let a = group.join("a", MS(0), |builder| builder).await;
    let b = group.join("b", MS(0), |builder| builder).await;
    group.balanced(&[2, 2]).await;
    tokio::time::sleep(SECOND).await;
    group.history.moves();
    let before = group.memory.operator().snapshot();
    group.backend.catalog().expand(&"orders".parse().expect("name"), 10).await.expect("grown");
    let grown: Topic<u64> = Topic::new("orders").partitions(10);
    let group = Group { topic: grown, ..group };
    let load = group.load().await;
    group.balanced(&[5, 5]).await;
    assert_eq!(group.history.moves(), 6, "what was owned stays");
    let sent = load.stop().await;
    eventually(|| group.count() as u64 >= sent, || format!("{sent}, of {}", group.count())).await;
    group.assert_once_in_order(sent);

    // A fail-over to a replica without the expansion: the topic grows again, and every partition has an owner again.
    group.memory.operator().restore(&before);
    tokio::time::sleep(10 * SECOND).await;
    group.balanced(&[5, 5]).await;
    let topic = group.backend.catalog().topic(&"orders".parse().expect("name")).await.expect("a topic");
    assert_eq!(topic.partitions, 10);
    a.leave().await;
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_member_that_restarts_gets_its_partitions_back_and_nobody_else_moves() {
    let group = group(9);
    let named =
        |id: &'static str| move |builder: millstream_runtime::ConsumerBuilder<u64>| builder.member_id(id);
    let (a, b) = (group.join("a", MS(2), named("a")).await, group.join("b", MS(2), named("b")).await);
    let c = group.join("c", MS(2), named("c")).await;
    group.balanced(&[3, 3, 3]).await;
    tokio::time::sleep(SECOND).await;
    let (before, load) = (group.history.owners(), group.load().await);
    group.history.moves();
    b.leave().await;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(group.history.moves(), 0, "its partitions wait for it");
    let started = tokio::time::Instant::now();
    let b = group.join("b", MS(2), named("b")).await;
    group.balanced(&[3, 3, 3]).await;
    assert!(started.elapsed() < MS(50), "{:?}", started.elapsed());
    assert_eq!(group.history.owners(), before);
    assert_eq!(group.history.moves(), 3);
    b.leave().await;
    group.balanced(&[5, 4]).await;
    let sent = load.stop().await;
    eventually(|| group.count() as u64 >= sent, || format!("{sent}, of {}", group.count())).await;
    a.leave().await;
    c.leave().await;
    group.assert_once_in_order(sent);
}

#[tokio::test(start_paused = true)]
async fn of_two_with_one_member_id_the_older_stops() {
    let group = group(4);
    let named =
        |builder: millstream_runtime::ConsumerBuilder<u64>| builder.member_id("m").lease_ttl(3 * SECOND);
    let older = group.join("older", MS(0), named).await;
    group.balanced(&[4]).await;
    let newer = group.join("newer", MS(0), named).await;
    older.consumer.ended().await;
    assert_eq!(group.told.lines("MemberFenced"), 1);
    eventually(|| group.history.of("newer").len() == 4, || format!("{:?}", group.history.owners())).await;
    assert!(group.history.gap() <= MS(60));
    assert_eq!(group.history.overlaps(), []);
    let load = group.load().await;
    tokio::time::sleep(10 * SECOND).await;
    let sent = load.stop().await;
    eventually(|| group.count() as u64 >= sent, || format!("{sent}, of {}", group.count())).await;
    older.leave().await;
    newer.leave().await;
    group.assert_once_in_order(sent);
}

#[tokio::test(start_paused = true)]
async fn whoever_runs_under_a_taken_member_id_is_told() {
    let group = group(1);
    let (backend, topic) = (group.backend.clone(), group.topic.clone());
    let observer = std::sync::Arc::new(group.told.clone());
    let run = millstream_runtime::ConsumerBuilder::new(backend, topic, "g", observer)
        .member_id(MemberId::new("m").expect("name"))
        .run(|_: millstream_runtime::Delivery<u64>| async {});
    let run = tokio::spawn(run);
    group.told.wait_for("Assigned").await;
    let newer = group.join("newer", MS(0), |builder| builder.member_id("m")).await;
    let error = run.await.expect("no panic").expect_err("it is fenced");
    assert_eq!(error.kind(), millstream_core::ErrorKind::Fenced);
    newer.leave().await;
}
