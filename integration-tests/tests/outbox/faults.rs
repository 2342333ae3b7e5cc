//! Servers that restart, replies that are lost, and a database that goes away.

use std::time::Duration;

use bytes::Bytes;
use integration_tests::databases::outbox::{postgres_url, postgres_url_on, texts};
use integration_tests::databases::postgres::Postgres;
use integration_tests::eventually;
use integration_tests::proxy::{Proxy, Way};
use integration_tests::server::Server;
use millstream::sql::{Database, Outbox, sqlx};
use millstream::{Millstream, Topic};
use millstream_redis::{RedisBackend, RedisConfig};

use super::{LINES, TTL, line};

async fn write(database: &Database, texts: impl IntoIterator<Item = String>) {
    let mut tx = database.begin().await.expect("begun");
    for text in texts {
        Outbox::new().send(&mut tx, &LINES, &line(&text)).key("k").await.expect("written");
    }
    tx.commit().await.expect("committed");
}

fn numbers(range: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    range.map(|n| n.to_string())
}

async fn server(appendonly: bool) -> Server {
    tokio::task::spawn_blocking(move || Server::builder().appendonly(appendonly).start())
        .await
        .expect("a server")
}

async fn over(url: &str) -> Millstream {
    let config = RedisConfig::new(url).with_response_timeout(Duration::from_secs(1));
    Millstream::over(RedisBackend::connect(config).await.expect("connected").into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_of_redis_stores_nothing_twice() {
    let server = server(false).await;
    let proxy = Proxy::to(server.port());
    let (mq, direct) = (over(&proxy.url()).await, over(&server.url()).await);
    let database = Database::connect(&postgres_url().await).await.expect("connected");
    let relay = mq.outbox(&database).topic(&LINES).ttl(TTL).start().await.expect("a relay");
    write(&database, numbers(0..10)).await;
    eventually(async || texts(direct.backend(), &LINES).await.len() == 10, "the script is known").await;
    for round in 1..=3_u32 {
        let first = 1_000 * round;
        proxy.swallow(&format!("{}", first + 7), 1);
        write(&database, numbers(first..first + 300)).await;
        let all = 10 + 300 * usize::try_from(round).expect("small");
        eventually(async || texts(direct.backend(), &LINES).await.len() >= all, "sent").await;
        eventually(async || rows(&database).await == 0, "deleted").await;
        assert_eq!(proxy.swallowed(), usize::try_from(round).expect("small"), "a reply was lost");
    }
    let expected: Vec<String> =
        [0..10, 1_000..1_300, 2_000..2_300, 3_000..3_300].into_iter().flat_map(numbers).collect();
    assert_eq!(texts(direct.backend(), &LINES).await, expected);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_redis_is_waited_for() {
    let mut server = server(true).await;
    let mq = over(&server.url()).await;
    let database = Database::connect(&postgres_url().await).await.expect("connected");
    let relay = mq.outbox(&database).topic(&LINES).ttl(TTL).start().await.expect("a relay");
    write(&database, numbers(0..100)).await;
    eventually(async || rows(&database).await == 0, "deleted").await;
    server.kill();
    write(&database, numbers(100..1_000)).await;
    server.restart();
    eventually(async || rows(&database).await == 0, "deleted").await;
    assert_eq!(texts(mq.backend(), &LINES).await, numbers(0..1_000).collect::<Vec<_>>());
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_lost_with_the_data_is_created_again() {
    let mut server = server(false).await;
    let mq = over(&server.url()).await;
    let database = Database::connect(&postgres_url().await).await.expect("connected");
    let relay = mq.outbox(&database).topic(&LINES).ttl(TTL).start().await.expect("a relay");
    write(&database, numbers(0..10)).await;
    eventually(async || rows(&database).await == 0, "deleted").await;
    server.stop();
    write(&database, numbers(10..20)).await;
    server.restart();
    eventually(async || rows(&database).await == 0, "deleted").await;
    assert_eq!(Outbox::new().status(&database).await.expect("a status").dead, 0);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_restarts_or_stalls_is_waited_for() {
    let server = tokio::task::spawn_blocking(Postgres::start).await.expect("a server");
    let url = postgres_url_on(&server.url()).await;
    let proxy = Proxy::to(server.port());
    let through = url.replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    let mq = super::memory().await;
    let (direct, database) = (
        Database::connect(&url).await.expect("connected"),
        Database::connect(&through).await.expect("connected"),
    );
    let relay = mq.outbox(&database).topic(&LINES).ttl(TTL).start().await.expect("a relay");
    write(&direct, numbers(0..100)).await;
    eventually(async || rows(&direct).await == 0, "deleted").await;

    // The connections break at any point of a round, again and again.
    for round in 0..10_u32 {
        write(&direct, numbers(100 + round * 20..120 + round * 20)).await;
        proxy.reset();
    }
    eventually(async || rows(&direct).await == 0, "deleted").await;
    // Replies stay out, and then the link is cut: what was stored is not stored again.
    proxy.freeze(Way::Down);
    write(&direct, numbers(300..400)).await;
    proxy.cut();
    proxy.thaw();
    proxy.heal();
    eventually(async || rows(&direct).await == 0, "deleted").await;

    let server = tokio::task::spawn_blocking(move || {
        let mut server = server;
        server.restart();
        server
    });
    let server = server.await.expect("started again");
    eventually(async || direct.begin().await.is_ok(), "the database answers").await;
    write(&direct, numbers(400..500)).await;
    eventually(async || rows(&direct).await == 0, "deleted").await;
    assert_eq!(texts(mq.backend(), &LINES).await, numbers(0..500).collect::<Vec<_>>());
    relay.shutdown().await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_gives_up_its_rows_only() {
    const BROKEN: Topic<Bytes> = Topic::raw("broken");
    let server = server(false).await;
    let mq = over(&server.url()).await;
    let database = Database::connect(&postgres_url().await).await.expect("connected");
    let relay = mq.outbox(&database).topic(&LINES).topic(&BROKEN).ttl(TTL).start().await.expect("a relay");
    server.cli(&["SET", "stream:topic:{broken:p:0}", "somebody's"]);
    let mut tx = database.begin().await.expect("begun");
    Outbox::new().send(&mut tx, &BROKEN, &line("a")).key("k").await.expect("written");
    Outbox::new().send(&mut tx, &LINES, &line("b")).key("k").await.expect("written");
    tx.commit().await.expect("committed");
    eventually(async || texts(mq.backend(), &LINES).await == ["b"], "sent").await;
    eventually(async || Outbox::new().status(&database).await.expect("a status").dead == 1, "given up").await;
    let dead = Outbox::new().dead(&database, 0, 10).await.expect("listed");
    assert_eq!(dead[0].kind, "wrong_type");
    server.cli(&["DEL", "stream:topic:{broken:p:0}"]);
    Outbox::new().retry(&database, &[dead[0].id]).await.expect("retried");
    eventually(async || texts(mq.backend(), &BROKEN).await == ["a"], "sent").await;
    relay.shutdown().await;
}

/// Number of rows that are not dead.
async fn rows(database: &Database) -> i64 {
    let mut tx = database.begin().await.expect("begun");
    let query = "SELECT count(*) FROM millstream_outbox WHERE dead_at IS NULL";
    sqlx::query_scalar(query).fetch_one(tx.postgres().expect("PostgreSQL")).await.expect("counted")
}
