//! Locks on servers that fail, forget, fail over, or have a wrong clock, and many clients that wait for one lock.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use integration_tests::delays::clock::Clock;
use integration_tests::history::figure;
use integration_tests::proxy::{Proxy, Way};
use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use millstream::lock::{AcquireError, LockName, Release};
use millstream::{ErrorKind, Millstream};
use millstream_core::Continuity;
use millstream_core::keys::Keys;
use millstream_core::locks::{LockReply, LockRequest};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: i64 = 3_600;

fn name() -> LockName {
    "invoice:42".parse().expect("name")
}

async fn connect(url: &str) -> Millstream {
    Millstream::connect(url).await.expect("connected")
}

/// Takes the lock as a process does that dies right afterwards: nobody renews it.
async fn granted_to_the_dead(mq: &Millstream, ttl: Duration) -> u64 {
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let mut request = LockRequest::new(name(), "dead", nonce, ttl);
    (request.queued, request.continuity) = (false, Continuity::assured());
    match mq.backend().locks().expect("locks").acquire(&request).await {
        Ok(LockReply::Granted(grant)) => grant.epoch,
        other => panic!("not granted: {other:?}"),
    }
}

fn server_by(clock: &Clock) -> Server {
    let [(preload, library), (file, path)] = clock.env();
    Server::builder().env(preload, library).env(file, path).start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_of_the_servers_clock_costs_no_holder_its_lock_and_blocks_nobody() {
    let clock = Clock::new();
    let server = server_by(&clock);
    let (mq, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let lock = |mq: &Millstream| mq.lock("invoice:42").ttl(2 * SECOND);
    let mut last = 0;
    for shift in [HOUR, 0, -HOUR] {
        let held = lock(&mq).acquire().await.expect("acquired");
        assert!(held.fence() > last, "fence {} after {last}", held.fence());
        last = held.fence();
        let waiting = tokio::spawn(lock(&other).acquire());
        eventually(async || mq.admin().lock(&name()).await.expect("a state").waiting == 1, "another waits")
            .await;
        clock.shift(shift);
        // Longer than the ttl: the holder renews by its own clock, the other one judges by the server's.
        tokio::time::sleep(3 * SECOND).await;
        assert!(!held.is_lost() && !waiting.is_finished(), "at a shift of {shift} s");
        let listed = mq.admin().locks(None, 1_000).await.expect("a list").locks;
        assert_eq!(listed.len(), 1, "it is listed at a shift of {shift} s: {listed:?}");
        assert_eq!(held.release().await.expect("released"), Release::Released);
        let next = waiting.await.expect("no panic").expect("acquired");
        assert!(next.fence() > last);
        last = next.fence();
        next.release().await.expect("released");
    }
    // A holder that dies before the clock goes back by an hour is not waited for that long.
    clock.shift(HOUR);
    last = granted_to_the_dead(&mq, SECOND).await;
    clock.shift(0);
    let begun = Instant::now();
    let next = tokio::time::timeout(HANG, lock(&other).acquire()).await.expect("in time").expect("acquired");
    figure(
        "lock",
        &format!("a dead holder is replaced {:?} after the clock went back by an hour", begun.elapsed()),
    );
    assert!(next.fence() > last, "fence {} after {last}", next.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_never_repeats_after_a_fail_over_that_lost_the_last_grant() {
    // The clock of the replica is an hour behind: without the number of the store, nothing else tells how far fences had come.
    let clock = Clock::new();
    let [(preload, library), (file, path)] = clock.env();
    clock.shift(-HOUR);
    let mut primary = Server::builder().arg("--repl-diskless-sync-delay", "0").start();
    let replica = Server::builder()
        .env(preload, library)
        .env(file, path)
        .arg("--repl-diskless-sync-delay", "0")
        .start();
    let (link, front) = (Proxy::to(primary.port()), Proxy::to(primary.port()));
    replica.cli(&["REPLICAOF", "127.0.0.1", &link.port().to_string()]);
    let up = async || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
    eventually(up, "the replica follows").await;
    let mq = connect(&front.url()).await;
    let lock = || mq.lock("invoice:42").ttl(2 * SECOND).wait(60 * SECOND);
    let first = lock().acquire().await.expect("acquired").release();
    first.await.expect("released");
    let epoch = Keys::new().lock_epoch(&name()).to_string();
    let level = async || replica.cli(&["GET", &epoch]) == primary.cli(&["GET", &epoch]);
    eventually(level, "the replica has the first fence").await;
    link.freeze(Way::Down);
    link.freeze(Way::Up);
    let mut held = Vec::new();
    // The highest fence that the guarded store has seen.
    let mut seen = 0;
    for n in 0..5 {
        let lost = mq.lock(format!("invoice:{n}")).ttl(2 * SECOND).acquire().await.expect("acquired");
        held.push(lost);
        let lost = lock().acquire().await.expect("acquired");
        seen = lost.fence();
        lost.release().await.expect("released");
    }
    let kept = lock().acquire().await.expect("acquired");
    seen = seen.max(kept.fence());

    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    front.lead_to(replica.port());
    front.reset();
    primary.kill();
    // The new primary does not know the grant. Its holder learns of it with its next renewal.
    tokio::time::timeout(HANG, kept.lost()).await.expect("the loss is reported");
    assert_eq!(kept.release().await.expect("released"), Release::AlreadyLost);
    let without = lock().acquire().await.expect("acquired");
    assert!(
        without.fence() < seen,
        "shown: {} after {seen}, without the number of the store",
        without.fence()
    );
    without.release().await.expect("released");
    let with = lock().fence_above(seen).acquire().await.expect("acquired");
    assert!(with.fence() > seen, "fence {} after {seen}", with.fence());
    with.release().await.expect("released");
    // From then on the server knows it.
    let next = lock().acquire().await.expect("acquired");
    assert!(next.fence() > seen, "fence {} after {seen}", next.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_in_which_nobody_dies_make_no_two_holders() {
    let server = Server::start();
    let ttl = 2 * SECOND;
    let (owner, watcher) = (connect(&server.url()).await, connect(&server.url()).await);
    let kept = owner.lock("kept").ttl(ttl).acquire().await.expect("acquired");
    // Times in which a client relies on the lock, and its fence.
    let relied = Arc::new(Mutex::new(Vec::<(Instant, Instant, u64)>::new()));
    let mut clients = Vec::new();
    for _ in 0..3 {
        let (mq, relied) = (connect(&server.url()).await, relied.clone());
        clients.push(tokio::spawn(async move {
            loop {
                let Ok(held) = mq.lock("invoice:42").ttl(ttl).acquire().await else { continue };
                let (begun, fence) = (Instant::now(), held.fence());
                let _ = tokio::time::timeout(ttl / 10, held.lost()).await;
                // The last moment in which it was certain.
                let end = if held.is_lost() { None } else { Some(Instant::now()) };
                if let Some(end) = end {
                    relied.lock().expect("a lock").push((begun, end, fence));
                }
                let _ = held.release().await;
            }
        }));
    }
    for tenths in [4, 10, 20] {
        tokio::time::sleep(ttl).await;
        server.pause();
        tokio::time::sleep(ttl * tenths / 10).await;
        server.resume();
        if tenths == 4 {
            let renewed = async || kept.remaining() > ttl / 2;
            eventually(renewed, "a holder goes on after an outage of four tenths of its ttl").await;
            assert!(!kept.is_lost());
        }
        let before = relied.lock().expect("a lock").len();
        let goes_on = async || relied.lock().expect("a lock").len() >= before + 3;
        eventually(goes_on, "the lock is granted again").await;
    }
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    // After two ttls its local deadline has passed: it is lost for good, and nobody else had it.
    assert!(kept.is_lost());
    assert_eq!(kept.release().await.expect("released"), Release::AlreadyLost);
    assert!(watcher.lock("kept").ttl(ttl).wait(60 * SECOND).acquire().await.is_ok(), "it is free");
    let mut relied = relied.lock().expect("a lock").clone();
    relied.sort_by_key(|(begun, ..)| *begun);
    for pair in relied.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two clients rely on the lock at once: {pair:?}");
        assert!(pair[0].2 < pair[1].2, "fences go back: {pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_reported_at_the_first_refused_renewal_or_at_the_deadline() {
    let server = Server::start();
    let mq = connect(&server.url()).await;
    // An operator ends it, the data of the server are gone, or somebody else's data are there: each renewal is refused or
    // fails. With a ttl of a minute, the deadline would be 48 s away.
    let lock = |name: &str| mq.lock(name).ttl(3 * SECOND).acquire();
    let held = lock("a").await.expect("acquired");
    assert!(mq.admin().release_lock(held.name(), held.fence()).await.expect("ended"));
    held.lost().await;
    assert!(mq.lock("a").try_acquire().await.expect("asked").is_some(), "free all the time");
    assert_eq!(held.release().await.expect("released"), Release::AlreadyLost);

    let held = lock("b").await.expect("acquired");
    server.cli(&["FLUSHALL"]);
    held.lost().await;
    assert_eq!(held.release().await.expect("released"), Release::AlreadyLost);

    let (held, keys) = (lock("c").await.expect("acquired"), Keys::new());
    let key = keys.lock(held.name()).to_string();
    server.cli(&["SET", &key, "not a lock"]);
    let Err(AcquireError::Failed(error)) = mq.lock("c").acquire().await else { panic!("granted") };
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    held.lost().await;
    assert!(held.release().await.is_err(), "it cannot be said");
    server.cli(&["DEL", &key]);
    // Neither does a foreign index keep a lock from its clients half-way.
    let index = keys.lock_index(&"d".parse().expect("name")).to_string();
    let held = lock("d").await.expect("acquired");
    server.cli(&["SET", &index, "not an index"]);
    assert!(mq.lock("d").try_acquire().await.is_err());
    server.cli(&["DEL", &index]);
    tokio::time::sleep(2 * SECOND).await;
    assert!(!held.is_lost(), "renewals work again");
    assert_eq!(mq.admin().locks(None, 10).await.expect("a list").locks.len(), 1, "and list it again");

    // The server is silent: no request ends, and the deadline counts.
    let last = held.remaining();
    let begun = Instant::now();
    server.pause();
    held.lost().await;
    figure(
        "lock",
        &format!("lost {:?} after the server fell silent, {last:?} remained then", begun.elapsed()),
    );
    server.resume();
    assert!(held.is_lost(), "for good");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_that_wait_are_served_in_order_and_do_not_ask_all_at_once() {
    const INSTANCES: usize = 5;
    const CLIENTS: usize = 1_000;
    let server = Server::start();
    let mut queues = Vec::new();
    for _ in 0..INSTANCES {
        queues.push(connect(&server.url()).await);
    }
    let held = queues[0].lock("invoice:42").acquire().await.expect("acquired");
    let order = Arc::new(Mutex::new(Vec::new()));
    let locks = queues[0].backend().locks().expect("locks").clone();
    let mut waiting = Vec::new();
    for n in 0..CLIENTS {
        let (mq, order) = (queues[n % INSTANCES].clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let held = mq.lock("invoice:42").acquire().await.expect("acquired");
            order.lock().expect("a lock").push(n);
            held.release().await.expect("released");
        }));
        // Each has its place before the next one comes.
        while locks.state(&name()).await.expect("a state").waiting <= n as u64 {
            tokio::task::yield_now().await;
        }
    }
    let calls = |command: &str| -> u64 {
        let stats = server.cli(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    let before = ["evalsha", "xread"].map(calls);
    let begun = Instant::now();
    held.release().await.expect("released");
    for waiting in waiting {
        waiting.await.expect("no panic");
    }
    let took = begun.elapsed();
    let [scripts, looks] = [0, 1].map(|at| calls(["evalsha", "xread"][at]) - before[at]);
    let text = format!("{CLIENTS} clients in {took:?}: {scripts} calls of scripts, {looks} looks at changes");
    figure("lock", &text);
    assert_eq!(*order.lock().expect("a lock"), (0..CLIENTS).collect::<Vec<_>>());
    // A request and a release each, and a request every 900 ms to keep the place. A look of each instance when it is
    // notified, and one that waits for the next change.
    let clients = CLIENTS as u64;
    let refreshes = (took.as_millis() as u64 / 900 + 1) * clients;
    assert!(scripts <= 3 * clients + refreshes, "{text}");
    assert!(looks <= 3 * clients * INSTANCES as u64, "{text}");
}
