//! Gauges of a transactional outbox.

use integration_tests::databases::outbox::postgres_url;
use millstream::sql::{Database, Outbox, migrate};
use millstream::{Start, TopicChange};
use millstream_core::{GroupName, TopicSpec};

use super::*;

const BOUNDED: Topic<u64> = Topic::new("bounded").max_length(1);

/// A row that can never be sent, one that has to wait for room, and one that waits for a transaction that is still open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_outbox_cannot_send_is_measured() {
    let scene = Fixture::at(&shared_url()).await;
    let database = Database::connect(&postgres_url().await).await.expect("connected");
    let outbox = Outbox::new();
    let bounded: TopicSpec = BOUNDED.spec().expect("a topic");
    let catalog = scene.mq.backend().catalog();
    let stored = catalog.create_topic(&bounded).await.expect("created");
    // A group that has settled nothing keeps what is sent.
    let group: GroupName = "slow".parse().expect("a name");
    catalog.create_group(&stored, &group, Start::Earliest).await.expect("created");
    let nowhere = Topic::<u64>::new("nowhere");

    let mut tx = database.begin().await.expect("begun");
    for number in 0..3 {
        outbox.send(&mut tx, &BOUNDED, &number).key("k").await.expect("written");
    }
    outbox.send(&mut tx, &nowhere, &7).await.expect("written");
    tx.commit().await.expect("committed");
    let relay = scene.mq.outbox(&database).topic(&BOUNDED).batch(1).start().await.expect("a relay");
    let value = |scrape: &Scrape, name: &str| scrape.sum(&format!("millstream_{name}"), &[]);
    scene
        .until("one is given up, and one waits", |scrape| {
            value(scrape, "outbox_dead") == Some(1.0) && value(scrape, "outbox_oldest_seconds") > Some(0.0)
        })
        .await;

    let mut open = database.begin().await.expect("begun");
    outbox.send(&mut open, &BOUNDED, &8).key("k").await.expect("written");
    let mut behind = database.begin().await.expect("begun");
    // Of many keys, so that some are in other shards than the rows that wait for room.
    for number in 0..20_u64 {
        outbox.send(&mut behind, &BOUNDED, &number).key(format!("other {number}")).await.expect("written");
    }
    behind.commit().await.expect("committed");
    scene
        .until("a transaction holds back a row", |scrape| value(scrape, "outbox_blocked_seconds") > Some(0.0))
        .await;

    open.commit().await.expect("committed");
    catalog.alter_topic(&stored.name, &TopicChange::new().max_length(None)).await.expect("altered");
    // A relay that starts knows the topic as it is.
    relay.shutdown().await;
    let relay = scene.mq.outbox(&database).topic(&BOUNDED).start().await.expect("a relay");
    scene
        .until("all others are sent", |scrape| {
            let is = |name, expected| value(scrape, name) == Some(expected);
            is("outbox_dead", 1.0) && is("outbox_oldest_seconds", 0.0) && is("outbox_blocked_seconds", 0.0)
        })
        .await;
    relay.shutdown().await;
    scene.until("unknown is no number", |scrape| value(scrape, "outbox_dead").is_none_or(f64::is_nan)).await;
}

/// Starts a relay whose outbox is empty, so that its gauges are there.
pub(super) async fn idle(mq: &Millstream, folder: &std::path::Path) -> millstream::sql::OutboxRelay {
    let url = format!("sqlite:{}?mode=rwc", folder.join("outbox.db").display());
    let database = Database::connect(&url).await.expect("connected");
    migrate(&database).await.expect("migrated");
    mq.outbox(&database).start().await.expect("a relay")
}
