//! Credentials that end, and passwords that change, while messages are sent and handled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::{Credentials, CredentialsProvider, ErrorKind, Millstream, PasswordFile};

use crate::load::{Load, changes};

/// Time between two users, as a cloud provider's server has between two tokens: three seconds, or
/// `MILLSTREAM_ROTATION_SECONDS`.
fn period() -> Duration {
    let seconds = std::env::var("MILLSTREAM_ROTATION_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

/// A user for each period, valid for two thirds of it. As with tokens, the one before is still valid for a while.
#[derive(Clone)]
struct Rotating(Arc<AtomicU64>);

/// The numbers of connections that are not in a pool.
fn connections(server: &Server) -> BTreeSet<String> {
    let list = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]);
    let id = |line: &str| line.split(' ').next().map(str::to_owned);
    let ours = list.lines().filter(|line| line.contains("name=millstream:") && !line.contains(":pool"));
    ours.filter_map(id).collect()
}

/// Connections of a user that are used all the time. One that nobody uses logs in again with its next request.
fn of_user(server: &Server, number: u64) -> Vec<String> {
    let (list, user) = (server.cli(&["CLIENT", "LIST"]), format!("user=user-{number} "));
    let used = |line: &&str| !line.contains(":pool") && line.contains(&user);
    list.lines().filter(used).map(str::to_owned).collect()
}

#[async_trait]
impl CredentialsProvider for Rotating {
    async fn credentials(&self) -> millstream::Result<Credentials> {
        let now = self.0.load(Ordering::Acquire);
        Ok(Credentials::new(format!("user-{now}"), format!("hunter{now}")).valid_for(period() * 2 / 3))
    }
}

fn allow(server: &Server, number: u64) {
    let (user, password) = (format!("user-{number}"), format!(">hunter{number}"));
    server.cli(&["ACL", "SETUSER", &user, "on", &password, "~*", "&*", "+@all"]);
}

/// A user who is deleted takes all of its connections along. So connections that stay show that each has logged in again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_end_are_renewed_on_open_connections() {
    let server = Server::start();
    allow(&server, 0);
    let now = Rotating(Arc::default());
    let mq = Millstream::at(server.url()).credentials(now.clone()).await.expect("connected");
    let load = Load::on(mq).await;
    let before = connections(&server);
    for number in 1..=changes(3) as u64 {
        allow(&server, number);
        now.0.store(number, Ordering::Release);
        // The time that the last ones are valid, and half of that again for requests that block.
        tokio::time::sleep(period()).await;
        let left = of_user(&server, number - 1);
        assert_eq!(left, Vec::<String>::new(), "still logged in as the last user");
        server.cli(&["ACL", "DELUSER", &format!("user-{}", number - 1)]);
        load.goes_on("messages of all keys").await;
    }
    assert_eq!(connections(&server), before, "connections were closed and opened again");
    assert_eq!(load.unconfirmed(), 0);
    load.end(&[], |log| server.cli(&["XRANGE", log, "-", "+"])).await;
}

/// The source of the credentials is ahead of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_are_not_accepted_yet_are_tried_again_on_open_connections() {
    let server = Server::start();
    allow(&server, 0);
    let now = Rotating(Arc::default());
    let mq = Millstream::at(server.url()).credentials(now.clone()).await.expect("connected");
    let load = Load::on(mq).await;
    load.goes_on("messages of all keys").await;
    let before = connections(&server);
    now.0.store(1, Ordering::Release);
    let refused = || server.cli(&["ACL", "LOG"]).contains("user-1");
    eventually(async || refused(), "the server refuses them").await;
    load.goes_on("messages of all keys, by connections that stay as they were").await;
    allow(&server, 1);
    eventually(async || of_user(&server, 0).is_empty(), "all connections have logged in").await;
    server.cli(&["ACL", "DELUSER", "user-0"]);
    load.goes_on("messages of all keys").await;
    // Some may be others on a busy machine, where leases move.
    assert!(!connections(&server).is_disjoint(&before), "connections were closed and opened again");
    assert_eq!(load.unconfirmed(), 0);
    load.end(&[], |log| server.cli(&["XRANGE", log, "-", "+"])).await;
}

/// A source that gives an answer once, and then none.
struct Hanging(AtomicU64);

#[async_trait]
impl CredentialsProvider for Hanging {
    async fn credentials(&self) -> millstream::Result<Credentials> {
        if self.0.fetch_add(1, Ordering::AcqRel) > 0 {
            std::future::pending::<()>().await;
        }
        Ok(Credentials::new("user-0", "hunter0").valid_for(Duration::from_secs(20)))
    }
}

/// Shared, to see how often it was asked.
#[async_trait]
impl CredentialsProvider for Asked {
    async fn credentials(&self) -> millstream::Result<Credentials> {
        self.0.credentials().await
    }
}

#[derive(Clone)]
struct Asked(Arc<Hanging>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_hangs_costs_nothing_while_its_last_answer_is_valid() {
    let server = Server::start();
    allow(&server, 0);
    let source = Asked(Arc::new(Hanging(AtomicU64::new(0))));
    let mq = Millstream::at(server.url()).credentials(source.clone()).await.expect("connected");
    let load = Load::on(mq).await;
    load.goes_on("messages of all keys").await;
    eventually(async || source.0.0.load(Ordering::Acquire) > 1, "it is asked for others, and hangs").await;
    // Connections are opened anew, with what is known.
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    load.goes_on("messages of all keys").await;
    load.end(&[], |log| server.cli(&["XRANGE", log, "-", "+"])).await;
}

/// A password that is changed at the server first, and in the file a moment later, while connections are killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_in_a_file_may_change_any_time() {
    let server = Server::start();
    let path = server.dir().join("password");
    let change = |number: usize| {
        let rules = format!(">hunter{number}");
        server.cli(&["ACL", "SETUSER", "app", "on", "resetpass", &rules, "~*", "&*", "+@all"]);
        // As secrets are mounted: the file is replaced as a whole.
        let new = path.with_extension("new");
        std::fs::write(&new, format!("hunter{number}\n")).expect("written");
        std::fs::rename(&new, &path).expect("replaced");
    };
    change(0);
    let password = PasswordFile::new(&path).user("app");
    let mq = Millstream::at(server.url()).credentials(password).await.expect("connected");
    let load = Load::on(mq).await;
    for number in 1..=changes(5) {
        change(number);
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        load.goes_on("messages of all keys").await;
    }
    load.end(&[], |log| server.cli(&["XRANGE", log, "-", "+"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_credentials_is_told_without_them() {
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all"]);
    let with = |credentials: Credentials| Millstream::at(server.url()).credentials(credentials).connect();
    let wrong = with(Credentials::new("app", "hunter2")).await.expect_err("a wrong password");
    assert_eq!(wrong.kind(), ErrorKind::Denied, "{wrong}");
    assert!(!format!("{wrong} {wrong:?}").contains("hunter2"), "{wrong:?}");
    let missing = Millstream::at(server.url()).credentials(PasswordFile::new("/nowhere/password"));
    let missing = missing.await.expect_err("no file");
    assert_eq!(missing.kind(), ErrorKind::InvalidConfig);
    assert!(missing.to_string().contains("/nowhere/password"), "{missing}");
    let url = format!("redis://app:right@127.0.0.1:{}", server.port());
    let both = Millstream::at(url).credentials(Credentials::password("hunter2")).await.expect_err("two");
    assert_eq!(both.kind(), ErrorKind::InvalidConfig);
    assert!(!both.to_string().contains("right@"), "{both}");
    let memory = Millstream::at("memory://").credentials(Credentials::password("x")).await;
    assert_eq!(memory.expect_err("in memory").kind(), ErrorKind::InvalidConfig);
    with(Credentials::new("app", "right")).await.expect("the right ones");
}
