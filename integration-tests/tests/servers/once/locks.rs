//! Locks between processes that are killed and stopped, on real servers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use integration_tests::history::figure;
use integration_tests::locker::{CHECKED, Setup, Store, Work};
use integration_tests::process::Process;
use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use millstream::Millstream;
use millstream::lock::{LockName, RedLock, RedLockError, Release};
use millstream_core::Continuity;
use millstream_core::locks::{LockReply, LockRequest};
use millstream_engine::ControlThread;

const SECOND: Duration = Duration::from_secs(1);

fn start(setup: &Setup) -> Process {
    Process::start(env!("CARGO_BIN_EXE_locker"), setup)
}

/// Number of kills of a leader, if `MILLSTREAM_TEST_KILLS` asks for a number.
fn kills() -> Option<usize> {
    std::env::var("MILLSTREAM_TEST_KILLS").ok().and_then(|kills| kills.parse().ok())
}

/// Checks that accepted fences never go back, and that each fence, accepted or not, has one owner.
async fn check(store: &mut Store) -> (usize, usize) {
    let writes = store.writes().await;
    let (mut last, mut owners) = (0, HashMap::new());
    for write in &writes {
        assert!(!write.accepted || write.fence >= last, "{write:?} after fence {last}");
        last = last.max(write.fence);
        assert_eq!(*owners.entry(write.fence).or_insert(write.pid), write.pid, "two holders with one fence");
    }
    (owners.len(), writes.iter().filter(|write| !write.accepted).count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_store_never_accepts_two_holders() {
    let server = Server::start();
    let setup = Setup { urls: vec![server.url()], ttl_ms: 500, work: Work::Lock };
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let (name, locks) = (LockName::new("invoice:42").expect("name"), mq.backend().locks().expect("locks"));
    let mut store = Store::connect(&server.url()).await;
    let mut processes: Vec<Process> = (0..8).map(|_| start(&setup)).collect();
    let (mut stops, mut rounds) = (0, 0);
    while rounds < 16 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(50..150))).await;
        let Some(holder) = locks.holder(&name).await.expect("asked") else { continue };
        let Some(at) = processes.iter().position(|it| it.pid().to_string() == holder.owner) else { continue };
        rounds += 1;
        if fastrand::bool() {
            processes[at].kill();
            processes[at] = start(&setup);
            continue;
        }
        processes[at].stop();
        // If it held the lock when it stopped, others write under a higher fence, and then it goes on.
        let above = async || {
            let mut store = store.clone();
            store.writes().await.last().is_some_and(|last| last.fence > holder.epoch)
        };
        eventually(above, "another holder writes").await;
        processes[at].resume();
        stops += 1;
    }
    drop(processes);
    let (fences, refused) = check(&mut store).await;
    figure("lock", &format!("{fences} grants, {stops} stops, {refused} writes refused"));
    // A holder that is killed at once has written nothing; one that was stopped is followed by another one.
    assert!(fences > stops, "{fences}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_leader_acts_in_each_epoch_and_a_dead_one_is_replaced_soon() {
    let server = Server::start();
    let ttl = Duration::from_millis(500);
    let setup = Setup { urls: vec![server.url()], ttl_ms: 500, work: Work::Lead };
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let mut watch = mq.leader("scheduler").observe().await.expect("observed");
    let mut store = Store::connect(&server.url()).await;
    let mut processes: Vec<Process> = (0..3).map(|_| start(&setup)).collect();
    let mut took = Vec::new();
    let leads = async || watch.clone().current().is_some();
    eventually(leads, "somebody leads").await;
    for _ in 0..kills().unwrap_or(10) {
        // Every candidate has had answers for a ttl.
        tokio::time::sleep(ttl * 2).await;
        let leader = watch.current().expect("a leader");
        let at =
            processes.iter().position(|it| it.pid().to_string() == leader.candidate).expect("one of them");
        processes[at].kill();
        let killed = Instant::now();
        loop {
            match tokio::time::timeout(HANG, watch.changed()).await.expect("a new leader") {
                Some(next) if next.epoch > leader.epoch => break,
                _ => {}
            }
        }
        took.push(killed.elapsed());
        processes[at] = start(&setup);
    }
    drop(processes);
    let (epochs, _) = check(&mut store).await;
    took.sort();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    let text =
        format!("{} kills, {epochs} epochs with writes, median {median:?}, longest {longest:?}", took.len());
    figure("takeover", &text);
    // On a machine that does nothing else. Otherwise a hang alone is a failure.
    assert!(kills().is_none() || longest <= ttl + SECOND, "a takeover took {longest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_cancelled_attempts_leave_no_key_and_no_connection() {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let held = mq.lock("a").acquire().await.expect("acquired");
    let attempt = |name: &str| mq.lock(name).wait(Duration::from_millis(50)).acquire();
    assert!(attempt("a").await.is_err(), "it opens the connections that waiting needs");
    let connections = || server.cli(&["CLIENT", "LIST"]).lines().count();
    // Where the requests are made, what was dropped is released, and calls are waited for.
    let control = ControlThread::of(mq.backend());
    let tasks = async || {
        let count = async { Ok(tokio::runtime::Handle::current().metrics().num_alive_tasks()) };
        control.call(count).await.expect("counted")
    };
    let before = (connections(), tasks().await);
    for n in 0..10_000_u64 {
        let limit = Duration::from_micros(n % 50 * 20);
        let _ = tokio::time::timeout(limit, attempt(if n % 2 == 0 { "a" } else { "b" })).await;
    }
    held.release().await.expect("released");
    // A notice of a change ends by itself.
    let keys = || server.cli(&["KEYS", "*lock*"]);
    let clean = async || keys().lines().all(|key| key.contains("lock:epoch:"));
    eventually(clean, "the keys of locks are gone").await;
    for name in ["a", "b"] {
        drop(mq.lock(name).try_acquire().await.expect("asked").expect("free"));
    }
    // On a busy machine one may be replaced since it did not answer in time: the old one is still being closed now, or the
    // new one was not open yet when they were counted. What is left over by attempts is as many as they are.
    let closed = async || connections() <= before.0 + 2;
    eventually(closed, "no connection is left over").await;
    let ended = async || tasks().await <= before.1;
    eventually(ended, "the tasks have ended").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_kept_for_ten_ttl_while_all_threads_are_busy() {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let held = mq.lock("a").ttl(SECOND).acquire().await.expect("acquired");
    let until = Instant::now() + 10 * SECOND;
    let busy = move || {
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    };
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let threads: Vec<_> = (0..cores * 2).map(|_| std::thread::spawn(busy)).collect();
    // And every thread of the runtime.
    let tasks = [tokio::spawn(async move { busy() }), tokio::spawn(async move { busy() })];
    busy();
    for task in tasks {
        task.await.expect("no panic");
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert!(!held.is_lost() && held.remaining() > Duration::ZERO, "{held:?}");
}

/// Requests a lock from one server, without the rule on its age.
async fn ask(mq: &Millstream, nonce: &str) -> bool {
    let name = LockName::new("red").expect("name");
    let mut request = LockRequest::new(name, "test", nonce, 20 * SECOND);
    (request.queued, request.continuity) = (false, Continuity::assured());
    matches!(mq.backend().locks().expect("locks").acquire(&request).await, Ok(LockReply::Granted(_)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redlock_needs_a_majority_and_does_not_count_a_server_that_has_forgotten() {
    let mut servers: Vec<Server> = (0..5).map(|_| Server::start()).collect();
    let mut queues = Vec::new();
    for server in &servers {
        queues.push(Millstream::connect(&server.url()).await.expect("connected"));
    }
    let backends = queues.iter().map(|mq| mq.backend().clone());
    let red = RedLock::new(backends).expect("five").longest_ttl(2 * SECOND);
    tokio::time::sleep(3 * SECOND).await;

    // One client holds three of five, and the other two never had its request. One of the three restarts without its data.
    for mq in &queues[..3] {
        assert!(ask(mq, "first").await);
    }
    servers[2].restart();
    eventually(async || ask(&queues[2], "second").await, "the server has forgotten the lock").await;
    assert!(ask(&queues[3], "second").await && ask(&queues[4], "second").await);
    // That is a majority too: two holders, without the rule. With it, nobody is granted a majority by such a server.
    for mq in &queues[2..] {
        let name = LockName::new("red").expect("name");
        mq.backend().locks().expect("locks").release(&name, "second").await.expect("released");
    }
    let Err(RedLockError::NoQuorum(missed)) = red.acquire("red", 2 * SECOND, Duration::ZERO).await else {
        panic!("granted although a holder has a majority");
    };
    assert_eq!((missed.granted, missed.held, missed.young), (2, 2, 1), "{missed}");

    tokio::time::sleep(3 * SECOND).await;
    servers[0].kill();
    servers[1].kill();
    let held = red.acquire("other", SECOND, 5 * SECOND).await.expect("three of five");
    held.release().await;
    servers[3].kill();
    let Err(RedLockError::NoQuorum(missed)) = red.acquire("other", SECOND, SECOND).await else {
        panic!("granted by two of five");
    };
    assert_eq!((missed.granted, missed.failed), (2, 3), "{missed}");
}

/// Starts a process that checks its lock and writes later, stops it in between, and returns it with the fence that it has.
async fn stopped_after_its_check(servers: &[Server], work: Work) -> (Process, u64) {
    let urls = servers.iter().map(Server::url).collect();
    let process = start(&Setup { urls, ttl_ms: 500, work });
    let checked = async || !servers[0].cli(&["GET", CHECKED]).is_empty();
    eventually(checked, "it has checked its lock").await;
    process.stop();
    (process, servers[0].cli(&["GETDEL", CHECKED]).parse().expect("a fence"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_makes_two_holders_and_the_fence_stops_the_first() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let mut queues = Vec::new();
    for server in &servers {
        queues.push(Millstream::connect(&server.url()).await.expect("connected"));
    }
    let ttl = Duration::from_millis(500);
    let me = std::process::id();
    let store = Store::connect(&servers[0].url()).await;
    let last = async || store.clone().writes().await.last().copied();

    let backends = queues.iter().map(|mq| mq.backend().clone());
    let red = RedLock::new(backends).expect("three").longest_ttl(SECOND);
    tokio::time::sleep(2 * SECOND).await;
    let (first, fence) = stopped_after_its_check(&servers, Work::CheckThenWriteRed).await;
    let second = red.acquire("invoice:42", ttl, 60 * SECOND).await.expect("granted after the ttl");
    assert!(store.clone().write(0, me).await);
    drop(second);
    first.resume();
    eventually(async || last().await.is_some_and(|last| last.pid == first.pid()), "the first one writes")
        .await;
    // Both have written, and nothing that they have could tell a store which of them is late.
    assert!(fence == 0 && last().await.is_some_and(|last| last.accepted), "{:?}", last().await);
    drop(first);

    let (first, late) = stopped_after_its_check(&servers, Work::CheckThenWrite).await;
    let second = queues[0].lock("invoice:42").ttl(ttl).acquire().await.expect("acquired");
    assert!(second.fence() > late && store.clone().write(second.fence(), me).await);
    first.resume();
    eventually(async || last().await.is_some_and(|last| last.pid == first.pid()), "the first one writes")
        .await;
    let write = last().await.expect("a write");
    assert!(write.fence == late && !write.accepted, "the store refuses the one that was paused: {write:?}");
    assert_eq!(second.release().await.expect("released"), Release::Released);
}
