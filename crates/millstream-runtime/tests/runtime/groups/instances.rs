//! Instances that are groups of their own: each gets everything, keeps nothing, and leaves nothing behind.

use std::time::Duration;

use crate::support::link::link;
use crate::support::*;
use millstream_core::{ErrorKind, TopicName};
use millstream_runtime::{Consumer, Delivery};
use tokio::sync::Semaphore;
use tokio::time::sleep;

const EXPIRY: Duration = Duration::from_secs(60);

async fn start(bench: &Bench, id: &str) -> (Consumer, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let started = bench.consumer(NUMBERS, "cache").member_id(id).every_instance(EXPIRY).start({
        move |delivery: Delivery<u64>| {
            note(&noted, &delivery);
            async {}
        }
    });
    (started.await.expect("started"), seen)
}

async fn groups(bench: &Bench) -> Vec<String> {
    let topic: TopicName = "numbers".parse().expect("name");
    let groups = bench.backend.catalog().groups(&topic).await.expect("groups");
    groups.iter().map(ToString::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn every_instance_gets_everything_and_the_group_of_one_that_is_gone_is_removed() {
    let bench = bench();
    produce(&bench, 3).await;
    let (one, of_one) = start(&bench, "one").await;
    let (two, of_two) = start(&bench, "two").await;
    produce(&bench, 10).await;
    for seen in [&of_one, &of_two] {
        until(seen, 10).await;
    }
    // Back within the expiry it gets what it has missed.
    two.shutdown().await;
    produce(&bench, 5).await;
    sleep(EXPIRY / 2).await;
    let (two, again) = start(&bench, "two").await;
    until(&again, 5).await;
    sleep(4 * EXPIRY).await;
    assert_eq!(groups(&bench).await, ["cache~one", "cache~two"]);
    // One that does not come back is removed, and no other one.
    two.shutdown().await;
    sleep(EXPIRY / 2).await;
    assert_eq!(groups(&bench).await, ["cache~one", "cache~two"]);
    sleep(2 * EXPIRY).await;
    assert_eq!(groups(&bench).await, ["cache~one"]);
    produce(&bench, 1).await;
    until(&of_one, 16).await;
    one.shutdown().await;
    assert_eq!((of_two.lock().expect("lock").len(), again.lock().expect("lock").len()), (10, 5));
}

/// Five instances of which some end, and a thousand: all get everything, what is gone vanishes, nothing is kept for it, and each
/// looks after the next one only.
#[tokio::test(start_paused = true)]
async fn of_many_instances_each_gets_everything_and_looks_after_the_next() {
    for (count, gone) in [(5, [1, 2]), (1_000, [7, 998])] {
        let bench = bench();
        let (link, backend) = link(&bench.backend);
        let bench = Bench { backend, ..bench };
        let mut instances = Vec::new();
        for n in 0..count {
            instances.push(start(&bench, &format!("i-{n}")).await);
        }
        let names = |groups: &[usize]| {
            let mut names: Vec<_> = groups.iter().map(|n| format!("cache~i-{n}")).collect();
            names.sort();
            names
        };
        // A group that keeps what it has not settled: without one, nobody knows what is needed no more.
        let ledger =
            bench.consumer(NUMBERS, "ledger").start(async |_: Delivery<u64>| {}).await.expect("started");
        let names = |groups: &[usize]| [names(groups), vec!["ledger".to_owned()]].concat();
        let all: Vec<usize> = (0..count).collect();
        assert_eq!(groups(&bench).await, names(&all));
        produce(&bench, 10).await;
        for (_, seen) in &instances {
            until(seen, 10).await;
        }
        link.calls();
        sleep(4 * EXPIRY).await;
        // 16 looks, and a roster for each new member at the start.
        let rosters = link.calls().remove("roster").unwrap_or_default();
        assert!(rosters <= 18 * count as u64, "{rosters} looks of {count} instances");
        // Those that end in an orderly way, and at once, are removed, also where they stand side by side.
        let (ending, staying): (Vec<_>, Vec<_>) = instances
            .into_iter()
            .enumerate()
            .partition(|(n, _)| if count == 5 { gone.contains(n) } else { (gone[0]..gone[1]).contains(n) });
        for (n, (consumer, _)) in ending {
            if n % 2 == 1 {
                consumer.shutdown().await;
            }
        }
        produce(&bench, 10).await;
        sleep(4 * EXPIRY).await;
        let left: Vec<usize> = staying.iter().map(|(n, _)| *n).collect();
        assert_eq!(groups(&bench).await, names(&left));
        produce(&bench, 5).await;
        for (_, (_, seen)) in &staying {
            until(seen, 25).await;
        }
        sleep(2 * EXPIRY).await;
        let topic = bench.backend.catalog().topic(&"numbers".parse().expect("name")).await.expect("a topic");
        let group = names(&left)[0].parse().expect("name");
        let stats = bench.backend.catalog().stats(&topic, &group).await.expect("stats");
        assert_eq!(stats[0].length, 0, "nothing is kept");
        for (_, (consumer, seen)) in staying {
            consumer.shutdown().await;
            assert_eq!(seen.lock().expect("lock").len(), 25);
        }
        ledger.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_hangs_holds_up_no_trim_and_is_told_what_it_lost() {
    let bench = bench();
    let gate = std::sync::Arc::new(Semaphore::new(0));
    let hanging = bench.consumer(NUMBERS, "cache").every_instance(EXPIRY).start({
        let gate = gate.clone();
        move |_: Delivery<u64>| {
            let gate = gate.clone();
            async move { gate.acquire().await.expect("open").forget() }
        }
    });
    let hanging = hanging.await.expect("started");
    let seen = Seen::default();
    let noted = seen.clone();
    let group = bench.consumer(NUMBERS, "g").start(move |delivery: Delivery<u64>| {
        note(&noted, &delivery);
        async {}
    });
    let group = group.await.expect("started");
    produce(&bench, 10).await;
    until(&seen, 10).await;
    sleep(2 * EXPIRY).await;
    let topic = bench.backend.catalog().topic(&"numbers".parse().expect("name")).await.expect("a topic");
    let stats = bench.backend.catalog().stats(&topic, &"g".parse().expect("name")).await.expect("stats");
    assert_eq!(stats[0].length, 0, "all of it is trimmed");
    assert_eq!(bench.told.lines("Lost"), 1, "told once");
    gate.add_permits(100);
    produce(&bench, 1).await;
    until(&seen, 11).await;
    hanging.shutdown().await;
    group.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_expiry_that_is_shorter_than_an_outage_may_be_is_refused() {
    let short = bench().consumer(NUMBERS, "cache").every_instance(Duration::from_secs(29));
    let refused = short.start(async |_: Delivery<u64>| {}).await.expect_err("too short");
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    let nameless = bench().consumer(NUMBERS, "cache").member_id("x".repeat(128)).every_instance(EXPIRY);
    let refused = nameless.start(async |_: Delivery<u64>| {}).await.expect_err("too long together");
    assert!(refused.to_string().contains("at most 128"), "{refused}");
}
