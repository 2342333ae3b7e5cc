//! Relays of the outbox that vanish, and rows that they do not expect. Their ordinary work is in the integration tests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::error::Result;
use millstream_core::event::Ignore;
use millstream_core::log::{Append, Appended, Reader, Receipt, Settled, Settlement, Trimmed};
use millstream_core::{Backend, Lease, Log, Retention, Topic, TopicPartition};
use millstream_memory::MemoryBackend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::sqlx::{self, Connection, Executor};
use crate::tests::support::{Place, run};
use crate::{Database, Outbox, OutboxRelay, OutboxRelayBuilder};

const LINES: Topic<Bytes> = Topic::raw("lines").partitions(1);
const TTL: Duration = Duration::from_secs(1);

fn backend() -> Backend {
    MemoryBackend::new().into()
}

async fn relay(backend: &Backend, database: &Database) -> OutboxRelay {
    let relay = OutboxRelayBuilder::new(backend.clone(), database.clone(), Arc::new(Ignore));
    relay.topic(&LINES).ttl(TTL).start().await.unwrap()
}

async fn write(database: &Database, rows: u64) {
    let mut tx = database.begin().await.unwrap();
    for row in 0..rows {
        Outbox::new().send(&mut tx, &LINES, &Bytes::from(row.to_string())).await.unwrap();
    }
    tx.commit().await.unwrap();
}

/// Waits until no row is left that is not dead, and returns the number of messages.
async fn sent(backend: &Backend, place: &Place) -> u64 {
    let wait = async {
        while place.number("SELECT count(*) FROM millstream_outbox WHERE dead_at IS NULL").await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("rows are not sent");
    let place = TopicPartition::new("lines".parse().unwrap(), 0);
    backend.log().lengths(&[place]).await.unwrap()[0]
}

/// A way to a server that freezes when a request contains a text: this one and all later ones stay out, and no connection is
/// closed.
struct Link {
    url: String,
    frozen: watch::Receiver<bool>,
    /// Number of bytes that came from the server.
    received: Arc<AtomicUsize>,
}

impl Link {
    async fn to(url: &str, text: &'static str) -> Self {
        let (front, name) = url.rsplit_once('/').unwrap();
        let (user, server) = front.rsplit_once('@').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{user}@{}/{name}", listener.local_addr().unwrap());
        let (freeze, frozen) = watch::channel(false);
        let (server, received) = (server.to_owned(), Arc::<AtomicUsize>::default());
        let counted = received.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(pass(client, server, text, freeze.clone(), counted.clone()));
            }
        });
        Self { url, frozen, received }
    }
}

async fn pass(
    mut client: TcpStream,
    mut server: TcpStream,
    text: &str,
    freeze: watch::Sender<bool>,
    received: Arc<AtomicUsize>,
) {
    let (mut request, mut reply) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Ok(length @ 1..) = read else { return };
                let bytes = &request[..length];
                if *freeze.borrow() || bytes.windows(text.len()).any(|it| it == text.as_bytes()) {
                    freeze.send_replace(true);
                    return std::future::pending().await;
                }
                if server.write_all(bytes).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut reply) => {
                let Ok(length @ 1..) = read else { return };
                received.fetch_add(length, Ordering::SeqCst);
                if client.write_all(&reply[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_vanishes_while_it_deletes_is_replaced() {
    let place = Place::postgres().await.ready().await;
    // Behind the statement that locks the leases.
    let mut link = Link::to(&place.url, "DELETE FROM millstream_outbox ").await;
    let backend = backend();
    write(&place.database, 50).await;
    let _vanishes = relay(&backend, &Database::connect(&link.url).await.unwrap()).await;
    link.frozen.wait_for(|it| *it).await.unwrap();
    write(&place.database, 50).await;
    let other = relay(&backend, &place.database).await;
    assert_eq!(sent(&backend, &place).await, 100);
    other.shutdown().await;
}

/// A log that does something between an append and its result.
struct Between {
    log: Arc<dyn Log>,
    once: Mutex<Option<BoxFuture<'static, ()>>>,
}

#[async_trait]
impl Log for Between {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        let results = self.log.append(batch).await;
        let once = self.once.lock().unwrap().take();
        if let Some(once) = once {
            once.await;
        }
        results
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        self.log.reader(lease).await
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        self.log.settle(lease, batch).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.log.trim(lease, retention).await
    }
}

/// After a fail-over to a copy that was behind, the database gives out ids again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_under_an_id_that_was_given_out_again_is_sent() {
    let place = Place::postgres().await.ready().await;
    let backend = backend();
    let database = place.database.clone();
    let again = "INSERT INTO millstream_outbox (id, topic, payload) OVERRIDING SYSTEM VALUE \
        VALUES (1, 'lines', 'b'), (2, 'no name', 'b')";
    let fail_over = Box::pin(async move {
        let mut tx = database.begin().await.unwrap();
        run(&mut tx, "DELETE FROM millstream_outbox").await;
        run(&mut tx, again).await;
        tx.commit().await.unwrap();
    });
    let between = Between { log: backend.log().clone(), once: Mutex::new(Some(fail_over)) };
    write(&place.database, 2).await;
    let relay = relay(&backend.clone().with_log(Arc::new(between)), &place.database).await;
    assert_eq!(sent(&backend, &place).await, 3);
    assert_eq!(place.number("SELECT id FROM millstream_outbox").await, 2, "it is dead");
    relay.shutdown().await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_giant_payload_is_not_read() {
    let place = Place::postgres().await.ready().await;
    let backend = backend();
    let mut tx = place.database.begin().await.unwrap();
    run(&mut tx, "INSERT INTO millstream_outbox (topic, payload) VALUES ('lines', decode(repeat('00', 32000000), 'hex'))")
        .await;
    tx.commit().await.unwrap();
    write(&place.database, 1).await;
    let link = Link::to(&place.url, "never").await;
    let relay = relay(&backend, &Database::connect(&link.url).await.unwrap()).await;
    assert_eq!(sent(&backend, &place).await, 1);
    relay.shutdown().await;
    let dead = Outbox::new().dead(&place.database, 0, 10).await.unwrap();
    assert_eq!(dead.iter().map(|row| &*row.kind).collect::<Vec<_>>(), ["too_large"]);
    let received = link.received.load(Ordering::SeqCst);
    assert!(received < 8_000_000, "{received} bytes were read for two rows");
}
/// Texts there are any bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_is_not_utf8_holds_nobody_back() {
    let place = Place::postgres().await;
    let name = format!("ascii_{:x}", fastrand::u64(..));
    let mut admin = sqlx::PgConnection::connect(&place.url).await.unwrap();
    let create =
        format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    admin.execute(&*create).await.unwrap();
    let url = format!("{}/{name}", place.url.rsplit_once('/').unwrap().0);
    let place = Place { database: Database::connect(&url).await.unwrap(), url, dir: None }.ready().await;
    let backend = backend();
    let mut tx = place.database.begin().await.unwrap();
    let bad = "convert_from('\\xff'::bytea, 'SQL_ASCII')";
    for (id, topic) in [("'a'", bad), (bad, "'lines'")] {
        run(
            &mut tx,
            &format!("INSERT INTO millstream_outbox (message_id, topic, payload) VALUES ({id}, {topic}, '')"),
        )
        .await;
    }
    tx.commit().await.unwrap();
    write(&place.database, 10).await;
    let relay = relay(&backend, &place.database).await;
    assert_eq!(sent(&backend, &place).await, 11, "a dedup id is any bytes");
    let dead = Outbox::new().dead(&place.database, 0, 10).await.unwrap();
    assert_eq!(
        dead.iter().map(|row| (&row.topic[..], &*row.kind)).collect::<Vec<_>>(),
        [(&b"\xff"[..], "invalid_name")]
    );
    relay.shutdown().await;
}
