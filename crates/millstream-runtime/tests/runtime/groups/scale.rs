//! A large group in simulated time: 1,000 instances and 10,000 partitions, with all loops of each.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::MS;
use crate::support::group::{Group, Instance, group};
use futures_util::future::join_all;
use tokio::time::Instant;

const PARTITIONS: u32 = 10_000;
const MEMBERS: usize = 1_000;
const TTL: Duration = Duration::from_secs(10);
/// Heartbeats come three times per ttl.
const THREE_HEARTBEATS: Duration = TTL;

async fn join(group: &Group, numbers: std::ops::Range<usize>) -> Vec<Instance> {
    let names: Vec<String> = numbers.map(|n| format!("m{n:04}")).collect();
    join_all(names.iter().map(|name| group.join(name, MS(0), |builder| builder.lease_ttl(TTL)))).await
}

/// Waits until everything is owned by this many, and evenly; gives back how long it took.
async fn balanced(group: &Group, members: usize) -> Duration {
    let started = Instant::now();
    loop {
        let sizes = group.history.sizes();
        let (all, owners) = (sizes.iter().sum::<usize>(), sizes.len());
        if all == PARTITIONS as usize && owners == members && sizes[0] - sizes[owners - 1] <= 1 {
            return started.elapsed();
        }
        assert!(
            started.elapsed() < 10 * TTL,
            "{all} partitions, {owners} owners, at most {:?}",
            sizes.first()
        );
        tokio::time::sleep(MS(20)).await;
    }
}

fn calls<'a>(instances: impl IntoIterator<Item = &'a Instance>) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    for (what, count) in instances.into_iter().flat_map(|instance| instance.link.calls()) {
        *all.entry(what).or_default() += count;
    }
    all
}

fn print_calls(of: &str, calls: &BTreeMap<&'static str, u64>, per: f64) {
    let each: Vec<String> = calls.iter().map(|(what, n)| format!("{what} {:.2}", *n as f64 / per)).collect();
    println!("{of}: {}", each.join(", "));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_members_and_ten_thousand_partitions() {
    fastrand::seed(7);
    let group = Group { latency: 3, ..group(PARTITIONS) };
    let real = std::time::Instant::now();
    let mut members = join(&group, 0..MEMBERS).await;
    let took = balanced(&group, MEMBERS).await;
    println!(
        "{MEMBERS} members share {PARTITIONS} partitions after {took:?}, {} grants",
        group.history.moves()
    );
    assert!(took <= THREE_HEARTBEATS, "{took:?}");
    assert!(group.history.gap() <= MS(400));
    print_calls("requests per member until then", &calls(&members), MEMBERS as f64);

    tokio::time::sleep(3 * TTL).await;
    calls(&members);
    let rest = 6 * TTL;
    tokio::time::sleep(rest).await;
    let at_rest = calls(&members);
    print_calls("requests per member and second at rest", &at_rest, MEMBERS as f64 * rest.as_secs_f64());
    assert_eq!(group.history.moves(), 0);
    assert_eq!(at_rest.get("acquire"), None, "nothing is missing, nobody asks");
    let upkeep: u64 = ["heartbeat", "renew", "watch"].iter().map(|what| at_rest[what]).sum();
    assert!(upkeep as f64 / MEMBERS as f64 / rest.as_secs_f64() < 1.2, "{at_rest:?}");

    let dead: Vec<Instance> = members.drain(300..400).collect();
    dead.iter().for_each(|instance| instance.link.cut());
    let orphans: usize = dead.iter().map(|instance| group.history.of(&instance.name).len()).sum();
    dead.iter().for_each(|instance| group.history.dead(&instance.name));
    let took = balanced(&group, MEMBERS - 100).await;
    let moves = group.history.moves();
    println!("100 die: balanced after {took:?}, {moves} moves for {orphans} partitions");
    assert!(took <= TTL + THREE_HEARTBEATS, "{took:?}");
    assert!(moves >= orphans && moves * 100 <= orphans * 105, "{moves} moves for {orphans} partitions");
    print_calls("requests per member until then", &calls(&members), members.len() as f64);
    group.history.gap();

    members.extend(join(&group, MEMBERS..MEMBERS + 100).await);
    let took = balanced(&group, MEMBERS).await;
    let moves = group.history.moves();
    println!("100 come: balanced after {took:?}, {moves} moves, at least 1000");
    assert!(took <= THREE_HEARTBEATS, "{took:?}");
    assert!((1_000..=1_050).contains(&moves), "{moves} moves");
    assert!(group.history.gap() <= MS(400));
    print_calls("requests per member until then", &calls(&members), members.len() as f64);

    let leaving = members.split_off(900);
    let moving: usize = leaving.iter().map(|instance| group.history.of(&instance.name).len()).sum();
    join_all(leaving.into_iter().map(Instance::leave)).await;
    let took = balanced(&group, MEMBERS - 100).await;
    let (moves, gap) = (group.history.moves(), group.history.gap());
    println!(
        "100 leave: balanced after {took:?}, {moves} moves for {moving} partitions, no owner for {gap:?}"
    );
    assert_eq!(moves, moving);
    assert!(gap <= MS(400), "{gap:?}");
    assert_eq!(group.history.overlaps(), []);
    println!("simulated in {:?}", real.elapsed());
}
