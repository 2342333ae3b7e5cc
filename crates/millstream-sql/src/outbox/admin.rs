//! Operations on the outbox's table: its state, and the rows that cannot be sent.

use std::time::Duration;

use millstream_core::error::Result;

use super::Outbox;
use super::store;
use crate::database::{Arg, Database};

/// State of an outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxStatus {
    /// Age of the oldest row that could be sent; `None` if there is none.
    pub oldest: Option<Duration>,
    /// Age of the oldest running transaction that holds back a row; `None` if none does. Always `None` on SQLite.
    pub blocked: Option<Duration>,
    /// Whose transaction that is: process id, application and state, or the name of a prepared transaction. Empty if none.
    pub blocker: String,
    /// Number of dead rows, counted up to 10,000.
    pub dead: u64,
}

/// Row that a relay gave up. It stays in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadRow {
    /// Id of the row.
    pub id: i64,
    /// Dedup id of the message.
    pub message_id: Vec<u8>,
    /// Topic that the row names, which may be no valid name.
    pub topic: Vec<u8>,
    /// Kind of the error, as [`ErrorKind::as_str`](millstream_core::ErrorKind::as_str) writes it.
    pub kind: String,
    /// Text of the error.
    pub error: String,
    /// Number of times that it was given up.
    pub failures: u32,
}

const DEAD_POSTGRES: &str = concat!(
    "SELECT id, ",
    text_bytes!("message_id"),
    ", ",
    text_bytes!("topic"),
    ", COALESCE(error_kind, ''), COALESCE(error, ''), failures::bigint FROM millstream_outbox \
    WHERE dead_at IS NOT NULL AND id > $1 ORDER BY id LIMIT $2"
);
const DEAD_SQLITE: &str = "SELECT id, CAST(message_id AS BLOB), CAST(topic AS BLOB), \
    COALESCE(error_kind, ''), COALESCE(error, ''), failures FROM millstream_outbox \
    WHERE dead_at IS NOT NULL AND id > $1 ORDER BY id LIMIT $2";

impl Outbox {
    /// Returns the state of the table.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn status(&self, database: &Database) -> Result<OutboxStatus> {
        Ok(store::open(database).sample().await?.into())
    }

    /// Returns up to `limit` dead rows with an id above `after`, in the order of their ids. Begin with 0.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn dead(&self, database: &Database, after: i64, limit: u32) -> Result<Vec<DeadRow>> {
        let sql = database.sql(DEAD_POSTGRES, DEAD_SQLITE);
        let args = [Arg::Int(after), Arg::Int(limit.into())];
        let rows = database.rows(sql, &args, "list dead rows of the outbox").await?;
        let dead = |row: &crate::database::Row| {
            Ok(DeadRow {
                id: row.int(0)?,
                message_id: row.bytes(1)?,
                topic: row.bytes(2)?,
                kind: row.text(3)?,
                error: row.text(4)?,
                failures: u32::try_from(row.int(5)?).unwrap_or(u32::MAX),
            })
        };
        rows.iter().map(dead).collect()
    }

    /// Has these dead rows sent again. Returns how many of them were dead. A row that was given up comes behind later ones of
    /// its key that were sent meanwhile.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn retry(&self, database: &Database, ids: &[i64]) -> Result<usize> {
        let sql = database.sql(
            "UPDATE millstream_outbox SET dead_at = NULL WHERE dead_at IS NOT NULL AND id = ANY($1) RETURNING id",
            "UPDATE millstream_outbox SET dead_at = NULL \
             WHERE dead_at IS NOT NULL AND id IN (SELECT value FROM json_each($1)) RETURNING id",
        );
        let rows = database.rows(sql, &[Arg::Ints(ids)], "retry dead rows of the outbox").await?;
        Ok(rows.len())
    }
}

impl From<store::Sample> for OutboxStatus {
    fn from(sample: store::Sample) -> Self {
        let store::Sample { oldest, blocked, blocker, dead } = sample;
        Self { oldest, blocked, blocker, dead }
    }
}
