//! Markers of effects elsewhere, and the deletion of old ones. What every role of this kind must do is in the suite, which
//! the integration tests run on it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use millstream_core::event::Event;
use millstream_core::idempotency::{Begun, Idempotency, Marker};
use millstream_core::log::Append;
use millstream_core::{Backend, Envelope, ErrorKind, Topic, TopicPartition, wire};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, Delivery, Idempotent, IdempotentCalls};

use crate::sqlx::postgres::PgPoolOptions;
use crate::tests::support::{Place, effect, on_both, operation, run};
use crate::{Cleaner, Database, SqlIdempotency, Tx, migrate};

on_both!(
    many_markers_are_extended_at_once,
    namespaces_are_apart,
    what_expired_is_deleted_and_nothing_else,
    many_delete_at_once,
    a_call_returns_the_result_that_was_kept,
    without_tables_messages_wait_and_use_no_attempt,
);

const MINUTE: Duration = Duration::from_secs(60);

async fn started(role: &SqlIdempotency, id: &str, token: &str, ttl: Duration) -> Marker {
    match role.begin(&operation(id), "ann", token, ttl).await.unwrap() {
        Begun::Started(marker) => marker,
        other => panic!("{id}: {other:?}"),
    }
}

async fn many_markers_are_extended_at_once(place: Place) {
    let role = SqlIdempotency::new(&place.database, "n").unwrap();
    let mut markers = Vec::new();
    for number in 0..300 {
        markers.push(started(&role, &format!("{}", number * 7 % 300), "t", MINUTE).await);
    }
    role.complete(&markers[17], b"", MINUTE).await.unwrap();
    // One is there twice, the second time with a token of somebody else.
    markers.push(Marker::new(markers[3].operation.clone(), "bob", "other", MINUTE));
    markers.push(markers[3].clone());
    let answers = role.extend(&markers).await;
    for (at, answer) in answers.iter().enumerate() {
        let expected = if [17, 300].contains(&at) { Err(ErrorKind::Fenced) } else { Ok(()) };
        assert_eq!(answer.as_ref().map(|_| ()).map_err(millstream_core::Error::kind), expected, "{at}");
    }
}

async fn a_call_returns_the_result_that_was_kept(place: Place) {
    let role = SqlIdempotency::new(&place.database, "n").unwrap();
    let calls = IdempotentCalls::new(&role.replace(Backend::from(MemoryBackend::new())), "charges");
    let calls = calls.lease_ttl(Duration::from_millis(500));
    let done = AtomicUsize::new(0);
    let work = || async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        Ok::<_, std::io::Error>(done.fetch_add(1, Ordering::SeqCst) + 1)
    };
    let failed = calls.run("key", || async { Err::<usize, _>("no") }).await;
    assert!(failed.is_err());
    let (one, other) = tokio::join!(calls.run("key", work), calls.run("key", work));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert!(one.not_kept.is_none() && other.not_kept.is_none(), "{one:?} {other:?}");
    assert_eq!((one.value, other.value, one.is_duplicate != other.is_duplicate), (1, 1, true));
}

async fn namespaces_are_apart(place: Place) {
    for namespace in ["one", "other"] {
        let role = SqlIdempotency::new(&place.database, namespace).unwrap();
        started(&role, "a", "t", MINUTE).await;
    }
    assert!(SqlIdempotency::new(&place.database, "no/name").is_err());
}

/// Fills the inbox with this many rows that have expired, and one that has not.
async fn fill(place: &Place, rows: u32) {
    let inbox = place.inbox();
    let keep = async |mut tx: Tx| {
        effect(&mut tx, "e").await;
        Ok::<_, std::convert::Infallible>(())
    };
    inbox.once(&operation("keep"), None, keep).await.unwrap();
    let expired = if place.is_postgres() {
        format!(
            "INSERT INTO millstream_inbox SELECT 's', n::text::bytea, 0, NULL, now() - n * interval '1 s' \
             FROM generate_series(1, {rows}) AS n"
        )
    } else {
        format!(
            "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {rows}) \
             INSERT INTO millstream_inbox SELECT 's', CAST(n AS BLOB), 0, NULL, 1000 + n FROM s"
        )
    };
    let mut tx = place.database.begin().await.unwrap();
    run(&mut tx, &expired).await;
    tx.commit().await.unwrap();
}

async fn what_expired_is_deleted_and_nothing_else(place: Place) {
    fill(&place, 250).await;
    let role = SqlIdempotency::new(&place.database, "n").unwrap();
    started(&role, "lives", "t", MINUTE).await;
    let dies = started(&role, "dies", "t", MINUTE).await;
    role.complete(&dies, b"", Duration::from_millis(1)).await.unwrap();
    let cleaner = Cleaner::new(&place.database).batch(100).unwrap().pause(Duration::ZERO);
    let mut deleted = 0;
    while deleted < 251 {
        deleted += cleaner.run_once().await.unwrap();
    }
    assert_eq!((deleted, cleaner.run_once().await.unwrap()), (251, 0));
    assert_eq!(place.number("SELECT count(*) FROM millstream_inbox").await, 1);
    assert_eq!(place.number("SELECT count(*) FROM millstream_markers").await, 1);
    for wrong in [0, 10_001] {
        assert_eq!(Cleaner::new(&place.database).batch(wrong).unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}

async fn many_delete_at_once(place: Place) {
    fill(&place, 3_000).await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let cleaner = Cleaner::new(&place.database).batch(50).unwrap().pause(Duration::ZERO);
            tokio::spawn(async move { cleaner.run_once().await })
        })
        .collect();
    let mut deleted = 0;
    for task in tasks {
        deleted += task.await.unwrap().unwrap();
    }
    // One that met the rows of the others may have ended before them.
    deleted += Cleaner::new(&place.database).run_once().await.unwrap();
    assert_eq!((deleted, place.number("SELECT count(*) FROM millstream_inbox").await), (3_000, 1));
}

/// Handlers may keep all connections for longer than a marker lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn markers_are_extended_while_handlers_hold_all_connections() {
    let place = Place::postgres().await.ready().await;
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(1));
    let database = Database::from(pool.connect(&place.url).await.unwrap());
    let role = SqlIdempotency::new(&database, "n").unwrap();
    let marker = started(&role, "a", "t", MINUTE).await;
    let held = database.begin().await.unwrap();
    for _ in 0..2 {
        let extended = role.extend(std::slice::from_ref(&marker)).await;
        assert_eq!(extended.iter().map(Result::is_ok).collect::<Vec<_>>(), [true], "{extended:?}");
    }
    held.rollback().await;
}

const LINES: Topic<Bytes> = Topic::raw("lines").partitions(1);

async fn drop_tables(database: &Database) {
    let mut tx = database.begin().await.unwrap();
    run(&mut tx, "DROP TABLE millstream_markers").await;
    run(&mut tx, "DROP TABLE millstream_migrations").await;
    tx.commit().await.unwrap();
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect(what);
}

/// They are missing when the message is to begin, and again when its handler has succeeded.
async fn without_tables_messages_wait_and_use_no_attempt(place: Place) {
    let backend: Backend = MemoryBackend::new().into();
    let backend = SqlIdempotency::new(&place.database, "n").unwrap().replace(backend);
    drop_tables(&place.database).await;
    let (failures, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let observer = {
        let (failures, lost) = (failures.clone(), lost.clone());
        move |event: &Event<'_>| match event {
            Event::Failing { operation: "idempotency", .. } => _ = failures.fetch_add(1, Ordering::SeqCst),
            Event::MarkerLost { .. } => _ = lost.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
    };
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let (attempts, database) = (attempts.clone(), place.database.clone());
        move |delivery: Delivery<Bytes>| {
            attempts.lock().unwrap().push(delivery.attempt());
            let database = database.clone();
            async move { drop_tables(&database).await }
        }
    };
    let consumer = ConsumerBuilder::new(backend.clone(), LINES, "g", Arc::new(observer));
    let consumer = consumer.idempotent(Idempotent::by_message_id()).start(handler).await.unwrap();
    let topic_partition = TopicPartition::new("lines".parse().unwrap(), 0);
    let append = Append::new(topic_partition, wire::encode(&Envelope::new("a")));
    backend.log().append(&[append]).await.remove(0).unwrap();
    for round in 0..2 {
        let before = failures.load(Ordering::SeqCst);
        eventually("it fails and tries again", || failures.load(Ordering::SeqCst) >= before + 2).await;
        assert_eq!(attempts.lock().unwrap().len(), round);
        assert_eq!(consumer.report().acked, 0);
        migrate(&place.database).await.unwrap();
        eventually("it goes on", || attempts.lock().unwrap().len() == 1).await;
    }
    eventually("acknowledged", || consumer.report().acked == 1).await;
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.dead, lost.load(Ordering::SeqCst)), (1, 0, 0));
    assert_eq!(*attempts.lock().unwrap(), [1]);
}
