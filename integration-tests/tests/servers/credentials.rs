//! Credentials that end, and passwords that change, while messages are sent and handled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use integration_tests::server::Server;
use millstream::{Credentials, CredentialsProvider, ErrorKind, Millstream, PasswordFile};

use crate::load::{Load, changes};

/// Time between two users, which a server of a cloud provider has between two tokens.
const PERIOD: Duration = Duration::from_secs(2);

/// A user for each period. As with tokens, the one before is still valid for a while.
#[derive(Clone)]
struct Rotating(Arc<AtomicU64>);

#[async_trait]
impl CredentialsProvider for Rotating {
    async fn credentials(&self) -> millstream::Result<Credentials> {
        let now = self.0.load(Ordering::Acquire);
        Ok(Credentials::new(format!("user-{now}"), format!("hunter{now}")).valid_for(PERIOD))
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
    let connections = || {
        let list = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]);
        let id = |line: &str| line.split(' ').next().map(str::to_owned);
        let ours = list.lines().filter(|line| line.contains("name=millstream:") && !line.contains(":pool"));
        ours.filter_map(id).collect::<BTreeSet<_>>()
    };
    let before = connections();
    for number in 1..=changes(3) as u64 {
        allow(&server, number);
        now.0.store(number, Ordering::Release);
        // The time that the last ones are valid, and half of that again for requests that block.
        tokio::time::sleep(PERIOD + PERIOD / 2).await;
        let last = format!("user-{}", number - 1);
        let left = server.cli(&["CLIENT", "LIST"]);
        // One that nobody uses logs in again with its next request, or is opened again.
        let used = |line: &&str| !line.contains(":pool") && line.contains(&format!("user={last} "));
        let left: Vec<_> = left.lines().filter(used).collect();
        assert_eq!(left, Vec::<&str>::new(), "still logged in as {last}");
        server.cli(&["ACL", "DELUSER", &last]);
        load.goes_on("messages of all keys").await;
    }
    assert_eq!(connections(), before, "connections were closed and opened again");
    assert_eq!(load.unconfirmed(), 0);
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
