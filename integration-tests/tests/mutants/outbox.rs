//! The relay that remembers an id.

use bytes::Bytes;
use integration_tests::chaos::mutants::outbox::Relay;
use integration_tests::databases::outbox::{postgres_url, texts};
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::Millstream;
use millstream::sql::{Database, Outbox};

use super::scene::LINES;

/// A transaction writes a row and stays open while a later one commits and is relayed. Needs no process of its own: the relay is the
/// mutant.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_transaction_commits_late_is_passed_over() {
    let url = postgres_url().await;
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let database = Database::connect(&url).await.expect("connected");
    let outbox = Outbox::new();
    let mut relay = Relay::open(&mq, &url).await.expect("opened");

    let mut late = database.begin().await.expect("begun");
    outbox.send(&mut late, &LINES, &Bytes::from_static(b"late")).key("k").await.expect("written");
    let mut other = database.begin().await.expect("begun");
    let text = Bytes::from_static(b"other");
    outbox.send(&mut other, &LINES, &text).header("name", "value").await.expect("written");
    other.commit().await.expect("committed");
    assert_eq!(relay.step().await.expect("relayed"), 1);
    late.commit().await.expect("committed");
    assert_eq!(relay.step().await.expect("relayed"), 0, "it is below the cursor");
    assert_eq!(texts(mq.backend(), &LINES).await, ["other"]);
    drop(relay);
    // Another one, after a restart, has the same cursor. Rows above it are sent.
    let mut relay = Relay::open(&mq, &url).await.expect("opened");
    let mut next = database.begin().await.expect("begun");
    outbox.send(&mut next, &LINES, &Bytes::from_static(b"next")).await.expect("written");
    next.commit().await.expect("committed");
    assert_eq!(relay.step().await.expect("relayed"), 1);
    let mut sent = texts(mq.backend(), &LINES).await;
    sent.sort();
    assert_eq!(sent, ["next", "other"]);
    assert!(outbox.status(&database).await.expect("a status").oldest.is_some(), "it still stands there");

    // The product's relay finds the row that the other one passed over.
    let relay = mq.outbox(&database).topic(&LINES).start().await.expect("a relay");
    eventually(async || texts(mq.backend(), &LINES).await.len() == 3, "all are sent").await;
    relay.shutdown().await;
}
