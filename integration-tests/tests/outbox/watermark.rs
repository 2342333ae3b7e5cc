//! Transactions that commit late: nothing is passed over, nothing comes twice, and the order of a key is kept.

use std::time::{Duration, Instant};

use integration_tests::databases::outbox::texts;
use integration_tests::eventually;
use millstream::sql::Outbox;

use super::{LINES, Scene, line, number};

/// Seconds for which the transaction stays open. Default: as long as it takes others to commit.
const HOLD: &str = "MILLSTREAM_OUTBOX_HOLD_S";

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_stays_open_while_later_ones_commit_loses_no_row() {
    let hold = std::env::var(HOLD)
        .map_or(Duration::ZERO, |text| Duration::from_secs(text.parse().expect("seconds")));
    let scene = Scene::postgres().await;
    let relay = scene.relay().await;
    let outbox = Outbox::new();
    let write = async |text: &str, key: &str| {
        let mut tx = scene.database.begin().await.expect("begun");
        outbox.send(&mut tx, &LINES, &line(text)).key(key).await.expect("written");
        tx.commit().await.expect("committed");
    };
    write("before", "k").await;
    eventually(async || texts(scene.mq.backend(), &LINES).await == ["before"], "sent").await;

    let mut late = scene.database.begin().await.expect("begun");
    let late_row = outbox.send(&mut late, &LINES, &line("late")).key("k").await.expect("written").id;
    let begun = Instant::now();
    let mut written = 0;
    while written < 50 || begun.elapsed() < hold {
        write(&format!("other {written}"), &format!("key {}", written % 7)).await;
        written += 1;
        if written > 50 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // A row that looks as if it was written long ago is sent: the relay reads all the time.
    scene
        .run("INSERT INTO millstream_outbox (tx, topic, payload) VALUES ('4', 'lines', 'probe'::bytea)")
        .await;
    eventually(async || texts(scene.mq.backend(), &LINES).await.contains(&"probe".into()), "sent").await;
    let sent = texts(scene.mq.backend(), &LINES).await;
    assert_eq!(sent.len(), 2, "others wait for the transaction that is open: {sent:?}");
    let status = outbox.status(&scene.database).await.expect("a status");
    assert!(status.blocked.is_some() && status.blocker.starts_with("pid "), "{status:?}");
    let pid = number(&mut late, "SELECT pg_backend_pid()::bigint").await;
    assert!(status.blocker.contains(&format!("pid {pid},")), "{status:?}");

    // The control: a reader that remembers the last id that it saw never comes to the row.
    let cursor = scene.number("SELECT max(id) FROM millstream_outbox").await;
    late.commit().await.expect("committed");
    let above = scene.number(&format!("SELECT count(*) FROM millstream_outbox WHERE id > {cursor}")).await;
    assert!(late_row <= cursor && above == 0, "an id cursor would not have skipped it");

    let all = written + 3;
    eventually(async || texts(scene.mq.backend(), &LINES).await.len() >= all, "all are sent").await;
    eventually(async || scene.number("SELECT count(*) FROM millstream_outbox").await == 0, "deleted").await;
    let mut sent = texts(scene.mq.backend(), &LINES).await;
    assert!(sent.contains(&"late".into()));
    sent.sort();
    sent.dedup();
    assert_eq!(sent.len(), all, "each once");
    let status = outbox.status(&scene.database).await.expect("a status");
    assert_eq!((status.blocked, status.oldest), (None, None));
    relay.shutdown().await;
}

/// A transaction can have an old number and write late, behind one with a younger number that has committed: numbers of
/// transactions are no order.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_does_not_overtake_an_earlier_one_of_its_key_whose_transaction_is_younger() {
    let scene = Scene::postgres().await;
    let outbox = Outbox::new();
    let mut old = scene.database.begin().await.expect("begun");
    number(&mut old, "SELECT pg_current_xact_id()::text::bigint").await;
    let mut between = scene.database.begin().await.expect("begun");
    number(&mut between, "SELECT pg_current_xact_id()::text::bigint").await;
    let mut young = scene.database.begin().await.expect("begun");
    outbox.send(&mut young, &LINES, &line("first")).key("k").await.expect("written");
    young.commit().await.expect("committed");
    outbox.send(&mut old, &LINES, &line("second")).key("k").await.expect("written");
    old.commit().await.expect("committed");
    // The control: by the watermark alone the second one could be sent, and the first could not.
    let ready = "SELECT count(*) FROM millstream_outbox WHERE tx < pg_snapshot_xmin(pg_current_snapshot()) \
                 AND payload = 'second'::bytea";
    let waiting = "SELECT count(*) FROM millstream_outbox WHERE tx >= pg_snapshot_xmin(pg_current_snapshot()) \
                   AND payload = 'first'::bytea";
    // Transactions of other databases of the server hold the watermark back for a while.
    eventually(async || scene.number(ready).await == 1, "the second one is below the watermark").await;
    assert_eq!(scene.number(waiting).await, 1);
    let relay = scene.relay().await;
    scene
        .run(
            "INSERT INTO millstream_outbox (tx, topic, key, payload) SELECT '4', 'lines', k, 'probe'::bytea \
              FROM (SELECT int4send(n) AS k FROM generate_series(1, 200) n) s \
              WHERE get_byte(sha256(k), 0) % 16 <> get_byte(sha256('k'::bytea), 0) % 16 LIMIT 1",
        )
        .await;
    eventually(async || !texts(scene.mq.backend(), &LINES).await.is_empty(), "sent").await;
    assert_eq!(texts(scene.mq.backend(), &LINES).await, ["probe"]);
    between.rollback().await;
    eventually(async || texts(scene.mq.backend(), &LINES).await.len() == 3, "sent").await;
    let sent = texts(scene.mq.backend(), &LINES).await;
    let of_key: Vec<_> = sent.iter().filter(|text| *text != "probe").collect();
    assert_eq!(of_key, ["first", "second"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_restored_dump_are_sent() {
    let scene = Scene::postgres().await;
    // The other database has given numbers away that this one has not reached.
    scene
        .run("INSERT INTO millstream_outbox (tx, topic, payload) VALUES ('9000000000', 'lines', 'restored'::bytea)")
        .await;
    let relay = scene.relay().await;
    eventually(async || texts(scene.mq.backend(), &LINES).await == ["restored"], "sent").await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_is_named() {
    let server = tokio::task::spawn_blocking(|| {
        integration_tests::databases::postgres::Postgres::start_with(&["max_prepared_transactions=5"])
    });
    let server = server.await.expect("a server");
    let url = integration_tests::databases::outbox::postgres_url_on(&server.url()).await;
    let database = millstream::sql::Database::connect(&url).await.expect("connected");
    let scene = Scene { mq: super::memory().await, database, url, _folder: None };
    let mut tx = scene.database.begin().await.expect("begun");
    super::run(&mut tx, "SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
        .await
        .expect("prepared");
    tx.rollback().await;
    let mut tx = scene.database.begin().await.expect("begun");
    Outbox::new().send(&mut tx, &LINES, &line("x")).await.expect("written");
    tx.commit().await.expect("committed");
    let status = Outbox::new().status(&scene.database).await.expect("a status");
    assert_eq!(status.blocker, "prepared transaction \"forgotten\"");
}
