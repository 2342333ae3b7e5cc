//! Parts of the tests of the outbox: databases of their own, and what is stored in topics.

use bytes::Bytes;
use millstream::sql::{Database, migrate, sqlx};
use millstream::{Envelope, Limits, Topic};
use millstream_core::inspect::{Range, Stream};
use millstream_core::{Backend, wire};
use serde::{Deserialize, Serialize};
use sqlx::Executor as _;

use crate::databases::postgres;

/// What a `relay` process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// URL of the queue.
    pub queue: String,
    /// Its namespace.
    pub namespace: String,
    /// URL of the database.
    pub database: String,
    /// Ttl of the leases in milliseconds.
    pub ttl_ms: u64,
    /// Rows of a batch.
    pub batch: usize,
}

/// Creates a database with the tables on the shared PostgreSQL, and returns its URL.
///
/// # Panics
/// If PostgreSQL is not installed.
pub async fn postgres_url() -> String {
    let shared = tokio::task::spawn_blocking(postgres::shared_url).await.expect("a server");
    postgres_url_on(&shared).await
}

/// Creates a database with the tables on this server, and returns its URL.
///
/// # Panics
/// If the server is away.
pub async fn postgres_url_on(server: &str) -> String {
    let name = format!("outbox_{}", uuid::Uuid::new_v4().simple());
    let admin = sqlx::PgPool::connect(server).await.expect("connected");
    admin.execute(sqlx::query(&format!("CREATE DATABASE {name}"))).await.expect("created");
    admin.close().await;
    let (base, _) = server.rsplit_once('/').expect("a database in the URL");
    let url = format!("{base}/{name}");
    let database = Database::connect(&url).await.expect("connected");
    migrate(&database).await.expect("migrated");
    database.close().await;
    url
}

/// Returns the messages of a topic, by partition.
///
/// # Panics
/// If they cannot be read.
pub async fn stored<T>(backend: &Backend, topic: &Topic<T>) -> Vec<Vec<Envelope>> {
    let spec = backend.catalog().topic(&topic.spec().expect("valid").name).await.expect("a topic");
    let mut all = Vec::new();
    for place in spec.iter() {
        let (mut messages, mut range) = (Vec::new(), Range::ALL);
        loop {
            let inspect = backend.inspect().expect("it can be inspected");
            let page = inspect.entries(&place, &Stream::Log, range, 1_000).await.expect("a page");
            let Some(last) = page.items.last() else { break };
            range = range.behind(last.id);
            let message = |it: &millstream_core::inspect::Stored| {
                wire::decode_body(&it.fields, &Limits::default()).expect("a message")
            };
            messages.extend(page.items.iter().map(message));
        }
        all.push(messages);
    }
    all
}

/// Returns the payloads of a topic as text, those of one partition behind those of the one before.
///
/// # Panics
/// If they cannot be read.
pub async fn texts<T>(backend: &Backend, topic: &Topic<T>) -> Vec<String> {
    let text = |payload: &Bytes| String::from_utf8_lossy(payload).into_owned();
    stored(backend, topic).await.iter().flatten().map(|it| text(&it.payload)).collect()
}
