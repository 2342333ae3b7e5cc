//! Locks on the backend in memory, under a paused clock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::leases::Holder;
use millstream_core::locks::{LockReply, LockRequest};
use millstream_core::{Backend, Error, ErrorKind};
use millstream_lock::{AcquireError, LockClient, RedLock, RedLockError, Release, RunError};
use tokio::time::Instant;

use crate::support::{backend, faulty};

const SECOND: Duration = Duration::from_secs(1);

fn client() -> LockClient {
    LockClient::new(&backend())
}

async fn holder(backend: &Backend, name: &str) -> Option<Holder> {
    backend.locks().expect("locks").holder(&name.parse().expect("name")).await.expect("a holder")
}

#[tokio::test(start_paused = true)]
async fn a_held_lock_is_kept_and_a_released_one_is_free() {
    let locks = client();
    let held = locks.lock("a").ttl(SECOND).acquire().await.expect("acquired");
    tokio::time::sleep(10 * SECOND).await;
    assert!(!held.is_lost() && held.remaining() > SECOND / 3, "kept for ten ttl: {held:?}");
    assert!(locks.lock("a").try_acquire().await.expect("asked").is_none());
    let fence = held.fence();
    assert_eq!(held.release().await.expect("released"), Release::Released);
    let next = locks.lock("a").try_acquire().await.expect("asked").expect("free at once");
    assert!(next.fence() > fence);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lock_is_released() {
    let locks = client();
    let held = locks.lock("a").acquire().await.expect("acquired");
    let begun = Instant::now();
    // Where no runtime is.
    std::thread::spawn(move || drop(held)).join().expect("no panic");
    drop(locks.lock("a").acquire().await.expect("acquired again"));
    assert!(begun.elapsed() < SECOND, "by the release and not by the ttl: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn settings_beyond_their_limits_are_refused_all_at_once() {
    let builder = client().lock("a b").ttl(Duration::from_millis(499)).owner("o".repeat(257));
    let Err(AcquireError::Failed(error)) = builder.acquire().await else { panic!("accepted") };
    assert_eq!((error.kind(), error.problems().len()), (ErrorKind::InvalidConfig, 3), "{error}");
    let error = client().lock("a").fence_above(u64::MAX).try_acquire().await.expect_err("too high");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let without = backend().without(millstream_core::Capability::Locks);
    let error = LockClient::new(&without).lock("a").try_acquire().await.expect_err("no locks");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_vain_learns_who_holds_it() {
    let locks = client();
    let _held = locks.lock("a").owner("ann").acquire().await.expect("acquired");
    let begun = Instant::now();
    let Err(AcquireError::Busy(busy)) = locks.lock("a").wait(3 * SECOND).acquire().await else {
        panic!("granted twice")
    };
    assert_eq!(busy.holder.as_ref().map(|holder| &*holder.owner), Some("ann"), "{busy}");
    let took = begun.elapsed();
    assert!(took >= 3 * SECOND && took < 4 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_refused_renewal_tells_the_loss() {
    let (locks, faulty, _) = faulty();
    let held = locks.lock("a").ttl(30 * SECOND).acquire().await.expect("acquired");
    tokio::time::sleep(25 * SECOND).await;
    assert!(!held.is_lost());
    let begun = Instant::now();
    faulty.refuses.store(true, Ordering::SeqCst);
    held.lost().await;
    assert!(begun.elapsed() <= 10 * SECOND, "a third of the ttl: {:?}", begun.elapsed());
    faulty.refuses.store(false, Ordering::SeqCst);
    tokio::time::sleep(10 * SECOND).await;
    assert!(held.is_lost(), "for good");
    assert_eq!(held.release().await.expect("released"), Release::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn without_renewals_the_loss_is_told_at_the_deadline_and_never_turns_back() {
    let (locks, faulty, backend) = faulty();
    let held = locks.lock("a").ttl(10 * SECOND).acquire().await.expect("acquired");
    let begun = Instant::now();
    faulty.fails.store(true, Ordering::SeqCst);
    held.lost().await;
    assert_eq!(begun.elapsed(), 8 * SECOND, "a fifth of the ttl before the server lets others have it");
    faulty.fails.store(false, Ordering::SeqCst);
    tokio::time::sleep(5 * SECOND).await;
    assert!(held.is_lost() && held.remaining().is_zero(), "although the server works again");
    assert_eq!(held.release().await.expect("released"), Release::AlreadyLost);
    assert_eq!(holder(&backend, "a").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_of_renewals_costs_nothing() {
    let (locks, faulty, _) = faulty();
    let held = locks.lock("a").ttl(10 * SECOND).acquire().await.expect("acquired");
    for _ in 0..5 {
        faulty.fails.store(true, Ordering::SeqCst);
        tokio::time::sleep(4 * SECOND).await;
        faulty.fails.store(false, Ordering::SeqCst);
        tokio::time::sleep(4 * SECOND).await;
    }
    assert!(!held.is_lost());
}

/// The last renewal was a third of the ttl ago, the deadline is at four fifths, and failed renewals are repeated each thirtieth.
#[tokio::test(start_paused = true)]
async fn an_outage_of_less_than_thirteen_thirtieths_of_the_ttl_costs_nothing_whenever_it_begins() {
    for tenths in 0..=34 {
        let (locks, faulty, _) = faulty();
        let held = locks.lock("a").ttl(10 * SECOND).acquire().await.expect("acquired");
        // Up to just before and just after the first renewal.
        tokio::time::sleep(tenths * SECOND / 10 - SECOND.min(tenths * SECOND) / 1_000).await;
        faulty.fails.store(true, Ordering::SeqCst);
        tokio::time::sleep(43 * SECOND / 10).await;
        faulty.fails.store(false, Ordering::SeqCst);
        tokio::time::sleep(10 * SECOND).await;
        assert!(!held.is_lost(), "it began after {tenths} tenths of a second");
    }
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_at_the_loss_and_its_own_error_is_kept() {
    let (locks, faulty, backend) = faulty();
    let done = locks.lock("a").run(|held| async move { Ok::<_, Error>(held.fence()) }).await;
    assert!(done.expect("done") > 0);
    assert_eq!(holder(&backend, "a").await, None, "released when it returns");
    let failed: Result<(), RunError<&str>> = locks.lock("a").run(|_| async { Err("no money") }).await;
    assert!(matches!(failed, Err(RunError::Work("no money"))), "{failed:?}");

    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = Dropped(dropped.clone());
    faulty.fails.store(true, Ordering::SeqCst);
    let lost: Result<(), RunError<Error>> = locks
        .lock("a")
        .ttl(SECOND)
        .run(|_| async move {
            let _guard = guard;
            std::future::pending().await
        })
        .await;
    assert!(matches!(lost, Err(RunError::Lost(_))), "{lost:?}");
    assert!(dropped.load(Ordering::SeqCst), "the work is dropped");
}

#[tokio::test(start_paused = true)]
async fn clients_are_served_in_the_order_of_arrival() {
    let locks = client();
    let held = locks.lock("a").acquire().await.expect("acquired");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for n in 0..20 {
        let (locks, order) = (locks.clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let held = locks.lock("a").acquire().await.expect("acquired");
            order.lock().expect("a lock").push(n);
            tokio::time::sleep(Duration::from_millis(10)).await;
            held.release().await.expect("released");
        }));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let begun = Instant::now();
    held.release().await.expect("released");
    for waiting in waiting {
        waiting.await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("a lock"), (0..20).collect::<Vec<_>>());
    assert!(begun.elapsed() < SECOND / 2, "woken and not polled: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_cancelled_attempts_leave_no_place_and_no_task() {
    let locks = client();
    let held = locks.lock("a").acquire().await.expect("acquired");
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for n in 0..10_000_u64 {
        let attempt = locks.lock(if n % 2 == 0 { "a" } else { "b" }).acquire();
        // Dropped before the request, while it is under way, while it waits, or just when it was granted.
        let _ = tokio::time::timeout(Duration::from_micros(n % 5 * 400), attempt).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(after, before, "tasks");
    let free = locks.lock("b").try_acquire().await.expect("asked").expect("nobody holds it or waits");
    held.release().await.expect("released");
    let next = locks.lock("a").try_acquire().await.expect("asked").expect("nobody waits");
    drop((free, next));
}

#[tokio::test(start_paused = true)]
async fn a_dead_waiter_and_a_dead_holder_are_passed() {
    let backend = backend();
    let (locks, role) = (LockClient::new(&backend), backend.locks().expect("locks").clone());
    // Neither renews nor asks again: as a process does that was killed.
    let request = |nonce: &str| LockRequest::new("a".parse().expect("name"), "dead", nonce, 2 * SECOND);
    assert!(matches!(role.acquire(&request("holder")).await, Ok(LockReply::Granted(_))));
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("a").ttl(2 * SECOND).acquire().await.expect("acquired") }
    });
    let begun = Instant::now();
    let held = waiting.await.expect("no panic");
    let took = begun.elapsed();
    assert!(took >= 2 * SECOND && took <= 3 * SECOND, "taken over after {took:?}");
    assert!(matches!(role.acquire(&request("waiter")).await, Ok(LockReply::Wait(_))));
    let next = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("a").acquire().await.expect("acquired") }
    });
    tokio::time::sleep(SECOND / 2).await;
    let begun = Instant::now();
    held.release().await.expect("released");
    drop(next.await.expect("no panic"));
    assert!(begun.elapsed() <= SECOND, "a dead waiter costs {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_others_follow() {
    let locks = client();
    let election = |name: &str| locks.leader("scheduler").ttl(2 * SECOND).candidate(name);
    let mut watch = election("nobody").observe().await.expect("observed");
    assert_eq!(watch.current(), None);
    let first = election("ann").campaign().await.expect("elected");
    let seen = watch.changed().await.expect("a leader");
    assert_eq!((&*seen.candidate, seen.epoch), ("ann", first.epoch()));
    let second = tokio::spawn({
        let election = election("bob");
        async move { election.campaign().await.expect("elected") }
    });
    tokio::time::sleep(5 * SECOND).await;
    assert!(!second.is_finished() && !first.is_lost());
    let begun = Instant::now();
    let epoch = first.epoch();
    assert_eq!(first.resign().await.expect("resigned"), Release::Released);
    let second = second.await.expect("no panic");
    assert!(begun.elapsed() < SECOND / 10 && second.epoch() > epoch, "{:?}", begun.elapsed());
    let mut seen = watch.changed().await;
    while seen.as_ref().is_none_or(|seen| seen.candidate != "bob") {
        seen = watch.changed().await;
    }
    assert_eq!(seen.map(|seen| seen.epoch), Some(second.epoch()));
}

#[tokio::test(start_paused = true)]
async fn a_majority_grants_and_young_servers_do_not_count() {
    let backends: Vec<Backend> = (0..5).map(|_| backend()).collect();
    assert!(RedLock::new(backends[..2].to_vec()).is_err(), "two have no majority without one");
    let red = RedLock::new(backends.clone()).expect("five").longest_ttl(10 * SECOND);
    let Err(RedLockError::NoQuorum(young)) = red.acquire("a", SECOND, SECOND).await else {
        panic!("granted")
    };
    assert_eq!((young.young, young.needed), (5, 3), "{young}");
    tokio::time::sleep(10 * SECOND).await;
    let held = red.acquire("a", SECOND, Duration::ZERO).await.expect("granted");
    assert!(held.remaining() > SECOND / 2 && held.remaining() < SECOND);
    let Err(RedLockError::NoQuorum(busy)) = red.acquire("a", SECOND, Duration::ZERO).await else {
        panic!("granted twice")
    };
    assert_eq!(busy.held, 5);
    held.release().await;
    let held = red.acquire("a", SECOND, Duration::ZERO).await.expect("free at once");
    tokio::time::sleep(SECOND).await;
    assert!(held.is_over());
    drop(red.acquire("a", SECOND, Duration::ZERO).await.expect("ended by itself"));
    drop(held);
    assert!(red.acquire("a", 11 * SECOND, SECOND).await.is_err(), "a ttl above the longest");
}
