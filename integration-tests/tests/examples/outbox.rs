//! The example of the outbox runs, with PostgreSQL and Redis, and with nothing installed.

use std::time::Duration;

use integration_tests::databases::outbox::{postgres_url, postgres_url_on, texts};
use integration_tests::databases::pgbouncer::{PgBouncer, keeps_statements};
use integration_tests::databases::postgres::Postgres;
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::sql::sqlx::{self, Connection as _};
use millstream::sql::{Database, Inbox, Once, Outbox, Tx, migrate};
use millstream::{ErrorKind, Exponential, Millstream, Topic};
use millstream_core::idempotency::Operation;

use super::built;

async fn output(database: Option<String>, queue: Option<String>) -> String {
    let run = move || {
        let mut command = built::example("outbox");
        command.env_remove("DATABASE_URL").env_remove("REDIS_URL");
        command.envs(database.map(|url| ("DATABASE_URL", url))).envs(queue.map(|url| ("REDIS_URL", url)));
        command.output().expect("it starts")
    };
    let output = tokio::task::spawn_blocking(run).await.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_bills_what_was_ordered() {
    let expected = "172 of 200 orders placed, 172580 cents billed";
    assert_eq!(output(None, None).await, expected, "on SQLite and in memory");
    let server = tokio::task::spawn_blocking(Server::start).await.expect("a server");
    let url = postgres_url().await;
    assert_eq!(output(Some(url), Some(server.url())).await, expected, "on PostgreSQL and Redis");
}

/// Settings of a pooler, and whether all works behind it: in any version, from 1.21 on, and before.
type Mode = (&'static [&'static str], bool);
const ALWAYS: [Mode; 2] = [(&["pool_mode = session"], true), (&["pool_mode = statement"], false)];
const KEEPS: [Mode; 2] = [
    (&["pool_mode = transaction", "max_prepared_statements = 100"], true),
    (&["pool_mode = transaction", "max_prepared_statements = 0"], false),
];
const MIXES: [Mode; 1] = [(&["pool_mode = transaction"], false)];

/// One that gives each transaction another session must keep prepared statements, or connecting says so. Otherwise everything works:
/// the example, an inbox, an outbox and its relay.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_all_works_or_connecting_says_what_is_missing() {
    let postgres = tokio::task::spawn_blocking(Postgres::start).await.expect("a server");
    let modes = if keeps_statements() { &KEEPS[..] } else { &MIXES[..] };
    for (settings, works) in ALWAYS.iter().chain(modes).copied() {
        let direct = postgres_url_on(&postgres.url()).await;
        let port = postgres.port();
        let bouncer = tokio::task::spawn_blocking(move || PgBouncer::start(port, settings));
        let bouncer = bouncer.await.expect("a pooler");
        let url = bouncer.url(&direct);
        if works {
            let expected = "172 of 200 orders placed, 172580 cents billed";
            assert_eq!(output(Some(url.clone()), None).await, expected, "{settings:?}");
            let listens = settings[0].ends_with("session");
            deliver(&url, true, listens).await;
        } else {
            let error = Database::connect(&url).await.expect_err("sessions are shared");
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{settings:?}: {text}");
            assert!(text.contains("max_prepared_statements") && text.contains("pool_mode"), "{text}");
        }
    }
    deliver(&postgres_url_on(&postgres.url()).await, false, false).await;
}

/// An inbox, an outbox and a relay do their work in this database. The relay listens if it may, and if sessions are not shared.
async fn deliver(url: &str, may_listen: bool, listens: bool) {
    const LINES: Topic<bytes::Bytes> = Topic::raw("lines").partitions(2);
    const LISTENERS: &str =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    let database = Database::connect(url).await.expect("connected");
    migrate(&database).await.expect("migrated");
    let inbox = Inbox::builder(&database)
        .namespace("pooled")
        .retries(&Exponential::default())
        .build()
        .expect("an inbox");
    for expected in [true, false] {
        let operation = Operation::new("lines".parse().expect("a name"), "g".parse().expect("a name"), "1");
        let work = async |mut tx: Tx| {
            Outbox::new().send(&mut tx, &LINES, &bytes::Bytes::from_static(b"once")).await?;
            Ok::<_, millstream::Error>(())
        };
        let done = inbox.once(&operation.expect("an operation"), None, work).await.expect("done");
        assert_eq!(matches!(done, Once::First(())), expected);
    }
    let mq = Millstream::connect("memory://").await.expect("a queue");
    let relay = mq.outbox(&database).topic(&LINES).ttl(Duration::from_secs(2)).listen(may_listen);
    let relay = relay.start().await.expect("a relay");
    let mut admin = sqlx::PgConnection::connect(url).await.expect("connected");
    let mut listeners =
        async || -> i64 { sqlx::query_scalar(LISTENERS).fetch_one(&mut admin).await.expect("counted") };
    if listens {
        while listeners().await == 0 {
            tokio::task::yield_now().await;
        }
    }
    eventually(async || texts(mq.backend(), &LINES).await == ["once"], "sent").await;
    assert_eq!(listeners().await, i64::from(listens));
    relay.shutdown().await;
}
