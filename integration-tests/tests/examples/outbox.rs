//! The example of the outbox runs, with PostgreSQL and Redis, and with nothing installed.

use std::time::Duration;

use integration_tests::databases::outbox::{postgres_url, postgres_url_on, texts};
use integration_tests::databases::pgbouncer::{PgBouncer, keeps_statements};
use integration_tests::databases::postgres::Postgres;
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::sql::{Database, Inbox, Once, Outbox, migrate};
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

/// One that gives each transaction another session must keep prepared statements, or connecting says so. With sessions everything
/// works behind any: the example, an inbox, an outbox and its relay.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_all_works_or_connecting_says_what_is_missing() {
    let postgres = tokio::task::spawn_blocking(Postgres::start).await.expect("a server");
    let by_transaction = ["pool_mode = transaction"];
    let mut modes: Vec<(Vec<&str>, bool)> = vec![(vec!["pool_mode = session"], true)];
    if keeps_statements() {
        modes.push((vec![by_transaction[0], "max_prepared_statements = 0"], false));
    } else {
        modes.push((by_transaction.to_vec(), false));
    }
    for (settings, works) in modes {
        let direct = postgres_url_on(&postgres.url()).await;
        let port = postgres.port();
        let bouncer = tokio::task::spawn_blocking({
            let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
            move || PgBouncer::start(port, &settings.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let bouncer = bouncer.await.expect("a pooler");
        let url = bouncer.url(&direct);
        if works {
            let expected = "172 of 200 orders placed, 172580 cents billed";
            assert_eq!(output(Some(url.clone()), None).await, expected, "{settings:?}");
            deliver(&url).await;
        } else {
            let error = Database::connect(&url).await.expect_err("sessions are shared");
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{settings:?}: {text}");
            assert!(text.contains("max_prepared_statements") && text.contains("pool_mode"), "{text}");
        }
    }
}

/// An inbox, an outbox and a relay do their work in this database.
async fn deliver(url: &str) {
    const LINES: Topic<bytes::Bytes> = Topic::raw("lines").partitions(2);
    let database = Database::connect(url).await.expect("connected");
    migrate(&database).await.expect("migrated");
    let inbox = Inbox::builder(&database)
        .namespace("pooled")
        .retries(&Exponential::default())
        .build()
        .expect("an inbox");
    for expected in [true, false] {
        let operation = Operation::new("lines".parse().expect("a name"), "g".parse().expect("a name"), "1");
        let work = async |mut tx: millstream::sql::Tx| {
            Outbox::new().send(&mut tx, &LINES, &bytes::Bytes::from_static(b"once")).await?;
            Ok::<_, millstream::Error>(())
        };
        let done = inbox.once(&operation.expect("an operation"), None, work).await.expect("done");
        assert_eq!(matches!(done, Once::First(())), expected);
    }
    let mq = Millstream::connect("memory://").await.expect("a queue");
    let relay =
        mq.outbox(&database).topic(&LINES).ttl(Duration::from_secs(2)).start().await.expect("a relay");
    eventually(async || texts(mq.backend(), &LINES).await == ["once"], "sent").await;
    relay.shutdown().await;
}
