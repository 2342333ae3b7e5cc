//! Several relays: even shares, take-over, and the fence of the database.

use std::collections::BTreeMap;
use std::time::Duration;

use integration_tests::databases::outbox::texts;
use integration_tests::eventually;
use millstream::sql::{Outbox, sqlx};

use super::{LINES, Scene, line};

async fn held(scene: &Scene) -> BTreeMap<String, i64> {
    let pool = sqlx::PgPool::connect(&scene.url).await.expect("connected");
    let query = "SELECT holder, count(*) FROM millstream_outbox_leases \
                 WHERE holder IS NOT NULL AND until >= clock_timestamp() GROUP BY holder";
    let rows: Vec<(String, i64)> = sqlx::query_as(query).fetch_all(&pool).await.expect("counted");
    pool.close().await;
    rows.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_share_the_shards_evenly_and_take_over_those_of_one_that_leaves() {
    let scene = Scene::postgres().await;
    let (a, b) = (scene.relay().await, scene.relay().await);
    eventually(async || held(&scene).await.values().copied().collect::<Vec<_>>() == [8, 8], "halves").await;
    let c = scene.relay().await;
    let thirds = async || {
        let mut counts: Vec<_> = held(&scene).await.into_values().collect();
        counts.sort_unstable();
        counts == [5, 5, 6]
    };
    eventually(thirds, "thirds").await;
    a.shutdown().await;
    eventually(async || held(&scene).await.values().copied().collect::<Vec<_>>() == [8, 8], "halves again")
        .await;
    let outbox = Outbox::new();
    let mut tx = scene.database.begin().await.expect("begun");
    for n in 0..200 {
        outbox.send(&mut tx, &LINES, &line(&n.to_string())).key(n.to_string()).await.expect("written");
    }
    tx.commit().await.expect("committed");
    eventually(async || texts(scene.mq.backend(), &LINES).await.len() == 200, "all are sent").await;
    b.shutdown().await;
    c.shutdown().await;
    assert!(held(&scene).await.is_empty());
    assert_eq!(scene.number("SELECT count(*) FROM millstream_outbox_relays").await, 0);
}

/// The lease is moved by hand, as if the relay had been paused past its ttl. It has not noticed when it deletes.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_shards_were_taken_deletes_nothing() {
    for scene in Scene::both().await {
        let relay = scene.mq.outbox(&scene.database).topic(&LINES).ttl(Duration::from_secs(30));
        let relay = relay.start().await.expect("a relay");
        let shards = scene.number("SELECT count(*) FROM millstream_outbox_leases").await;
        let mine = "SELECT count(*) FROM millstream_outbox_leases WHERE holder IS NOT NULL";
        eventually(async || scene.number(mine).await == shards, "it has them").await;
        scene.run("UPDATE millstream_outbox_leases SET holder = 'other', epoch = epoch + 1").await;
        let mut tx = scene.database.begin().await.expect("begun");
        Outbox::new().send(&mut tx, &LINES, &line("x")).key("k").await.expect("written");
        tx.commit().await.expect("committed");
        // It stores it: the successor does so, too, and is told that it is there.
        eventually(async || texts(scene.mq.backend(), &LINES).await == ["x"], "stored").await;
        relay.shutdown().await;
        assert_eq!(
            scene.number("SELECT count(*) FROM millstream_outbox").await,
            1,
            "its successor deletes it"
        );
        scene.run("UPDATE millstream_outbox_leases SET holder = NULL").await;
        let relay = scene.relay().await;
        eventually(async || scene.number("SELECT count(*) FROM millstream_outbox").await == 0, "deleted")
            .await;
        assert_eq!(texts(scene.mq.backend(), &LINES).await, ["x"]);
        relay.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_relay_waits_on_sqlite_and_takes_over() {
    let scene = Scene::sqlite().await;
    let first = scene.relay().await;
    let second = scene.relay().await;
    eventually(
        async || {
            let running = "SELECT count(*) FROM millstream_outbox_relays";
            let held = "SELECT count(*) FROM millstream_outbox_leases WHERE holder IS NOT NULL";
            scene.number(running).await == 2 && scene.number(held).await == 1
        },
        "both run, one has the shard",
    )
    .await;
    first.shutdown().await;
    second_sends(&scene).await;
    second.shutdown().await;
}

async fn second_sends(scene: &Scene) {
    let mut tx = scene.database.begin().await.expect("begun");
    Outbox::new().send(&mut tx, &LINES, &line("x")).await.expect("written");
    tx.commit().await.expect("committed");
    eventually(async || texts(scene.mq.backend(), &LINES).await == ["x"], "sent").await;
}
