//! Markers of effects elsewhere, and the deletion of old ones. What every role of this kind must do is in the suite, which
//! the integration tests run on it.

use std::time::Duration;

use millstream_core::ErrorKind;
use millstream_core::idempotency::{Begun, Idempotency, Marker};
use millstream_sql::{Cleaner, SqlIdempotency, Tx};

use crate::support::{Place, effect, on_both, operation, run};

on_both!(
    many_markers_are_extended_at_once,
    namespaces_are_apart,
    what_expired_is_deleted_and_nothing_else,
    many_delete_at_once,
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
