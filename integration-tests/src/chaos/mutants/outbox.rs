//! A relay that remembers the last id that it has read.
//!
//! The product's relay remembers no position, so there is nothing in it that a switch could turn into this mistake. This is a
//! relay of its own, as it is often written, on the product's tables and with its producers. It takes the place of the
//! product's in a run with [`Mutant::IdCursorOutbox`](super::Mutant::IdCursorOutbox). Everything else is right: one relay reads at
//! a time, a row is sent under its dedup id, and it is deleted after that.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use millstream::sql::sqlx::{self, PgPool};
use millstream::{Millstream, Producer, Topic};

const PREPARE: &str = "CREATE TABLE IF NOT EXISTS mutant_outbox_cursor (single boolean PRIMARY KEY, last bigint NOT NULL); \
    INSERT INTO mutant_outbox_cursor VALUES (true, 0) ON CONFLICT DO NOTHING";
/// One relay reads at a time. The number is arbitrary.
const LOCK: &str = "SELECT pg_advisory_xact_lock(720114)";
/// Rows that were delayed are no part of the mistake.
const PAGE: &str = "SELECT id, message_id, topic, key, headers::text, payload FROM millstream_outbox \
    WHERE dead_at IS NULL AND (due_at IS NULL AND id > (SELECT last FROM mutant_outbox_cursor) OR due_at <= clock_timestamp()) \
    ORDER BY id LIMIT 100";
const MOVE: &str = "UPDATE mutant_outbox_cursor SET last = greatest(last, $1)";
const DELETE: &str = "DELETE FROM millstream_outbox WHERE id = ANY($1)";

/// Pause after a page that was empty, or an error.
const PAUSE: Duration = Duration::from_millis(20);

type Row = (i64, String, String, Option<Vec<u8>>, Option<String>, Vec<u8>);

/// A relay of an outbox in PostgreSQL. SQLite has one writer at a time: there the mistake would be none.
pub struct Relay {
    mq: Millstream,
    pool: PgPool,
    producers: BTreeMap<String, Producer<Bytes>>,
}

impl Relay {
    /// Opens a relay of the outbox in the database of this URL.
    ///
    /// # Errors
    /// If the database is away.
    pub async fn open(mq: &Millstream, database: &str) -> Result<Self> {
        let pool = PgPool::connect(database).await.context("connect to the database")?;
        let mut tx = pool.begin().await?;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        sqlx::raw_sql(PREPARE).execute(&mut *tx).await.context("create the cursor")?;
        tx.commit().await?;
        Ok(Self { mq: mq.clone(), pool, producers: BTreeMap::new() })
    }

    /// Sends a page of rows. Returns their number.
    ///
    /// # Errors
    /// If the database or the queue is away. Then the rows are sent again by the next call.
    pub async fn step(&mut self) -> Result<usize> {
        let mut tx = self.pool.begin().await?;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let rows: Vec<Row> = sqlx::query_as(PAGE).fetch_all(&mut *tx).await.context("read the outbox")?;
        for (_, message_id, topic, key, headers, payload) in &rows {
            let payload = Bytes::copy_from_slice(payload);
            let producer = self.producer(topic).await?;
            let mut send = producer.send(&payload).dedup(message_id);
            if let Some(key) = key {
                send = send.key(key);
            }
            if let Some(headers) = headers {
                // Pairs, as the product writes those that are text.
                let headers: Vec<(String, String)> = serde_json::from_str(headers).context("headers")?;
                for (name, value) in headers {
                    send = send.header(name, value);
                }
            }
            send.await?;
        }
        let ids: Vec<i64> = rows.iter().map(|row| row.0).collect();
        if let Some(last) = ids.iter().max() {
            sqlx::query(MOVE).bind(last).execute(&mut *tx).await?;
            sqlx::query(DELETE).bind(&ids).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(rows.len())
    }

    async fn producer(&mut self, topic: &str) -> Result<&Producer<Bytes>> {
        if !self.producers.contains_key(topic) {
            let name = topic.to_owned();
            // A topic of this type has a name that lives for ever, and there are few.
            let producer = self.mq.producer(Topic::raw(topic.to_owned().leak())).await?;
            self.producers.insert(name, producer);
        }
        self.producers.get(topic).context("it was inserted")
    }
}

/// Relays the outbox in the database of this URL until the process ends.
///
/// # Errors
/// If the database is away at the beginning; later errors are tried again.
pub async fn relay(mq: &Millstream, database: &str) -> Result<Infallible> {
    let mut relay = Relay::open(mq, database).await?;
    loop {
        match relay.step().await {
            Ok(1..) => {}
            Ok(0) => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                tracing::debug!(%error, "the rows are sent again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
