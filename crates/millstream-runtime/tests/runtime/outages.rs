//! Outages: no client reaches the server. Members that are alive keep what they own; a member that died is replaced.

pub(crate) mod failover;
pub(crate) mod suspension;

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::group::{Group, Instance, group};
use crate::support::workers::{Does, Workers, few};
use crate::support::*;
use millstream_core::Outcome;
use millstream_runtime::{ConsumerBuilder, Delivery};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(3);

/// How long the server is away, in parts of a ttl.
const OUTAGES: [f64; 6] = [0.3, 0.5, 0.7, 1.0, 1.7, 2.5];

fn ttl(builder: ConsumerBuilder<u64>) -> ConsumerBuilder<u64> {
    builder.lease_ttl(TTL)
}

/// How the server is away.
#[derive(Clone, Copy, Debug)]
enum Away {
    /// Connections are refused.
    Refusing,
    /// Nothing is answered.
    Silent,
}

impl Away {
    fn begin(self, instances: &[&Instance]) {
        for instance in instances {
            match self {
                Self::Refusing => instance.link.away.store(true, Ordering::Relaxed),
                Self::Silent => instance.link.freeze(),
            }
        }
    }

    fn end(self, instances: &[&Instance]) {
        for instance in instances {
            match self {
                Self::Refusing => instance.link.away.store(false, Ordering::Relaxed),
                Self::Silent => instance.link.thaw(),
            }
        }
    }
}

async fn all_once(group: &Group, messages: u64, what: &str) {
    let all = || group.distinct() as u64 >= messages;
    eventually(all, || format!("{what}: {} of {messages}: {:#?}", group.distinct(), group.told.all())).await;
    sleep(2 * TTL).await;
    assert_eq!(group.count() as u64, messages, "{what}: handled twice");
    assert_eq!(group.told.lines("LeaseLost"), 0, "{what}: a lease was taken from the living");
}

/// At any time between two heartbeats, with handlers that are shorter and such that are longer than the outage.
#[tokio::test(start_paused = true)]
async fn who_was_alive_before_and_after_an_outage_keeps_what_it_had() {
    for (seed, part) in (0..36).zip(OUTAGES.into_iter().cycle()) {
        fastrand::seed(seed);
        let away = if seed % 4 == 0 { Away::Silent } else { Away::Refusing };
        let takes = [MS(40), MS(900), 3 * TTL][seed as usize % 3];
        let what = format!("{part} ttl, {away:?}, handlers of {takes:?}, seed {seed}");
        let group = group(6);
        let (a, b) = (group.join("a", takes, ttl).await, group.join("b", takes, ttl).await);
        let c = group.join("c", takes, ttl).await;
        group.balanced(&[2, 2, 2]).await;
        // Long enough to judge.
        sleep(2 * TTL + TTL.mul_f64(fastrand::f64())).await;
        let load = group.load().await;
        sleep(MS(10)).await;
        let messages = load.stop().await;
        let owners = group.history.owners();
        group.history.moves();
        away.begin(&[&a, &b, &c]);
        sleep(TTL.mul_f64(part)).await;
        away.end(&[&a, &b, &c]);
        sleep(2 * TTL).await;
        assert_eq!((group.history.owners(), group.history.moves()), (owners, 0), "{what}");
        all_once(&group, messages, &what).await;
        for instance in [a, b, c] {
            instance.leave().await;
        }
    }
}

/// The others were answered all the time, and replace it as soon as its ttl is over.
#[tokio::test(start_paused = true)]
async fn one_that_is_refused_alone_for_less_than_its_ttl_keeps_what_it_had() {
    let ttl = Duration::from_secs(10);
    // Refused from just before the next request of this kind: that one is a third of a ttl after the last, or a little
    // less.
    for (what, after) in [("renew", ttl / 3), ("heartbeat", ttl * 3 / 10)] {
        for seed in 0..10 {
            fastrand::seed(seed);
            let group = group(4);
            let set = |it: ConsumerBuilder<u64>| it.lease_ttl(ttl);
            let (a, b) = (group.join("a", MS(2), set).await, group.join("b", MS(2), set).await);
            group.balanced(&[2, 2]).await;
            sleep(2 * ttl + ttl.mul_f64(fastrand::f64())).await;
            let owners = group.history.owners();
            group.history.moves();
            a.link.calls();
            eventually(|| a.link.calls().contains_key(what), || format!("a {what}")).await;
            sleep(after - MS(10)).await;
            Away::Refusing.begin(&[&a]);
            sleep(ttl * 6 / 10).await;
            Away::Refusing.end(&[&a]);
            sleep(2 * ttl).await;
            assert_eq!(group.told.lines("LeaseLost"), 0, "{what}, seed {seed}: {:#?}", group.told.all());
            assert_eq!((group.history.owners(), group.history.moves()), (owners, 0), "{what}, seed {seed}");
            a.leave().await;
            b.leave().await;
        }
    }
}

/// As a process does that the outage ended, and that is started again when it is over.
#[tokio::test(start_paused = true)]
async fn who_joins_after_an_outage_takes_nothing_from_the_living() {
    for (seed, part) in (0..18).zip(OUTAGES.into_iter().cycle()) {
        fastrand::seed(seed);
        let what = format!("{part} ttl, seed {seed}");
        let group = group(6);
        let (a, b) = (group.join("a", MS(900), ttl).await, group.join("b", MS(900), ttl).await);
        group.balanced(&[3, 3]).await;
        sleep(2 * TTL + TTL.mul_f64(fastrand::f64())).await;
        let load = group.load().await;
        sleep(MS(30)).await;
        let messages = load.stop().await;
        Away::Refusing.begin(&[&a, &b]);
        sleep(TTL.mul_f64(part)).await;
        // It is there before anybody has come back.
        let c = group.join("c", MS(900), ttl).await;
        Away::Refusing.end(&[&a, &b]);
        all_once(&group, messages, &what).await;
        group.balanced(&[2, 2, 2]).await;
        for instance in [a, b, c] {
            instance.leave().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_dies_during_an_outage_is_replaced_within_two_ttls_and_a_second_of_its_end() {
    for (seed, part) in (0..18).zip(OUTAGES.into_iter().cycle()) {
        fastrand::seed(seed);
        let group = group(6);
        let (a, b) = (group.join("a", MS(2), ttl).await, group.join("b", MS(2), ttl).await);
        let c = group.join("c", MS(2), ttl).await;
        group.balanced(&[2, 2, 2]).await;
        sleep(2 * TTL + TTL.mul_f64(fastrand::f64())).await;
        Away::Refusing.begin(&[&a, &b, &c]);
        sleep(TTL.mul_f64(part / 2.0)).await;
        b.link.cut();
        sleep(TTL.mul_f64(part / 2.0)).await;
        Away::Refusing.end(&[&a, &c]);
        let ended = Instant::now();
        let kept = [group.history.of("a"), group.history.of("c")];
        group.history.dead("b");
        group.balanced(&[3, 3]).await;
        let took = ended.elapsed();
        assert!(took <= 2 * TTL + MS(1_000), "{part} ttl, seed {seed}: {took:?}");
        assert!(kept[0].is_subset(&group.history.of("a")) && kept[1].is_subset(&group.history.of("c")));
        a.leave().await;
        c.leave().await;
        drop(b);
    }
}

/// Nobody else is left who could say that it was not an outage.
#[tokio::test(start_paused = true)]
async fn who_joins_a_group_of_the_dead_has_all_of_it_a_ttl_later() {
    let group = group(4);
    let a = group.join("a", MS(2), ttl).await;
    group.balanced(&[4]).await;
    sleep(3 * TTL).await;
    a.link.cut();
    group.history.dead("a");
    sleep(5 * TTL).await;
    let joined = Instant::now();
    let b = group.join("b", MS(2), ttl).await;
    group.balanced(&[4]).await;
    let took = joined.elapsed();
    assert!(took >= TTL && took <= TTL + MS(1_000), "{took:?}");
    b.leave().await;
    drop(a);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_not_in_the_group_any_more_joins_again() {
    let group = group(4);
    let (a, b) = (group.join("a", MS(2), ttl).await, group.join("b", MS(2), ttl).await);
    group.balanced(&[2, 2]).await;
    let (topic, name) = ("orders".parse().expect("name"), "g".parse().expect("name"));
    let roster = async || group.backend.members().roster(&topic, &name).await.expect("a roster");
    let ids: Vec<_> = roster().await.members.iter().map(|member| member.id.clone()).collect();
    for id in &ids {
        assert!(group.memory.operator().forget_member(&topic, &name, id));
    }
    sleep(TTL / 2).await;
    let again: Vec<_> = roster().await.members.iter().map(|member| member.id.clone()).collect();
    // Partitions may move: who comes back first is alone for a moment.
    assert_eq!(again, ids);
    group.balanced(&[2, 2]).await;
    a.leave().await;
    b.leave().await;
    assert!(roster().await.members.is_empty(), "and nobody who has left");
}

#[tokio::test(start_paused = true)]
async fn sharers_that_live_through_an_outage_keep_what_they_had() {
    let long: Does = |_: &Delivery<u64>| (Duration::from_secs(12), Outcome::Ack);
    let short: Does = |_: &Delivery<u64>| (MS(1_500), Outcome::Ack);
    for (seed, part) in (0..12).zip(OUTAGES.into_iter().cycle()) {
        fastrand::seed(seed);
        let does = if seed % 2 == 0 { long } else { short };
        let team = Workers::new(2);
        let (a, b) = (team.join("a", does, few).await, team.join("b", does, few).await);
        let ttl = crate::support::workers::TTL;
        sleep(2 * ttl + ttl.mul_f64(fastrand::f64())).await;
        team.send(0..16).await;
        sleep(MS(500)).await;
        let links = [&a.link, &b.link];
        links.iter().for_each(|link| link.away.store(true, Ordering::Relaxed));
        sleep(ttl.mul_f64(part)).await;
        // One more comes before the others are back.
        let c = team.join("c", does, few).await;
        links.iter().for_each(|link| link.away.store(false, Ordering::Relaxed));
        let what = || format!("{part} ttl, seed {seed}: {:#?}", team.calls.lock().expect("lock"));
        let ended = || {
            let calls = team.calls.lock().expect("lock");
            calls.len() >= 16 && calls.iter().all(|call| call.ended.is_some())
        };
        eventually(ended, what).await;
        sleep(2 * ttl).await;
        let calls = team.calls.lock().expect("lock").clone();
        assert_eq!(calls.len(), 16, "{}", what());
        assert_eq!(team.told.lines("Crashed"), 0, "{}", what());
        for mate in [a, b, c] {
            mate.leave().await;
        }
    }
}

/// An operation and the partition, of an event that it fails, or works again.
fn operation<'a>(line: &'a str, event: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(event)?.strip_prefix(" { ")?;
    rest.split(", error: ").next()?.strip_suffix(" }").or_else(|| rest.split(", error: ").next())
}

/// The lease outlives the outage, and the check for orphans is due during it.
#[tokio::test(start_paused = true)]
async fn what_fails_in_an_outage_works_again_once_and_not_before() {
    let ttl = Duration::from_secs(60);
    for (seed, away) in [(0, Away::Refusing), (1, Away::Refusing), (2, Away::Silent)] {
        fastrand::seed(seed);
        let group = group(2);
        let a = group.join("a", MS(40), |it| it.lease_ttl(ttl).rejoin_timeout(ttl)).await;
        group.balanced(&[2]).await;
        sleep(ttl - Duration::from_secs(2)).await;
        let load = group.load().await;
        sleep(MS(10)).await;
        let messages = load.stop().await;
        let before = group.told.all().len();
        away.begin(&[&a]);
        sleep(Duration::from_secs(17)).await;
        let during = group.told.all().split_off(before);
        let early: Vec<_> = during.iter().filter_map(|line| operation(line, "Recovered")).collect();
        assert!(early.is_empty(), "{away:?}: works again while nothing is answered: {early:?}");
        away.end(&[&a]);
        all_once(&group, messages, &format!("{away:?}")).await;
        sleep(2 * ttl).await;
        let all = group.told.all().split_off(before);
        let mut failed: Vec<_> = all.iter().filter_map(|line| operation(line, "Failing")).collect();
        let mut recovered: Vec<_> = all.iter().filter_map(|line| operation(line, "Recovered")).collect();
        failed.sort_unstable();
        failed.dedup();
        recovered.sort_unstable();
        assert_eq!(recovered, failed, "{away:?}: each works again once: {all:#?}");
        assert!(matches!(away, Away::Silent) || failed.iter().any(|it| it.contains("fetch")), "{failed:?}");
        a.leave().await;
    }
}

/// The limit is that of the whole stop: an orchestrator kills a few seconds later.
#[tokio::test(start_paused = true)]
async fn a_stop_during_an_outage_keeps_to_its_time_and_says_what_it_left() {
    let limit = Duration::from_secs(25);
    for away in [Away::Refusing, Away::Silent] {
        for ttl in [TTL, Duration::from_secs(60)] {
            let group = group(2);
            let a =
                group.join("a", MS(40), |it| it.lease_ttl(ttl).rejoin_timeout(Duration::from_secs(60))).await;
            group.balanced(&[2]).await;
            let load = group.load().await;
            sleep(MS(10)).await;
            let messages = load.stop().await;
            away.begin(&[&a]);
            sleep(MS(500)).await;
            let began = Instant::now();
            let report = a.leave().await;
            let what = format!("{away:?}, a ttl of {ttl:?}: {:?}, {report:?}", began.elapsed());
            assert!(began.elapsed() <= limit, "{what}");
            assert!(ttl == TTL || report.unsettled > 0, "{what}");
            assert!(report.acked <= messages && report.unsettled <= report.handed_back, "{what}");
        }
    }
}
