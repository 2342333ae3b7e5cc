//! acquire, renew, release: who owns, and what a clock that went back may not do.

pub(crate) mod continuity;
mod pairs;

use std::time::Duration;

use millstream_core::error::ErrorKind;
use millstream_core::leases::{Acquired, Leases};
use millstream_core::topic::TopicPartition;
use millstream_redis::RedisConfig;

use crate::server::{Bench, Server, TTL, grant};

#[tokio::test]
async fn a_held_lease_is_not_given_and_the_same_request_gets_the_same_lease() {
    let bench = Bench::new().await;
    let again = grant(&bench.backend, &bench.tp, &bench.group, "first").await;
    assert_eq!(again, bench.lease);
    match bench
        .backend
        .acquire(&bench.resource(), "b", "other", TTL, &millstream_core::Continuity::assured())
        .await
        .expect("an answer")
    {
        Acquired::Held(holder) => {
            assert_eq!((holder.owner.as_str(), holder.epoch), ("first", bench.lease.epoch));
            assert!(holder.expires_in <= TTL && holder.expires_in > TTL / 2);
        }
        Acquired::Granted(lease) => panic!("{lease:?}"),
    }
    let holder = bench.backend.holder(&bench.resource()).await.expect("an answer").expect("a holder");
    assert_eq!((holder.owner.as_str(), holder.epoch), ("first", bench.lease.epoch));
}

#[tokio::test]
async fn the_epoch_grows_even_if_the_store_forgot_or_the_clock_went_back() {
    let mut bench = Bench::new().await;
    let fence = bench.fence();
    let first = bench.lease.clone();
    bench.backend.release(&first).await.expect("released");
    assert!(bench.backend.holder(&bench.resource()).await.expect("an answer").is_none());
    let second = grant(&bench.backend, &bench.tp, &bench.group, "first").await;
    assert!(second.epoch > first.epoch, "the same nonce after a release is a new grant");

    // A fail-over that lost the fence, and took some milliseconds: the clock carries on.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    bench.cmd(&format!("DEL {fence}")).await;
    bench.take_over().await;
    let epoch = bench.backend.holder(&bench.resource()).await.expect("an answer").expect("held").epoch;
    assert!(epoch > second.epoch);

    // An epoch from the future, as a clock that went back leaves it: the stored one carries on.
    bench.cmd(&format!("HSET {fence} epoch 9007199254740000")).await;
    let lease = bench.take_over().await;
    assert_eq!(lease.epoch, 9_007_199_254_740_001);
    assert_eq!(lease.token.as_str(), "9007199254740001:second");
}

#[tokio::test]
async fn a_lease_that_lives_longer_than_it_was_given_or_for_ever_is_free() {
    for spoil in ["PEXPIRE {} 70000", "PERSIST {}"] {
        let mut bench = Bench::new().await;
        let lease = bench.keys.lease(&bench.tp, &bench.group);
        bench.cmd(&spoil.replace("{}", lease.as_str())).await;
        assert!(bench.backend.holder(&bench.resource()).await.expect("an answer").is_none(), "{spoil}");
        let next = grant(&bench.backend, &bench.tp, &bench.group, "second").await;
        assert!(next.epoch > bench.lease.epoch, "{spoil}");
        let pttl = bench.int(&format!("PTTL {lease}")).await;
        assert!(pttl > 0 && pttl <= 30_000, "{spoil}: {pttl}");
    }
}

#[tokio::test]
async fn a_renewal_revives_what_nobody_took_and_nothing_else() {
    let mut bench = Bench::new().await;
    let lease = bench.keys.lease(&bench.tp, &bench.group);
    let renew = async |bench: &Bench| bench.backend.renew(std::slice::from_ref(&bench.lease)).await.remove(0);
    bench.cmd(&format!("PEXPIRE {lease} 5000")).await;
    renew(&bench).await.expect("renewed");
    assert!(bench.int(&format!("PTTL {lease}")).await > 20_000);
    bench.cmd(&format!("DEL {lease}")).await;
    renew(&bench).await.expect("revived");
    assert!(bench.int(&format!("PTTL {lease}")).await > 20_000);

    let next = bench.take_over().await;
    assert_eq!(renew(&bench).await.expect_err("taken").kind(), ErrorKind::Fenced);
    let error = bench.backend.release(&bench.lease).await.expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    let both = bench.backend.renew(&[bench.lease.clone(), next.clone()]).await;
    assert!(both[0].is_err() && both[1].is_ok(), "each lease has its own answer");

    bench.backend.release(&next).await.expect("released");
    let error = bench.backend.renew(&[next]).await.remove(0).expect_err("released");
    assert_eq!(error.kind(), ErrorKind::Fenced, "a released token is good for nothing");
}

/// One call renews many: each has its own answer, also where the keys of one hold something else.
#[tokio::test]
async fn leases_are_renewed_together_and_one_at_fault_costs_the_others_nothing() {
    let mut bench = Bench::private(&[]).await;
    let mut leases = Vec::new();
    for number in 0..600 {
        let tp = TopicPartition::new(bench.tp.topic.clone(), 100 + number);
        leases.push((grant(&bench.backend, &tp, &bench.group, "first").await, tp));
    }
    let keys = |bench: &Bench, at: usize| {
        let (_, tp) = &leases[at];
        (bench.keys.lease(tp, &bench.group), bench.keys.fence(tp, &bench.group))
    };
    let (gone, _) = keys(&bench, 7);
    let (foreign, _) = keys(&bench, 11);
    let (expired, no_fence) = keys(&bench, 300);
    for spoil in [
        format!("DEL {gone}"),
        format!("DEL {foreign}"),
        format!("RPUSH {foreign} x"),
        format!("DEL {expired}"),
        format!("DEL {no_fence}"),
        format!("SET {no_fence} x"),
    ] {
        bench.cmd(&spoil).await;
    }
    bench.backend.release(&leases[599].0).await.expect("released");
    // From here on the server knows the script.
    bench.backend.renew(&[leases[0].0.clone()]).await.remove(0).expect("renewed");
    bench.cmd("CONFIG RESETSTAT").await;
    let all: Vec<_> = leases.iter().map(|(lease, _)| lease.clone()).collect();
    let renewed = bench.backend.renew(&all).await;
    assert_eq!(renewed.len(), 600);
    let failed =
        renewed.iter().enumerate().filter_map(|(at, result)| Some((at, result.as_ref().err()?.kind())));
    let expected = [(11, ErrorKind::WrongType), (300, ErrorKind::WrongType), (599, ErrorKind::Fenced)];
    assert_eq!(failed.collect::<Vec<_>>(), expected);
    assert!(bench.int(&format!("PTTL {gone}")).await > 20_000, "revived");
    assert_eq!(bench.int(&format!("LLEN {foreign}")).await, 1, "it stays");
    let stats: String = redis::from_redis_value(bench.cmd("INFO commandstats").await).expect("text");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).expect("calls");
    assert!(calls.starts_with("3,"), "at most 250 each: {calls}");
}

/// Several servers behind one address that is no cluster's: such a service refuses a call whose keys are of several slots.
#[tokio::test]
async fn where_a_call_may_have_one_slot_each_lease_is_renewed_alone() {
    let server = Server::start(&["--cluster-enabled", "yes"]);
    server.takes_all_slots().await;
    let bench = Bench::at(RedisConfig::new(server.url()), Some(server)).await;
    let mut leases = Vec::new();
    for number in 0..5 {
        let tp = TopicPartition::new(bench.tp.topic.clone(), 100 + number);
        leases.push(grant(&bench.backend, &tp, &bench.group, "first").await);
    }
    for _ in 0..2 {
        for renewed in bench.backend.renew(&leases).await {
            renewed.expect("renewed");
        }
    }
}

#[tokio::test]
async fn a_short_lease_runs_out_and_a_renewal_does_not_touch_the_fence() {
    let mut bench = Bench::new().await;
    bench.backend.release(&bench.lease).await.expect("released");
    let short = bench
        .backend
        .acquire(
            &bench.resource(),
            "a",
            "short",
            Duration::from_millis(50),
            &millstream_core::Continuity::assured(),
        )
        .await;
    let Ok(Acquired::Granted(short)) = short else { panic!("{short:?}") };
    let fence = bench.fence();
    let before = bench.cmd(&format!("HGETALL {fence}")).await;
    bench.backend.renew(std::slice::from_ref(&short)).await.remove(0).expect("renewed");
    assert_eq!(bench.cmd(&format!("HGETALL {fence}")).await, before);
    tokio::time::sleep(Duration::from_millis(80)).await;
    let next = grant(&bench.backend, &bench.tp, &bench.group, "next").await;
    assert!(next.epoch > short.epoch);
}

#[tokio::test]
async fn who_died_is_told_from_who_went_also_when_asked_again() {
    let mut bench = Bench::new().await;
    assert!(bench.lease.ends.is_empty(), "there was nobody");
    let died = bench.take_over().await;
    assert!(died.ends == [bench.lease.epoch] && died.epoch > bench.lease.epoch);
    assert_eq!(grant(&bench.backend, &bench.tp, &bench.group, "second").await, died, "told the same");
    // The answer was lost for so long that the lease ran out: it is still the same request.
    let lease = bench.keys.lease(&bench.tp, &bench.group);
    bench.cmd(&format!("DEL {lease}")).await;
    let later = grant(&bench.backend, &bench.tp, &bench.group, "second").await;
    assert!(later.ends == [bench.lease.epoch] && later.epoch > died.epoch);
    bench.backend.release(&later.after_ends(Vec::new())).await.expect("released");
    let went = grant(&bench.backend, &bench.tp, &bench.group, "third").await;
    assert!(went.ends.is_empty());
    bench.cmd(&format!("DEL {lease}")).await;
    assert!(
        grant(&bench.backend, &bench.tp, &bench.group, "third").await.ends.is_empty(),
        "it took it from itself"
    );
    bench.cmd(&format!("DEL {lease}")).await;
    assert!(!grant(&bench.backend, &bench.tp, &bench.group, "fourth").await.ends.is_empty());
}

#[tokio::test]
async fn a_key_of_a_foreign_type_is_named() {
    let mut bench = Bench::new().await;
    let fence = bench.fence();
    bench.cmd(&format!("SET {fence} x")).await;
    let error = bench
        .backend
        .acquire(&bench.resource(), "a", "n", TTL, &millstream_core::Continuity::assured())
        .await
        .expect_err("a string");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert!(error.to_string().contains(fence.as_str()), "{error}");
    let error = bench.backend.holder(&bench.resource()).await.expect_err("a string");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert!(error.to_string().contains(fence.as_str()), "{error}");
}
