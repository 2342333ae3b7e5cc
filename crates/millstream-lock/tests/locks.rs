//! Locks on the backend in memory, under a paused clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::leases::Holder;
use millstream_core::locks::{
    LockChange, LockCursor, LockGrant, LockPage, LockRelease, LockReply, LockRequest, LockRevision,
    LockState, Locks,
};
use millstream_core::{Backend, Error, ErrorKind, Event, LockName, Observer, Result};
use millstream_lock::{AcquireError, LockClient, RedLock, RedLockError, Release, RunError};
use millstream_memory::MemoryBackend;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

fn backend() -> Backend {
    Backend::from(MemoryBackend::new())
}

fn client() -> LockClient {
    LockClient::new(&backend())
}

/// Locks whose renewals fail while `fails` is set, and are refused while `refuses` is. The first reply to an acquisition comes
/// this many milliseconds late.
struct Faulty {
    inner: Arc<dyn Locks>,
    fails: AtomicBool,
    refuses: AtomicBool,
    late_ms: AtomicU64,
    /// Numbers of requests: for the lock, for its holder, and for a change.
    requests: [AtomicU64; 3],
}

#[async_trait]
impl Locks for Faulty {
    async fn acquire(&self, request: &LockRequest) -> Result<LockReply> {
        self.requests[0].fetch_add(1, Ordering::SeqCst);
        let reply = self.inner.acquire(request).await;
        tokio::time::sleep(Duration::from_millis(self.late_ms.swap(0, Ordering::SeqCst))).await;
        reply
    }

    async fn renew(&self, grant: &LockGrant) -> Result<()> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "away"));
        }
        if self.refuses.load(Ordering::SeqCst) {
            return Err(grant.fenced());
        }
        self.inner.renew(grant).await
    }

    async fn release(&self, name: &LockName, nonce: &str) -> Result<LockRelease> {
        self.inner.release(name, nonce).await
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Holder>> {
        self.requests[1].fetch_add(1, Ordering::SeqCst);
        self.inner.holder(name).await
    }

    async fn changed(&self, name: &LockName, seen: LockRevision, wait: Duration) -> Result<LockChange> {
        self.requests[2].fetch_add(1, Ordering::SeqCst);
        self.inner.changed(name, seen, wait).await
    }

    async fn state(&self, name: &LockName) -> Result<LockState> {
        self.inner.state(name).await
    }

    async fn list(&self, from: Option<&LockCursor>, limit: usize) -> Result<LockPage> {
        self.inner.list(from, limit).await
    }

    async fn force_release(&self, name: &LockName, epoch: u64) -> Result<bool> {
        self.inner.force_release(name, epoch).await
    }
}

fn faulty() -> (LockClient, Arc<Faulty>, Backend) {
    let backend = backend();
    let inner = backend.locks().expect("locks").clone();
    let (fails, refuses) = (AtomicBool::default(), AtomicBool::default());
    let (late_ms, requests) = (AtomicU64::default(), Default::default());
    let faulty = Arc::new(Faulty { inner, fails, refuses, late_ms, requests });
    (LockClient::new(&backend.clone().with_locks(faulty.clone())), faulty, backend)
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

#[tokio::test(start_paused = true)]
async fn a_lock_and_a_term_are_kept_for_an_hour() {
    let (locks, faulty, _) = faulty();
    let held = locks.lock("a").acquire().await.expect("acquired");
    let term = locks.leader("scheduler").campaign().await.expect("elected");
    tokio::time::sleep(3_600 * SECOND).await;
    assert!(!held.is_lost() && !term.is_lost());
    assert!(locks.lock("a").try_acquire().await.expect("asked").is_none());
    assert_eq!(faulty.requests[0].load(Ordering::SeqCst), 3, "neither was acquired again");
    assert_eq!(held.release().await.expect("released"), Release::Released);
    assert_eq!(term.resign().await.expect("resigned"), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_reply_comes_too_late_is_asked_for_again() {
    let (locks, faulty, _) = faulty();
    // As after an outage: the server has granted the lock, and its ttl has passed when the client receives the reply.
    faulty.late_ms.store(2_000, Ordering::SeqCst);
    let held = locks.lock("a").ttl(SECOND).acquire().await.expect("acquired");
    assert!(!held.is_lost(), "a lock that is lost when it is returned is of no use");
    held.release().await.expect("released");
    faulty.late_ms.store(2_000, Ordering::SeqCst);
    let late = locks.lock("a").ttl(SECOND).wait(SECOND).acquire().await;
    assert!(matches!(late, Err(AcquireError::Busy(_))), "there was no time left: {late:?}");
    let next = locks.lock("a").ttl(SECOND).wait(SECOND).acquire().await;
    assert!(next.is_ok(), "what was granted too late is released: {next:?}");
}

#[tokio::test(start_paused = true)]
async fn an_observer_waits_for_a_leader_without_asking_all_the_time() {
    let (locks, faulty, _) = faulty();
    let election = locks.leader("scheduler");
    let mut watch = election.observe().await.expect("observed");
    let term = election.campaign().await.expect("elected");
    assert!(watch.changed().await.is_some());
    term.resign().await.expect("resigned");
    assert_eq!(watch.changed().await, None);
    let before = faulty.requests[1].load(Ordering::SeqCst);
    tokio::time::sleep(60 * SECOND).await;
    let asked = faulty.requests[1].load(Ordering::SeqCst) - before;
    assert!(asked <= 70, "{asked} requests in a minute in which nobody leads");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiting_clients_are_served_in_order_and_a_call_wakes_one_of_them() {
    const CLIENTS: u64 = 1_000;
    let (locks, faulty, _) = faulty();
    let held = locks.lock("a").acquire().await.expect("acquired");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for n in 0..CLIENTS {
        let (locks, order) = (locks.clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let held = locks.lock("a").acquire().await.expect("acquired");
            order.lock().expect("a lock").push(n);
            held.release().await.expect("released");
        }));
        // Also when they come at the same moment, each has its place.
        tokio::time::sleep(Duration::from_micros(1)).await;
    }
    tokio::time::sleep(SECOND).await;
    let before = [0, 2].map(|at| faulty.requests[at].load(Ordering::SeqCst));
    let begun = Instant::now();
    held.release().await.expect("released");
    for waiting in waiting {
        waiting.await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("a lock"), (0..CLIENTS).collect::<Vec<_>>());
    let [asked, looked] = [0, 2].map(|at| faulty.requests[at].load(Ordering::SeqCst));
    // Beside that, each keeps its place by a request every 900 ms.
    let refreshed = (begun.elapsed().as_millis() as u64 / 900 + 1) * CLIENTS;
    assert!(asked - before[0] <= CLIENTS + refreshed, "{} requests for the lock", asked - before[0]);
    assert!(looked - before[1] <= 3 * CLIENTS, "{} looks at changes", looked - before[1]);
}

/// Events as words.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Observer for Seen {
    fn observe(&self, event: &Event<'_>) {
        let word = match *event {
            Event::LockAcquired { lock, election, waited, .. } => {
                format!("{lock} acquired {election:?} {}", waited.as_secs())
            }
            Event::LockEnded { lock, end, held, .. } => {
                format!("{lock} {} {}", end.as_str(), held.as_secs())
            }
            Event::LockBusy { lock, waited, .. } => format!("{lock} busy {}", waited.as_secs()),
            Event::Failing { operation, error, .. } => format!("{operation} {}", error.kind()),
            Event::Recovered { operation, .. } => format!("{operation} works"),
            _ => return,
        };
        self.0.lock().expect("a lock").push(word);
    }
}

impl Seen {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("a lock"))
    }
}

#[tokio::test(start_paused = true)]
async fn each_lock_begins_and_ends_with_one_event() {
    let (locks, faulty, backend) = faulty();
    let seen = Seen::default();
    let locks = locks.with_observer(seen.clone());
    let builder = |name: &str| locks.lock(name).ttl(3 * SECOND);
    let held = builder("a").acquire().await.expect("acquired");
    assert!(builder("a").wait(2 * SECOND).acquire().await.is_err());
    let next = tokio::spawn(builder("a").acquire());
    tokio::time::sleep(5 * SECOND).await;
    held.release().await.expect("released");
    drop(next.await.expect("no panic").expect("acquired"));
    let expected = ["a acquired None 0", "a busy 2", "a released 7", "a acquired None 5", "a released 0"];
    assert_eq!(seen.take(), expected);

    // Refused: an operator ends it.
    let held = builder("b").acquire().await.expect("acquired");
    let role = backend.locks().expect("locks");
    assert!(role.force_release(held.name(), held.fence()).await.expect("ended"));
    held.lost().await;
    assert_eq!(held.release().await.expect("released"), Release::AlreadyLost);
    assert_eq!(seen.take(), ["b acquired None 0", "b refused 1"]);

    // Gone: it is noticed by the release.
    let held = builder("c").acquire().await.expect("acquired");
    assert!(role.force_release(held.name(), held.fence()).await.expect("ended"));
    assert_eq!(held.release().await.expect("released"), Release::AlreadyLost);
    assert_eq!(seen.take(), ["c acquired None 0", "c gone 0"]);

    // Expired: the server is away. Before, it was away for a moment.
    let held = builder("d").acquire().await.expect("acquired");
    faulty.fails.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    faulty.fails.store(false, Ordering::SeqCst);
    tokio::time::sleep(SECOND).await;
    assert_eq!(seen.take(), ["d acquired None 0", "renew lock unavailable", "renew lock works"]);
    faulty.fails.store(true, Ordering::SeqCst);
    held.lost().await;
    tokio::time::sleep(SECOND).await;
    faulty.fails.store(false, Ordering::SeqCst);
    let ends = |seen: Vec<String>| seen.into_iter().filter(|it| !it.starts_with("renew")).collect::<Vec<_>>();
    assert_eq!(ends(seen.take()), ["d expired 3"]);
    drop(held);
    assert_eq!(ends(seen.take()), Vec::<String>::new(), "it has ended already");

    let term = locks.leader("scheduler").campaign().await.expect("elected");
    drop(term);
    assert_eq!(
        seen.take(),
        ["leader:scheduler acquired Some(\"scheduler\") 0", "leader:scheduler released 0"]
    );
}
