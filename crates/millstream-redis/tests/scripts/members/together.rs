//! Many members at once, large groups, and the watch on changes.

use std::time::{Duration, Instant};

use millstream_core::error::ErrorKind;
use millstream_core::members::{Assignment, Members, Revision};
use millstream_core::name::MemberId;
use millstream_core::topic::Partition;
use millstream_redis::{RedisBackend, RedisConfig};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::members::{assignment, member};
use crate::server::Bench;

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_who_join_at_once_are_in_and_one_plan_wins() {
    let bench = Bench::new().await;
    let (topic, group) = (bench.spec.name.clone(), bench.group.clone());
    let mut joins = JoinSet::new();
    for n in 0..60 {
        let (backend, topic, group) = (bench.backend.clone(), topic.clone(), group.clone());
        joins.spawn(async move {
            let one = member(&format!("m{n}"), "i");
            backend.heartbeat(&topic, &group, &one, true).await.expect("a pulse").version
        });
    }
    let mut versions = joins.join_all().await;
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), 60, "each change has a version of its own");
    let roster = bench.backend.roster(&topic, &group).await.expect("a roster");
    assert_eq!((roster.members.len(), Some(&roster.version)), (60, versions.last()));

    let mut plans = JoinSet::new();
    for n in 0..16 {
        let (backend, topic, group) = (bench.backend.clone(), topic.clone(), group.clone());
        plans.spawn(async move {
            let plan = assignment(&[(&format!("m{n}"), &[0])]);
            let won = backend.publish(&topic, &group, roster.version, &plan).await.expect("an answer");
            won.then_some(plan)
        });
    }
    let won: Vec<Assignment> = plans.join_all().await.into_iter().flatten().collect();
    let after = bench.backend.roster(&topic, &group).await.expect("a roster");
    assert_eq!((won.len(), &won[0]), (1, &after.assignment));
}

#[tokio::test]
async fn a_thousand_members_of_ten_thousand_partitions() {
    let bench = Bench::new().await;
    let (topic, group) = (&bench.spec.name, &bench.group);
    let id = |n: u32| MemberId::new(format!("member-{n:04}")).expect("name");
    let pulse = bench.beat(&member("member-0000", "i"), true).await;
    // Nobody's neighbours: the longest text that there can be.
    let all: Assignment =
        (0..1_000).map(|n| (id(n), (0..10).map(|i| Partition(n + 1_000 * i)).collect())).collect();
    assert!(bench.publish(pulse.version, &all).await);
    let roster = bench.backend.roster(topic, group).await.expect("a roster");
    assert_eq!((roster.assigned, roster.assignment), (Some(pulse.version), all.clone()));
    assert_eq!(bench.beat(&member("member-0000", "i"), false).await.assigned, Some(all[&id(0)].clone()));
    // More names than one unpack takes, and none of the old plan is left.
    let pulse = bench.beat(&member("member-0000", "i").at_most(1), false).await;
    let many: Assignment = (5_000..15_000).map(|n| (id(n), vec![Partition(n)])).collect();
    assert!(bench.publish(pulse.version, &many).await);
    let roster = bench.backend.roster(topic, group).await.expect("a roster");
    assert_eq!(roster.assignment, many);
}

/// As when a group is deleted: the stream is gone before the client reads it.
#[tokio::test]
async fn a_watch_ends_with_a_change_of_which_nothing_is_left() {
    let mut bench = Bench::private(&[]).await;
    let (topic, group) = (bench.spec.name.clone(), bench.group.clone());
    let mut watch = bench.backend.watch(&topic, &group).await.expect("a watch");
    let pulse = bench.beat(&member("a", "i"), true).await;
    let changes = bench.keys.changes(&topic, &group).to_string();
    let (woken, ()) = tokio::join!(timeout(LONG / 2, watch.changed(pulse.revision, LONG)), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut both = redis::pipe();
        both.atomic().cmd("XADD").arg(&changes).arg("*").arg("a").arg("b").ignore();
        both.cmd("UNLINK").arg(&changes).ignore();
        both.exec_async(&mut bench.raw).await.expect("done");
    });
    woken.expect("the watch returns").expect("a change");
}

#[tokio::test]
async fn a_watch_ends_with_a_change_or_its_time_and_outlives_errors() {
    let mut bench = Bench::private(&[]).await;
    let (topic, group) = (bench.spec.name.clone(), bench.group.clone());
    let mut watch = bench.backend.watch(&topic, &group).await.expect("a watch");
    let started = Instant::now();
    watch.changed(Revision::default(), Duration::from_millis(60)).await.expect("nothing happened");
    assert!((Duration::from_millis(59)..LONG / 2).contains(&started.elapsed()));
    watch.changed(Revision::default(), Duration::ZERO).await.expect("not for ever");

    let started = Instant::now();
    let (woken, pulse) = tokio::join!(watch.changed(Revision::default(), LONG), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        bench.beat(&member("a", "i"), true).await
    });
    woken.expect("somebody joined");
    watch.changed(Revision::default(), LONG).await.expect("it has happened already");
    let (woken, _) = tokio::join!(watch.changed(pulse.revision, LONG), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(bench.publish(pulse.version, &assignment(&[("a", &[0])])).await);
    });
    woken.expect("a plan is there");

    // Dropped while it waits: what is left of it does not stand in the way.
    let pulse = bench.beat(&member("a", "i"), false).await;
    assert!(timeout(Duration::from_millis(40), watch.changed(pulse.revision, LONG)).await.is_err());
    watch.changed(Revision::default(), LONG).await.expect("at once");

    let (cut, _) = tokio::join!(watch.changed(pulse.revision, LONG), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        bench.cmd("CLIENT KILL TYPE normal SKIPME yes").await
    });
    assert_eq!(cut.expect_err("cut").kind(), ErrorKind::Unavailable, "a wait has no effect");
    watch.changed(Revision::default(), LONG).await.expect("on a new connection");

    let changes = bench.keys.changes(&topic, &group);
    bench.cmd(&format!("SET {changes} x")).await;
    let error = watch.changed(pulse.revision, LONG).await.expect_err("a foreign type");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert!(error.to_string().contains(changes.as_str()), "{error}");
    bench.cmd(&format!("DEL {changes}")).await;
    bench.beat(&member("a", "i").at_most(1), false).await;
    watch.changed(pulse.revision, LONG).await.expect("a new change");
    assert!(started.elapsed() < LONG, "every change woke it");
}

/// Handlers that never yield take every thread of the runtime that made the backend. Leases are renewed all the same.
#[test]
fn renewals_do_not_need_the_runtime_that_made_the_backend() {
    use millstream_core::leases::Leases;

    let server = crate::server::Server::start(&[]);
    let url = server.url();
    let handlers = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let handlers = handlers.expect("a runtime");
    let bench = handlers.block_on(async {
        let bench = Bench::at(RedisConfig::new(url), Some(server)).await;
        bench.backend.renew(std::slice::from_ref(&bench.lease)).await.remove(0).expect("renewed");
        bench
    });
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Arc::new(std::sync::Mutex::new(held));
    let (ready, blocked) = std::sync::mpsc::channel::<()>();
    for _ in 0..2 {
        let (ready, held) = (ready.clone(), held.clone());
        handlers.spawn(async move {
            ready.send(()).expect("somebody counts");
            // Both wait here without yielding, one for the message and one for the lock.
            let _ = held.lock().expect("not poisoned").recv();
        });
    }
    for _ in 0..2 {
        blocked.recv().expect("a blocked thread");
    }

    let (backend, lease, topic, group) =
        (bench.backend.clone(), bench.lease.clone(), bench.spec.name.clone(), bench.group.clone());
    let renewer = std::thread::spawn(move || {
        let own = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        own.block_on(async {
            for round in 0..200 {
                let renewed = backend.renew(std::slice::from_ref(&lease)).await.remove(0);
                renewed.unwrap_or_else(|error| panic!("round {round}: {error}"));
                let pulse = backend.heartbeat(&topic, &group, &member("a", "i"), round == 0).await;
                assert_eq!(pulse.expect("a pulse").members, 1);
                if round % 50 == 25 {
                    // The connection is cut, and the new one does not need the blocked threads either.
                    let mut raw = crate::server::raw_connection(&bench.url).await;
                    let killed =
                        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).exec_async(&mut raw).await;
                    killed.expect("killed");
                    let _ = backend.renew(std::slice::from_ref(&lease)).await;
                }
            }
        });
        bench
    });
    let bench = renewer.join().expect("every renewal was answered");
    drop(release);
    drop((bench, handlers));
}

#[tokio::test]
async fn the_connection_for_leases_ends_with_the_backend() {
    let mut bench = Bench::private(&[]).await;
    let another = RedisBackend::connect(RedisConfig::new(bench.url.clone())).await.expect("a backend");
    let nobody = millstream_core::leases::Resource::partition(bench.tp.clone(), bench.group.clone());
    use millstream_core::leases::Leases;
    another.holder(&nobody).await.expect("an answer");
    let leases = async |bench: &mut Bench| {
        let list = format!("{:?}", bench.cmd("CLIENT LIST").await);
        list.matches("name=millstream:leases").count()
    };
    assert_eq!(leases(&mut bench).await, 2);
    drop(another);
    let deadline = Instant::now() + LONG;
    while leases(&mut bench).await > 1 {
        assert!(Instant::now() < deadline, "the thread and its connection are left over");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
