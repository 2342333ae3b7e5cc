//! Keys that belong together, of which one is lost, damaged or of another type: a client is served within a few requests, or told.

use std::time::Duration;

use millstream_core::Continuity;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::leases::{Acquired, Leases};
use millstream_core::locks::{LockReply, LockRequest, Locks};
use millstream_core::members::Members;
use millstream_core::name::LockName;
use millstream_core::topic::Partition;

use crate::members::{assignment, member};
use crate::server::{Bench, TTL};

const SECOND: Duration = Duration::from_millis(1_000);
/// Most requests of a client until it has what it waits for. One that is busy has made hundreds.
const REQUESTS: usize = 12;
const DAMAGES: [Damage; 3] = [Damage::Gone, Damage::Nonsense, Damage::Foreign];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    /// The key is deleted.
    Gone,
    /// Another program has written nonsense into it.
    Nonsense,
    /// Another type is in its place.
    Foreign,
}

impl Bench {
    async fn damage(&mut self, key: &Key, damage: Damage) {
        let kind: String = redis::from_redis_value(self.cmd(&format!("TYPE {key}")).await).expect("a type");
        match (damage, kind.as_str()) {
            (Damage::Gone, _) => drop(self.cmd(&format!("DEL {key}")).await),
            (Damage::Foreign, _) => {
                self.cmd(&format!("DEL {key}")).await;
                let write = if kind == "string" { "RPUSH" } else { "SET" };
                self.cmd(&format!("{write} {key} mine")).await;
            }
            (Damage::Nonsense, "string") => drop(self.cmd(&format!("SET {key} inf")).await),
            (Damage::Nonsense, "zset") => drop(self.cmd(&format!("ZADD {key} -inf nobody")).await),
            (Damage::Nonsense, "hash") => {
                let fields = self.cmd(&format!("HKEYS {key}")).await;
                for field in redis::from_redis_value::<Vec<String>>(fields).expect("names") {
                    self.cmd(&format!("HSET {key} {field} inf")).await;
                }
            }
            (Damage::Nonsense, _) => drop(self.cmd(&format!("XADD {key} * x y")).await),
        }
    }
}

/// Repeats a request, as long as the replies say, until it is granted. Returns the number of requests and the epoch.
async fn acquired(bench: &Bench, mut request: LockRequest) -> Result<(usize, u64)> {
    for requests in 1..=500 {
        match bench.backend.acquire_lock(&request).await? {
            LockReply::Granted(grant) => return Ok((requests, grant.epoch)),
            LockReply::Wait(wait) => {
                request.arrived = Some(wait.arrived);
                let pause = wait.retry_in.clamp(Duration::from_millis(1), SECOND / 4);
                tokio::time::sleep(pause).await;
            }
            LockReply::TooYoung(_) => panic!("nothing was required"),
        }
    }
    Ok((usize::MAX, 0))
}

impl RedisLocks for millstream_redis::RedisBackend {}

/// The name of both roles' method is the same.
trait RedisLocks: Locks {
    async fn acquire_lock(&self, request: &LockRequest) -> Result<LockReply> {
        Locks::acquire(self, request).await
    }
}

/// A lock is held. In its queue are a client that is dead, and one that asks again and again.
#[tokio::test]
async fn a_lock_whose_keys_do_not_fit_is_granted_or_refused_and_nobody_is_busy() {
    let mut bench = Bench::new().await;
    for (n, damage) in (0..6).flat_map(|n| DAMAGES.map(|damage| (n, damage))) {
        let name = LockName::new(format!("lock-{n}-{damage:?}")).expect("a name");
        let keys = &bench.keys;
        let all = [
            keys.lock(&name),
            keys.lock_queue(&name),
            keys.lock_places(&name),
            keys.lock_changes(&name),
            keys.lock_epoch(&name),
            keys.lock_index(&name),
        ];
        let row = format!("{}, {damage:?}", all[n]);
        let request = |nonce: &str| {
            let mut request = LockRequest::new(name.clone(), nonce, nonce, SECOND);
            (request.queued, request.continuity) = (true, Continuity::assured());
            request
        };
        let (_, first) = acquired(&bench, request("first")).await.expect("granted");
        for waiting in ["dead", "second"] {
            let reply = bench.backend.acquire_lock(&request(waiting)).await.expect("answered");
            assert!(matches!(reply, LockReply::Wait(_)), "{row}: {reply:?}");
        }
        if n == 3 {
            bench.cmd(&format!("XADD {} * next nobody", all[3])).await;
        }
        bench.damage(&all[n], damage).await;
        let released = Locks::release(&bench.backend, &name, "first").await;
        if damage == Damage::Gone && n == 2 {
            // The dead one was called and got a place: it is lost once more.
            bench.damage(&all[n], damage).await;
        }
        let outcome = acquired(&bench, request("second")).await;
        let is_told = damage == Damage::Foreign;
        match outcome {
            Ok((requests, epoch)) => {
                assert!(!is_told && requests <= REQUESTS, "{row}: {requests} requests");
                assert!(epoch > first, "{row}: {epoch} behind {first}");
            }
            Err(error) => {
                assert!(is_told, "{row}: {error}");
                assert_eq!(error.kind(), ErrorKind::WrongType, "{row}: {error}");
                assert!(error.to_string().contains(all[n].as_str()), "{row}: {error}");
            }
        }
        assert!(is_told || released.is_ok(), "{row}: {released:?}");
        bench.cmd(&format!("DEL {} {} {} {} {} {}", all[0], all[1], all[2], all[3], all[4], all[5])).await;
    }
}

/// A few heartbeats make the group whole, or each of them says which key is not ours.
#[tokio::test]
async fn a_membership_whose_keys_do_not_fit_is_made_anew_or_refused() {
    for (n, damage) in (0..4).flat_map(|n| DAMAGES.map(|damage| (n, damage))) {
        let mut bench = Bench::private(&[]).await;
        let (topic, group) = (bench.spec.name.clone(), bench.group.clone());
        let keys = &bench.keys;
        let all = [
            keys.members(&topic, &group),
            keys.member(&topic, &group),
            keys.assignment(&topic, &group),
            keys.changes(&topic, &group),
        ];
        let row = format!("{}, {damage:?}", all[n]);
        let (a, b) = (member("a", "a-1"), member("b", "b-1"));
        bench.beat(&a, true).await;
        let both = bench.beat(&b, true).await;
        assert!(bench.publish(both.version, &assignment(&[("a", &[0]), ("b", &[])])).await);
        bench.damage(&all[n], damage).await;
        let (mut whole, mut told) = (false, None);
        for round in 0..4 {
            let mut seen = Vec::new();
            for member in [&a, &b] {
                let mut beat = bench.backend.heartbeat(&topic, &group, member, false).await;
                if beat.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotMember) {
                    beat = bench.backend.heartbeat(&topic, &group, member, true).await;
                }
                match beat {
                    Ok(pulse) => seen.push(pulse),
                    Err(error) => told = Some(error),
                }
            }
            let Some(last) = seen.last().filter(|_| seen.len() == 2) else { continue };
            whole = seen.iter().all(|pulse| pulse.version == last.version && pulse.assigned.is_some());
            whole &= seen.iter().all(|pulse| pulse.members >= 2) && round > 0;
            if last.assigned.is_none() {
                let of = assignment(&[("a", &[0]), ("b", &[])]);
                let _ = bench.backend.publish(&topic, &group, last.version, &of).await;
            }
        }
        match told {
            Some(error) => {
                assert_eq!((damage, error.kind()), (Damage::Foreign, ErrorKind::WrongType), "{row}: {error}");
                assert!(error.to_string().contains(all[n].as_str()), "{row}: {error}");
            }
            None => assert!(whole && damage != Damage::Foreign, "{row}"),
        }
        if damage != Damage::Foreign {
            let roster = bench.backend.roster(&topic, &group).await.expect("a roster");
            assert_eq!(roster.members.len(), 2, "{row}");
            assert_eq!(roster.assignment[&a.id], [Partition(0)], "{row}");
        }
    }
}

/// The next owner is granted the partition, and the one before it learns that it has lost it.
#[tokio::test]
async fn a_lease_whose_keys_do_not_fit_is_granted_or_refused() {
    for (n, damage) in (0..2).flat_map(|n| DAMAGES.map(|damage| (n, damage))) {
        let mut bench = Bench::private(&[]).await;
        let all = [bench.keys.lease(&bench.tp, &bench.group), bench.fence()];
        let row = format!("{}, {damage:?}", all[n]);
        bench.damage(&all[n], damage).await;
        let renewed = Leases::renew(&bench.backend, std::slice::from_ref(&bench.lease)).await.remove(0);
        let judge = Continuity::assured();
        let acquired = Leases::acquire(&bench.backend, &bench.resource(), "b", "b", TTL, &judge).await;
        match (n, damage, renewed, acquired) {
            // It is revived by its owner.
            (0, Damage::Gone, Ok(()), Ok(Acquired::Held(_))) => {}
            // `verify` finds an epoch that no other can follow.
            (1, Damage::Nonsense, _, Err(error)) => assert_eq!(error.kind(), ErrorKind::Protocol, "{row}"),
            (_, Damage::Foreign, renewed, Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::WrongType, "{row}: {error}, {renewed:?}");
            }
            (_, _, renewed, Ok(Acquired::Granted(lease))) => {
                let before =
                    Leases::renew(&bench.backend, std::slice::from_ref(&bench.lease)).await.remove(0);
                assert_eq!(before.expect_err(&row).kind(), ErrorKind::Fenced, "{row}: {renewed:?}");
                Leases::renew(&bench.backend, std::slice::from_ref(&lease)).await.remove(0).expect(&row);
            }
            (_, _, renewed, acquired) => panic!("{row}: {renewed:?}, {acquired:?}"),
        }
    }
}
