//! The outbox's tables in SQLite. They have one shard, since SQLite has one writer at a time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::Result;
use sqlx::Row as _;
use sqlx::sqlite::SqlitePool;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{
    COUNTED, Failed, Grant, PageLimits, Sample, ShardLease, Shares, Store, duration, millis, missing,
};
use crate::database::begin;
use crate::error::{Phase, failed};
use crate::outbox::row::{RowName, StoredRow};

/// The time in milliseconds since 1970, by the clock of the machine that all its processes share.
macro_rules! now {
    () => {
        "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    };
}

/// Number of bytes of a column, zero for none.
macro_rules! bytes_of {
    ($column:literal) => {
        concat!(
            "CASE typeof(",
            $column,
            ") WHEN 'blob' THEN length(",
            $column,
            ") WHEN 'null' THEN 0 ELSE length(CAST(",
            $column,
            " AS BLOB)) END"
        )
    };
}

const ENLIST: &str = concat!(
    "INSERT INTO millstream_outbox_relays (holder, until) VALUES ($1, ",
    now!(),
    " + $2) ON CONFLICT (holder) DO UPDATE SET until = excluded.until"
);
const RENEW: &str =
    concat!("UPDATE millstream_outbox_leases SET until = ", now!(), " + $2 WHERE holder = $1");
const FORGET: &str = concat!("DELETE FROM millstream_outbox_relays WHERE until < ", now!(), " - 3600000");
const RELAYS: &str =
    concat!("SELECT holder FROM millstream_outbox_relays WHERE until >= ", now!(), " ORDER BY holder");
const LEASES: &str = concat!(
    "SELECT shard, epoch, CASE WHEN left >= 0 THEN holder END, holder IS NOT NULL AND left < 0, \
    max(left, 0) FROM (SELECT *, until - ",
    now!(),
    " AS left FROM millstream_outbox_leases) ORDER BY shard"
);
const ACQUIRE: &str = concat!(
    "UPDATE millstream_outbox_leases SET holder = $1, epoch = epoch + 1, until = ",
    now!(),
    " + $2 WHERE shard IN (SELECT value FROM json_each($3)) AND (holder IS NULL OR until < ",
    now!(),
    ") RETURNING shard, epoch"
);
const RELEASE: &str = "UPDATE millstream_outbox_leases SET holder = NULL \
    WHERE holder = $1 AND shard IN (SELECT value FROM json_each($2))";
const PROMOTE: &str = concat!(
    "UPDATE millstream_outbox SET due_at = NULL WHERE due_at IS NOT NULL AND dead_at IS NULL AND due_at <= ",
    now!()
);
const IS_DUE: &str = concat!(
    "SELECT count(*) FROM (SELECT 1 FROM millstream_outbox WHERE due_at IS NOT NULL AND dead_at IS NULL AND due_at <= ",
    now!(),
    " LIMIT 1)"
);
// Sizes are summed before a payload is read: the inner queries return numbers alone, since SQLite stores what they return. The
// length of a blob is known without reading it, that of a text is not. As bytes: what another program wrote as text may not
// be UTF-8.
const PAGE: &str = concat!(
    "SELECT m.id, CAST(m.message_id AS BLOB), CAST(m.topic AS BLOB), CAST(m.key AS BLOB), CAST(m.headers AS BLOB), \
     CASE WHEN q.payload_size <= $3 THEN CAST(m.payload AS BLOB) END FROM ( \
       SELECT id, payload_size, sum(size + payload_size) OVER (ORDER BY id) - size - payload_size AS size_before FROM ( \
         SELECT id, ",
    bytes_of!("payload"),
    " AS payload_size, ",
    bytes_of!("key"),
    " + ",
    bytes_of!("headers"),
    " AS size FROM millstream_outbox WHERE due_at IS NULL AND dead_at IS NULL ORDER BY id LIMIT $1)) q \
     CROSS JOIN millstream_outbox m ON m.id = q.id WHERE q.size_before < $2 ORDER BY q.id"
);
const HELD: &str =
    "SELECT count(*) FROM millstream_outbox_leases WHERE shard = 0 AND holder = $1 AND epoch = $2";
const DELETE: &str = "DELETE FROM millstream_outbox WHERE id IN (SELECT value FROM json_each($1))";
const FAIL: &str = concat!(
    "UPDATE millstream_outbox SET dead_at = ",
    now!(),
    ", error_kind = $2, error = $3, failures = failures + 1 WHERE id = $1"
);
const SAMPLE: &str = concat!(
    "SELECT (SELECT ",
    now!(),
    " - created_at FROM millstream_outbox WHERE due_at IS NULL AND dead_at IS NULL ORDER BY id LIMIT 1), \
    (SELECT count(*) FROM (SELECT 1 FROM millstream_outbox WHERE dead_at IS NOT NULL LIMIT $1))"
);

pub(super) struct SqliteStore(pub(super) SqlitePool);

/// Converts an error of a statement that has no effect, or can be repeated.
fn within(what: &'static str) -> impl Fn(sqlx::Error) -> millstream_core::Error {
    move |error| failed(error, Phase::Within, what)
}

fn json<N: ToString>(numbers: &[N]) -> String {
    format!("[{}]", numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

#[async_trait]
impl Store for SqliteStore {
    async fn renew(&self, me: &str, ttl: Duration) -> Result<Shares> {
        let error = within("renew leases of the outbox");
        let mut tx = begin(&self.0).await.map_err(&error)?;
        sqlx::query(ENLIST).bind(me).bind(millis(ttl)).execute(&mut *tx).await.map_err(&error)?;
        sqlx::query(RENEW).bind(me).bind(millis(ttl)).execute(&mut *tx).await.map_err(&error)?;
        sqlx::query(FORGET).execute(&mut *tx).await.map_err(&error)?;
        let relays = sqlx::query_scalar(RELAYS).fetch_all(&mut *tx).await.map_err(&error)?;
        let leases: Vec<(i16, i64, Option<String>, bool, i64)> =
            sqlx::query_as(LEASES).fetch_all(&mut *tx).await.map_err(&error)?;
        tx.commit().await.map_err(&error)?;
        let lease = |(shard, epoch, holder, is_expired, left)| {
            let expires_in = duration(left);
            ShardLease { shard, epoch, holder, is_expired, expires_in }
        };
        Ok(Shares { relays, leases: leases.into_iter().map(lease).collect() })
    }

    async fn acquire(&self, me: &str, ttl: Duration, shards: &[i16]) -> Result<Vec<Grant>> {
        let query = sqlx::query_as(ACQUIRE).bind(me).bind(millis(ttl)).bind(json(shards));
        let granted: Vec<(i16, i64)> =
            query.fetch_all(&self.0).await.map_err(within("acquire shards of the outbox"))?;
        Ok(granted.into_iter().map(|(shard, epoch)| Grant { shard, epoch }).collect())
    }

    async fn release(&self, me: &str, shards: &[i16]) -> Result<()> {
        let query = sqlx::query(RELEASE).bind(me).bind(json(shards));
        query.execute(&self.0).await.map(drop).map_err(within("release shards of the outbox"))
    }

    async fn leave(&self, me: &str) -> Result<()> {
        let error = within("leave the outbox");
        let free = "UPDATE millstream_outbox_leases SET holder = NULL WHERE holder = $1";
        sqlx::query(free).bind(me).execute(&self.0).await.map_err(&error)?;
        let gone = "DELETE FROM millstream_outbox_relays WHERE holder = $1";
        sqlx::query(gone).bind(me).execute(&self.0).await.map(drop).map_err(&error)
    }

    async fn promote(&self, _: &[i16]) -> Result<u64> {
        let error = within("promote rows of the outbox");
        // An update takes the lock for writing, also one that changes nothing.
        let due: i64 = sqlx::query_scalar(IS_DUE).fetch_one(&self.0).await.map_err(&error)?;
        if due == 0 {
            return Ok(0);
        }
        let done = sqlx::query(PROMOTE).execute(&self.0).await;
        done.map(|done| done.rows_affected()).map_err(&error)
    }

    async fn page(&self, _: &[i16], limits: PageLimits) -> Result<Vec<StoredRow>> {
        let error = within("read the outbox");
        let query = sqlx::query(PAGE).bind(limits.rows).bind(limits.bytes).bind(limits.payload);
        let rows = query.fetch_all(&self.0).await.map_err(&error)?;
        let row = |row: sqlx::sqlite::SqliteRow| -> sqlx::Result<StoredRow> {
            Ok(StoredRow {
                shard: 0,
                id: row.try_get(0)?,
                is_settled: true,
                message_id: row.try_get(1)?,
                topic: row.try_get(2)?,
                key: row.try_get(3)?,
                headers: row.try_get(4)?,
                payload: row.try_get(5)?,
            })
        };
        rows.into_iter().map(row).collect::<sqlx::Result<_>>().map_err(&error)
    }

    async fn settle(
        &self,
        me: &str,
        _: Duration,
        grants: &[Grant],
        stored: &[RowName],
        failed_rows: &[Failed],
    ) -> Result<Vec<i16>> {
        let error = within("delete from the outbox");
        let epoch = grants.first().map_or(-1, |grant| grant.epoch);
        let mut tx = begin(&self.0).await.map_err(&error)?;
        let held = sqlx::query_scalar(HELD).bind(me).bind(epoch);
        let held: i64 = held.fetch_one(&mut *tx).await.map_err(&error)?;
        if held == 0 {
            tx.rollback().await.map_err(&error)?;
            return Ok(Vec::new());
        }
        // Ids are compared alone: a file has no copy that takes over, and gives out no id again.
        let stored: Vec<i64> = stored.iter().map(|row| row.id).collect();
        sqlx::query(DELETE).bind(json(&stored)).execute(&mut *tx).await.map_err(&error)?;
        for failed in failed_rows {
            let fail = sqlx::query(FAIL).bind(failed.row.id).bind(failed.kind.as_str()).bind(&failed.error);
            fail.execute(&mut *tx).await.map_err(&error)?;
        }
        tx.commit().await.map_err(|error| failed(error, Phase::Commit, "delete from the outbox"))?;
        Ok(vec![0])
    }

    async fn sample(&self) -> Result<Sample> {
        let error = within("sample the outbox");
        let row: Option<(Option<i64>, i64)> =
            sqlx::query_as(SAMPLE).bind(COUNTED).fetch_optional(&self.0).await.map_err(&error)?;
        let (oldest, dead) = row.ok_or_else(missing)?;
        let dead = u64::try_from(dead).unwrap_or(0);
        Ok(Sample { oldest: oldest.map(duration), dead, ..Sample::default() })
    }

    fn listen(&self, _: Arc<Notify>) -> Option<AbortOnDropHandle<()>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Database, migrate};

    /// Rows of 1 MiB, this many of them.
    async fn large(rows: u32) -> (tempfile::TempDir, Arc<dyn Store>) {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("test.db").display());
        let database = Database::connect(&url).await.unwrap();
        migrate(&database).await.unwrap();
        let fill = format!(
            "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {rows}) \
             INSERT INTO millstream_outbox (topic, payload) SELECT 't', zeroblob(1048576) FROM s RETURNING id"
        );
        database.rows(&fill, &[], "fill").await.unwrap();
        (folder, crate::outbox::store::open(&database))
    }

    #[tokio::test]
    async fn a_page_reads_the_payloads_of_its_rows_only() {
        let stores = [large(8).await, large(160).await];
        let limits = PageLimits { per_shard: 500, rows: 500, bytes: 8 << 20, payload: 1 << 20 };
        // The best of some, in turn: the machine may be slower for a while.
        let mut best = [Duration::MAX; 2];
        for _ in 0..7 {
            for ((_, store), best) in stores.iter().zip(&mut best) {
                let began = Instant::now();
                assert_eq!(store.page(&[0], limits).await.unwrap().len(), 8);
                *best = began.elapsed().min(*best);
            }
        }
        let [few, many] = best;
        println!("8 rows: {few:?}, 160 rows: {many:?}");
        // All of them would be twenty times as much.
        assert!(
            many < few * 6,
            "a page takes {many:?} beside 152 rows that are not in it, and {few:?} alone"
        );
    }

    #[tokio::test]
    async fn keys_and_headers_count_and_a_giant_payload_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("test.db").display());
        let database = Database::connect(&url).await.unwrap();
        migrate(&database).await.unwrap();
        let fill = "INSERT INTO millstream_outbox (topic, key, headers, payload) VALUES \
            ('t', NULL, NULL, zeroblob(101)), ('t', zeroblob(600), NULL, 'text'), \
            ('t', NULL, printf('%.600c', 'x'), zeroblob(100)), ('t', NULL, NULL, x'00') RETURNING id";
        database.rows(fill, &[], "fill").await.unwrap();
        let limits = PageLimits { per_shard: 500, rows: 500, bytes: 1_000, payload: 100 };
        let page = crate::outbox::store::open(&database).page(&[0], limits).await.unwrap();
        let sizes: Vec<_> = page.iter().map(|row| row.payload.as_ref().map(Vec::len)).collect();
        assert_eq!(sizes, [None, Some(4), Some(100)], "the fourth is behind 1,405 bytes");
    }
}
