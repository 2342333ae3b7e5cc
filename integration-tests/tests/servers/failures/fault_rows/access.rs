//! Servers that load, evict, or change what a user may do: 62, 66, 67.

use std::collections::BTreeSet;
use std::time::Instant;

use integration_tests::history::figure;
use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use millstream::ErrorKind;

use super::{MS, Pair, Work};

/// 66: after a restart a server with much data answers `LOADING` for seconds. Nobody's attempts are used up by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_is_waited_for() {
    let mut server = Server::builder()
        .appendonly(true)
        // Each command of the file takes a while, and the server answers in between.
        .arg("--key-load-delay", "300")
        .arg("--loading-process-events-interval-bytes", "1024")
        .start();
    let mut pair = Pair::begin(&server.url(), Work { takes: MS(50), ..Work::default() }).await;
    let mut other =
        redis::Client::open(server.url()).and_then(|it| it.get_connection()).expect("a connection");
    let mut many = redis::pipe();
    for number in 0..8_000 {
        many.cmd("SET").arg(format!("other-{number}")).arg(number).ignore();
    }
    many.query::<()>(&mut other).expect("set");
    pair.send(300).await;
    let url = server.url();
    server.kill();
    let began = Instant::now();
    let restarted = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    });
    // A loop reports the first error of a failure, here a broken connection: so this queries the server directly.
    let ask = || {
        // While it loads it answers between a thousand commands, which takes a while each.
        let timeout = MS(5_000);
        let mut asked = redis::Client::open(url.clone())?.get_connection_with_timeout(timeout)?;
        asked.set_read_timeout(Some(timeout))?;
        redis::cmd("GET").arg("other-1").query::<Option<u64>>(&mut asked)
    };
    let loads = async || ask().is_err_and(|error| error.to_string().to_lowercase().contains("loading"));
    eventually(loads, "the server loads").await;
    let server = restarted.await.expect("no panic");
    let loaded = began.elapsed();
    assert!(pair.told("Failing") > 0, "that is told");
    pair.all_handled().await;
    let text = format!("LOADING for {loaded:.1?}: {} handled again", pair.doubled());
    figure("fault", &text);
    pair.lives_on().await;
    drop(server);
}

/// 62: memory is full and the server evicts keys. The effects are reported, and later messages are handled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_is_survived() {
    let server = Server::start();
    let mut pair = Pair::begin(&server.url(), Work { time_limit: MS(1_500), ..Work::default() }).await;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "3mb"]);
    let mut lost = 0;
    let deadline = Instant::now() + HANG;
    while pair.told("GroupRestored") + pair.told("LeaseLost") + pair.told("Deleted") == 0 {
        assert!(Instant::now() < deadline, "an eviction is told: {:#?}", pair.last_told());
        for number in 0..50 {
            let _ = server.try_cli(&["SET", &format!("other-{lost}-{number}"), &"x".repeat(20_000)]);
        }
        lost += 1;
        pair.send(10).await;
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let before: BTreeSet<u64> = pair.confirmed.keys().copied().collect();
    figure(
        "fault",
        &format!(
            "evictions: {}",
            server
                .cli(&["INFO", "stats"])
                .lines()
                .find(|it| it.starts_with("evicted_keys"))
                .unwrap_or("none")
        ),
    );
    pair.lives_on_but(&before).await;
}

/// 67: a password is changed under open connections, and they are closed. Senders receive errors; when the old password
/// is valid again, everything continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_was_changed_is_told_and_tried_again() {
    let server = Server::start();
    let url = format!("redis://app:old@127.0.0.1:{}", server.port());
    server.cli(&["ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all"]);
    let mut pair = Pair::begin(&url, Work { time_limit: MS(1_500), ..Work::default() }).await;
    server.cli(&["ACL", "SETUSER", "app", "resetpass", ">new"]);
    server.cli(&["CLIENT", "KILL", "USER", "app"]);
    pair.tells("WRONGPASS").await;
    assert_eq!(pair.send(4).await, 0);
    for (number, error) in &pair.refused {
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable), "{number}: {error:?}");
    }
    tokio::time::sleep(MS(2_500)).await;
    server.cli(&["ACL", "SETUSER", "app", ">old"]);
    pair.lives_on().await;
}

/// 67: a right is taken away that scripts need half-way. What could not be done as a whole is done later, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_taken_away_loses_and_doubles_nothing() {
    let server = Server::start();
    let url = format!("redis://app:old@127.0.0.1:{}", server.port());
    server.cli(&["ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all"]);
    let work = Work { time_limit: MS(1_500), failing: true, ttl: MS(4_000), ..Work::default() };
    let mut pair = Pair::begin(&url, work).await;
    for right in ["zadd", "xack", "hset"] {
        server.cli(&["ACL", "SETUSER", "app", &format!("-{right}")]);
        pair.send(40).await;
        let before = pair.told("NOPERM") + pair.told("no permissions") + pair.told("Failing");
        let deadline = Instant::now() + HANG;
        while pair.told("NOPERM") + pair.told("no permissions") + pair.told("Failing") == before
            && Instant::now() < deadline
        {
            tokio::time::sleep(MS(20)).await;
        }
        tokio::time::sleep(MS(300)).await;
        server.cli(&["ACL", "SETUSER", "app", &format!("+{right}")]);
        pair.all_handled().await;
    }
    figure(
        "fault",
        &format!("rights: told {} times, {} handled again", pair.told("Failing"), pair.doubled()),
    );
    assert_eq!(pair.doubled(), 0, "{:#?}", pair.last_told());
    pair.lives_on().await;
}
