//! The outbox's tables in PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::Result;
use sqlx::Row as _;
use sqlx::postgres::{PgListener, PgPool};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{
    COUNTED, Failed, Grant, PageLimits, Sample, ShardLease, Shares, Store, duration, millis, missing,
};
use crate::database::begin;
use crate::database::pooler::shares_sessions;
use crate::error::{Phase, failed};
use crate::outbox::row::{RowName, StoredRow};

/// Channel of the notifications, which the trigger of the table names too.
const CHANNEL: &str = "millstream_outbox";

/// Number of connections from which on one may be kept for notifications.
const CONNECTIONS: u32 = 3;

/// Pause before notifications are asked for again.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Shortest limit of the idle time in a transaction: a busy machine may pause a relay that lives.
const SHORTEST_IDLE: Duration = Duration::from_secs(1);

const ENLIST: &str = "INSERT INTO millstream_outbox_relays (holder, until) \
    VALUES ($1, clock_timestamp() + $2 * interval '1 millisecond') ON CONFLICT (holder) DO UPDATE SET until = excluded.until";
const RENEW: &str = "UPDATE millstream_outbox_leases SET until = clock_timestamp() + $2 * interval '1 millisecond' \
    WHERE holder = $1";
const RELAYS: &str =
    "SELECT holder FROM millstream_outbox_relays WHERE until >= clock_timestamp() ORDER BY holder";
const FORGET: &str =
    "DELETE FROM millstream_outbox_relays WHERE until < clock_timestamp() - interval '1 hour'";
const LEASES: &str = "SELECT shard, epoch, CASE WHEN until >= clock_timestamp() THEN holder END, \
    holder IS NOT NULL AND until < clock_timestamp(), \
    CASE WHEN until >= clock_timestamp() \
    THEN (extract(epoch FROM until - clock_timestamp()) * 1000)::bigint ELSE 0 END \
    FROM millstream_outbox_leases ORDER BY shard";

// One that somebody else is about to take is passed over, so that two relays cannot wait for each other.
const ACQUIRE: &str = "UPDATE millstream_outbox_leases SET holder = $1, epoch = epoch + 1, \
    until = clock_timestamp() + $2 * interval '1 millisecond' WHERE shard IN ( \
    SELECT shard FROM millstream_outbox_leases WHERE shard = ANY($3) AND (holder IS NULL OR until < clock_timestamp()) \
    ORDER BY shard FOR UPDATE SKIP LOCKED) RETURNING shard, epoch";
const RELEASE: &str =
    "UPDATE millstream_outbox_leases SET holder = NULL WHERE holder = $1 AND shard = ANY($2)";

const PROMOTE: &str = "UPDATE millstream_outbox SET due_at = NULL \
    WHERE due_at <= clock_timestamp() AND dead_at IS NULL AND shard = ANY($1)";

// The watermark: a row whose transaction is below `xmin` was written before all that run now. One at `xmax` or above comes
// from another database, by a restored dump, since this one has not given that number to anybody.
//
// Sizes are summed before a payload is read. `octet_length` does not load a payload that is stored apart. One above the limit is
// not read at all.
const PAGE: &str = concat!(
    "SELECT shard, id, tx < xmin OR tx >= xmax, ",
    text_bytes!("message_id"),
    ", ",
    text_bytes!("topic"),
    ", key, ",
    text_bytes!("headers::text"),
    ", \
    CASE WHEN octet_length(payload) <= $5 THEN payload END FROM ( \
      SELECT o.*, sum(o.size) OVER (ORDER BY o.nth, o.shard) - o.size AS size_before \
      FROM unnest($1::smallint[]) AS s(shard) CROSS JOIN LATERAL ( \
        SELECT p.*, octet_length(p.payload)::bigint + COALESCE(octet_length(p.key), 0) \
          + COALESCE(octet_length(p.headers::text), 0) AS size, row_number() OVER (ORDER BY p.id) AS nth FROM ( \
          SELECT * FROM millstream_outbox m \
          WHERE m.shard = s.shard AND m.due_at IS NULL AND m.dead_at IS NULL ORDER BY m.id LIMIT $2) p) o \
      ORDER BY o.nth, o.shard LIMIT $3) q, \
    (SELECT pg_snapshot_xmin(w) AS xmin, pg_snapshot_xmax(w) AS xmax FROM pg_current_snapshot() w) x \
    WHERE size_before < $4 ORDER BY nth, shard",
);

// `FOR SHARE`: a relay that takes a shard over waits until this is committed, or this sees the new holder. The limit of idle
// time is set with it, for this transaction alone, so that it costs no request of its own. If the relay vanished before the
// commit, the lock would keep the shard from all others, and the number of its transaction would hold back all later rows.
const HELD: &str = "SELECT l.shard FROM millstream_outbox_leases l \
    JOIN unnest($2::smallint[], $3::bigint[]) AS g(shard, epoch) ON l.shard = g.shard AND l.epoch = g.epoch \
    CROSS JOIN (SELECT set_config('idle_in_transaction_session_timeout', $4, true) AS idle) AS s \
    WHERE l.holder = $1 AND s.idle IS NOT NULL ORDER BY l.shard FOR SHARE OF l";
const DELETE: &str = concat!(
    "DELETE FROM millstream_outbox o USING unnest($1::bigint[], $2::bytea[]) AS s(id, message_id) \
    WHERE o.id = s.id AND ",
    text_bytes!("o.message_id"),
    " = s.message_id AND o.shard = ANY($3)",
);
const FAIL: &str = concat!(
    "UPDATE millstream_outbox o SET dead_at = clock_timestamp(), error_kind = f.kind, error = f.error, \
    failures = o.failures + 1 \
    FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::text[]) AS f(id, message_id, kind, error) \
    WHERE o.id = f.id AND ",
    text_bytes!("o.message_id"),
    " = f.message_id AND o.shard = ANY($5)",
);

const OLDEST: &str = "SELECT \
    max((extract(epoch FROM clock_timestamp() - o.created_at) * 1000)::bigint), \
    COALESCE(bool_or(o.tx >= xmin AND o.tx < xmax), false), min(xmin::text), \
    (SELECT count(*) FROM (SELECT 1 FROM millstream_outbox WHERE dead_at IS NOT NULL LIMIT $1) d) \
    FROM (SELECT pg_snapshot_xmin(w) AS xmin, pg_snapshot_xmax(w) AS xmax FROM pg_current_snapshot() w) x \
    LEFT JOIN millstream_outbox_leases l ON true LEFT JOIN LATERAL ( \
      SELECT created_at, tx FROM millstream_outbox m \
      WHERE m.shard = l.shard AND m.due_at IS NULL AND m.dead_at IS NULL ORDER BY m.id LIMIT 1) o ON true";

// Everybody may read locks; what others may not read of a session is NULL. A prepared transaction has no process.
const BLOCKER: &str = "SELECT k.pid, a.application_name, a.state, \
    (extract(epoch FROM clock_timestamp() - COALESCE(a.xact_start, p.prepared)) * 1000)::bigint, p.gid \
    FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid \
    LEFT JOIN pg_prepared_xacts p ON p.transaction = k.transactionid \
    WHERE k.locktype = 'transactionid' AND k.mode = 'ExclusiveLock' AND k.granted \
    AND k.transactionid = $1::xid8::xid LIMIT 1";

pub(super) struct PostgresStore(pub(super) PgPool);

/// Converts an error of a statement that has no effect, or can be repeated.
fn within(what: &'static str) -> impl Fn(sqlx::Error) -> millstream_core::Error {
    move |error| failed(error, Phase::Within, what)
}

fn names<'a>(rows: impl Iterator<Item = &'a RowName>) -> (Vec<i64>, Vec<&'a [u8]>) {
    rows.map(|row| (row.id, &row.message_id[..])).unzip()
}

#[async_trait]
impl Store for PostgresStore {
    async fn renew(&self, me: &str, ttl: Duration) -> Result<Shares> {
        let error = within("renew leases of the outbox");
        let mut conn = self.0.acquire().await.map_err(&error)?;
        sqlx::query(ENLIST).bind(me).bind(millis(ttl)).execute(&mut *conn).await.map_err(&error)?;
        sqlx::query(RENEW).bind(me).bind(millis(ttl)).execute(&mut *conn).await.map_err(&error)?;
        sqlx::query(FORGET).execute(&mut *conn).await.map_err(&error)?;
        let relays = sqlx::query_scalar(RELAYS).fetch_all(&mut *conn).await.map_err(&error)?;
        let leases: Vec<(i16, i64, Option<String>, bool, i64)> =
            sqlx::query_as(LEASES).fetch_all(&mut *conn).await.map_err(&error)?;
        let lease = |(shard, epoch, holder, is_expired, left)| {
            let expires_in = duration(left);
            ShardLease { shard, epoch, holder, is_expired, expires_in }
        };
        Ok(Shares { relays, leases: leases.into_iter().map(lease).collect() })
    }

    async fn acquire(&self, me: &str, ttl: Duration, shards: &[i16]) -> Result<Vec<Grant>> {
        let query = sqlx::query_as(ACQUIRE).bind(me).bind(millis(ttl)).bind(shards);
        let granted: Vec<(i16, i64)> =
            query.fetch_all(&self.0).await.map_err(within("acquire shards of the outbox"))?;
        Ok(granted.into_iter().map(|(shard, epoch)| Grant { shard, epoch }).collect())
    }

    async fn release(&self, me: &str, shards: &[i16]) -> Result<()> {
        let query = sqlx::query(RELEASE).bind(me).bind(shards);
        query.execute(&self.0).await.map(drop).map_err(within("release shards of the outbox"))
    }

    async fn leave(&self, me: &str) -> Result<()> {
        let error = within("leave the outbox");
        let free = "UPDATE millstream_outbox_leases SET holder = NULL WHERE holder = $1";
        sqlx::query(free).bind(me).execute(&self.0).await.map_err(&error)?;
        let gone = "DELETE FROM millstream_outbox_relays WHERE holder = $1";
        sqlx::query(gone).bind(me).execute(&self.0).await.map(drop).map_err(&error)
    }

    async fn promote(&self, shards: &[i16]) -> Result<u64> {
        let done = sqlx::query(PROMOTE).bind(shards).execute(&self.0).await;
        done.map(|done| done.rows_affected()).map_err(within("promote rows of the outbox"))
    }

    async fn page(&self, shards: &[i16], limits: PageLimits) -> Result<Vec<StoredRow>> {
        let error = within("read the outbox");
        let PageLimits { per_shard, rows, bytes, payload } = limits;
        let query = sqlx::query(PAGE).bind(shards).bind(per_shard).bind(rows).bind(bytes).bind(payload);
        let rows = query.fetch_all(&self.0).await.map_err(&error)?;
        let row = |row: sqlx::postgres::PgRow| -> sqlx::Result<StoredRow> {
            Ok(StoredRow {
                shard: row.try_get(0)?,
                id: row.try_get(1)?,
                is_settled: row.try_get(2)?,
                message_id: row.try_get(3)?,
                topic: row.try_get(4)?,
                key: row.try_get(5)?,
                headers: row.try_get(6)?,
                payload: row.try_get(7)?,
            })
        };
        rows.into_iter().map(row).collect::<sqlx::Result<_>>().map_err(&error)
    }

    async fn settle(
        &self,
        me: &str,
        ttl: Duration,
        grants: &[Grant],
        stored: &[RowName],
        failed_rows: &[Failed],
    ) -> Result<Vec<i16>> {
        let error = within("delete from the outbox");
        let (shards, epochs): (Vec<i16>, Vec<i64>) = grants.iter().map(|it| (it.shard, it.epoch)).unzip();
        let mut tx = begin(&self.0).await.map_err(&error)?;
        let idle = millis(ttl.max(SHORTEST_IDLE)).to_string();
        let held = sqlx::query_scalar(HELD).bind(me).bind(shards).bind(epochs).bind(idle);
        let held: Vec<i16> = held.fetch_all(&mut *tx).await.map_err(&error)?;
        if !stored.is_empty() {
            let (ids, message_ids) = names(stored.iter());
            let delete = sqlx::query(DELETE).bind(ids).bind(message_ids).bind(&held);
            delete.execute(&mut *tx).await.map_err(&error)?;
        }
        if !failed_rows.is_empty() {
            let (ids, message_ids) = names(failed_rows.iter().map(|it| &it.row));
            let kinds: Vec<&str> = failed_rows.iter().map(|it| it.kind.as_str()).collect();
            // A text of PostgreSQL cannot hold NUL, and the error may quote a name.
            let errors: Vec<String> = failed_rows.iter().map(|it| it.error.replace('\0', " ")).collect();
            let fail = sqlx::query(FAIL).bind(ids).bind(message_ids).bind(kinds).bind(errors).bind(&held);
            fail.execute(&mut *tx).await.map_err(&error)?;
        }
        tx.commit().await.map_err(|error| failed(error, Phase::Commit, "delete from the outbox"))?;
        Ok(held)
    }

    async fn sample(&self) -> Result<Sample> {
        let error = within("sample the outbox");
        let row: Option<(Option<i64>, bool, String, i64)> =
            sqlx::query_as(OLDEST).bind(COUNTED).fetch_optional(&self.0).await.map_err(&error)?;
        let (oldest, is_blocked, xmin, dead) = row.ok_or_else(missing)?;
        let mut sample = Sample {
            oldest: oldest.map(duration),
            dead: u64::try_from(dead).unwrap_or(0),
            ..Sample::default()
        };
        if !is_blocked {
            return Ok(sample);
        }
        type Blocker = (Option<i32>, Option<String>, Option<String>, Option<i64>, Option<String>);
        let blocker: Option<Blocker> =
            sqlx::query_as(BLOCKER).bind(xmin).fetch_optional(&self.0).await.map_err(&error)?;
        // `None`: it has ended since.
        if let Some((pid, application, state, age, gid)) = blocker {
            // Its age is not shown to everybody. The row that it holds back is as old at most.
            sample.blocked = age.map(duration).or(sample.oldest);
            sample.blocker = match (pid, gid) {
                (Some(pid), _) => {
                    let known = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
                    format!("pid {pid}, application {:?}, {}", known(application), known(state))
                }
                (None, Some(gid)) => format!("prepared transaction {gid:?}"),
                (None, None) => "a prepared transaction of another database".into(),
            };
        }
        Ok(sample)
    }

    fn listen(&self, wake: Arc<Notify>) -> Option<AbortOnDropHandle<()>> {
        let pool = self.0.clone();
        if pool.options().get_max_connections() < CONNECTIONS {
            tracing::info!(
                "the outbox is polled: its pool has too few connections to keep one for notifications"
            );
            return None;
        }
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            // Rows are found without it, too, so its errors are nobody's concern: those of the database are logged by the
            // relay.
            loop {
                match notified(&pool, &wake).await {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::info!(
                            "the outbox is polled: a pooler gives each transaction another session"
                        );
                        return;
                    }
                    Err(error) => tracing::debug!(%error, "no notifications of the outbox, will try again"),
                }
                tokio::time::sleep(LISTEN_AGAIN).await;
            }
        })))
    }
}

/// Passes notifications on until the connection breaks. Returns `false` without listening if sessions are shared: others would
/// receive the notifications, amid their transactions, which then fail.
async fn notified(pool: &PgPool, wake: &Notify) -> sqlx::Result<bool> {
    let (mut first, mut second) = (pool.acquire().await?, pool.acquire().await?);
    if shares_sessions(&mut first, &mut second).await? {
        return Ok(false);
    }
    drop((first, second));
    let mut listener = PgListener::connect_with(pool).await?;
    // What it listens through is looked at again, too.
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    loop {
        // What was committed before is not notified.
        wake.notify_one();
        if listener.try_recv().await?.is_none() {
            return Ok(true);
        }
    }
}
