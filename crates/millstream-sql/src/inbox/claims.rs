//! Statements on the table of the inbox.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::idempotency::Operation;

use super::{Claimed, Fence, Inbox};
use crate::database::{Arg, Conn, Database, Row};

/// Attempts of a claim whose row expires or is deleted between its two statements.
const TRIES: u32 = 5;

/// Inserts a marker, or replaces one that has expired. A row of a transaction that has not ended makes it wait. The limit of idle
/// time is set with it, for this transaction alone, so that it costs no request of its own; empty: it stays as it is.
#[cfg(feature = "postgres")]
const CLAIM_PG: &str = "\
    INSERT INTO millstream_inbox AS i (scope, id, fence, result, expires_at) \
    SELECT $1, $2, $3, NULL, clock_timestamp() + $4 * interval '1 millisecond' FROM (\
        SELECT CASE WHEN $5 = '' THEN '' \
               ELSE set_config('idle_in_transaction_session_timeout', $5, true) END AS idle\
    ) AS s WHERE s.idle IS NOT NULL \
    ON CONFLICT (scope, id) DO UPDATE \
    SET fence = excluded.fence, result = NULL, expires_at = excluded.expires_at \
    WHERE i.expires_at <= clock_timestamp() RETURNING 1::bigint";
#[cfg(feature = "sqlite")]
const CLAIM_LITE: &str = "\
    INSERT INTO millstream_inbox (scope, id, fence, result, expires_at) \
    VALUES ($1, $2, $3, NULL, CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) + $4) \
    ON CONFLICT (scope, id) DO UPDATE \
    SET fence = excluded.fence, result = NULL, expires_at = excluded.expires_at \
    WHERE millstream_inbox.expires_at <= CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) RETURNING 1";

/// The same for many ids, in their order: two transactions that share some of them meet at the first, and do not deadlock.
#[cfg(feature = "postgres")]
const CLAIM_ALL_PG: &str = "\
    INSERT INTO millstream_inbox AS i (scope, id, fence, result, expires_at) \
    SELECT $1, u.id, $3, NULL, clock_timestamp() + $4 * interval '1 millisecond' \
    FROM unnest($2::bytea[]) AS u (id) CROSS JOIN (\
        SELECT CASE WHEN $5 = '' THEN '' \
               ELSE set_config('idle_in_transaction_session_timeout', $5, true) END AS idle\
    ) AS s WHERE s.idle IS NOT NULL ORDER BY u.id \
    ON CONFLICT (scope, id) DO UPDATE \
    SET fence = excluded.fence, result = NULL, expires_at = excluded.expires_at \
    WHERE i.expires_at <= clock_timestamp() RETURNING i.id";
// `WHERE true`: else the parser takes ON for that of a join.
#[cfg(feature = "sqlite")]
const CLAIM_ALL_LITE: &str = "\
    INSERT INTO millstream_inbox (scope, id, fence, result, expires_at) \
    SELECT $1, unhex(value), $3, NULL, CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) + $4 \
    FROM json_each($2) WHERE true \
    ON CONFLICT (scope, id) DO UPDATE \
    SET fence = excluded.fence, result = NULL, expires_at = excluded.expires_at \
    WHERE millstream_inbox.expires_at <= CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) RETURNING id";

const LOOK_PG: &str =
    "SELECT result FROM millstream_inbox WHERE scope = $1 AND id = $2 AND expires_at > clock_timestamp()";
const LOOK_LITE: &str = "\
    SELECT result FROM millstream_inbox WHERE scope = $1 AND id = $2 \
    AND expires_at > CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)";

/// Looks for a marker at the start of a transaction, and limits its idle time.
const LOOK_FIRST_PG: &str = "\
    SELECT i.result, i.id IS NOT NULL, set_config('idle_in_transaction_session_timeout', $3, true) \
    FROM (SELECT 1) AS one LEFT JOIN millstream_inbox AS i \
    ON i.scope = $1 AND i.id = $2 AND i.expires_at > clock_timestamp()";

/// Adds the result, and begins the retention anew.
const FINISH_PG: &str = "\
    UPDATE millstream_inbox SET result = $3, expires_at = clock_timestamp() + $4 * interval '1 millisecond' \
    WHERE scope = $1 AND id = $2 RETURNING 1::bigint";
const FINISH_LITE: &str = "\
    UPDATE millstream_inbox SET result = $3, \
        expires_at = CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) + $4 \
    WHERE scope = $1 AND id = $2 RETURNING 1";

/// Writes the marker of one operation, with a limit of idle time for this transaction if one is given.
pub(super) async fn one(
    conn: &mut Conn<'_>,
    inbox: &Inbox,
    operation: &Operation,
    fence: Option<&Fence>,
    idle: Option<Duration>,
) -> Result<Claimed> {
    let what = "claim an operation";
    let (scope, retention) = (inbox.scope(operation), millis(inbox.retention));
    let (id, epoch) = (Arg::Bytes(operation.id()), Arg::Int(fence.map_or(0, Fence::stored)));
    let idle = idle.map(|idle| millis(idle).to_string()).unwrap_or_default();
    for _ in 0..TRIES {
        let claim = [Arg::Text(&scope), id, epoch, Arg::Int(retention), Arg::Text(&idle)];
        // SQLite takes no argument that its statement does not name.
        let (sql, args) = match conn {
            #[cfg(feature = "postgres")]
            Conn::Postgres(_) => (CLAIM_PG, &claim[..]),
            #[cfg(feature = "sqlite")]
            Conn::Sqlite(_) => (CLAIM_LITE, &claim[..4]),
        };
        if !conn.rows(sql, args, what).await?.is_empty() {
            return Ok(Claimed::First);
        }
        let key = [Arg::Text(&scope), id];
        if let Some(row) = conn.rows(conn.sql(LOOK_PG, LOOK_LITE), &key, what).await?.first() {
            return Ok(Claimed::Duplicate(row.maybe_bytes(0)?.map(Bytes::from)));
        }
    }
    let why = format!("the marker of {operation} comes and goes: is the clock of the database changing?");
    Err(Error::new(ErrorKind::Unavailable, why).during(what))
}

/// Writes the markers of all that were not done before, one request for each scope, with a limit of idle time as
/// [`one`] does. Returns for each position whether it is new.
pub(super) async fn many(
    conn: &mut Conn<'_>,
    inbox: &Inbox,
    operations: &[Operation],
    fence: Option<&Fence>,
    idle: Option<Duration>,
) -> Result<Vec<bool>> {
    // By scope and id, in order; of several positions with one id the first.
    let mut scopes: BTreeMap<String, BTreeMap<&[u8], usize>> = BTreeMap::new();
    let mut last: Option<(&Operation, String)> = None;
    for (at, operation) in operations.iter().enumerate() {
        let same =
            last.take().filter(|(it, _)| (it.topic(), it.group()) == (operation.topic(), operation.group()));
        let scope = same.map_or_else(|| inbox.scope(operation), |(_, scope)| scope);
        scopes.entry(scope.clone()).or_default().entry(&operation.id()[..]).or_insert(at);
        last = Some((operation, scope));
    }
    let mut new = vec![false; operations.len()];
    let idle = idle.map(|idle| millis(idle).to_string()).unwrap_or_default();
    for (scope, ids) in &scopes {
        let list: Vec<_> = ids.keys().copied().collect();
        let claim = [
            Arg::Text(scope),
            Arg::List(&list),
            Arg::Int(fence.map_or(0, Fence::stored)),
            Arg::Int(millis(inbox.retention)),
            Arg::Text(&idle),
        ];
        let (sql, args) = match conn {
            #[cfg(feature = "postgres")]
            Conn::Postgres(_) => (CLAIM_ALL_PG, &claim[..]),
            #[cfg(feature = "sqlite")]
            Conn::Sqlite(_) => (CLAIM_ALL_LITE, &claim[..4]),
        };
        for row in conn.rows(sql, args, "claim operations").await? {
            let id = row.bytes(0)?;
            let at = ids.get(&id[..]).ok_or_else(|| {
                Error::new(ErrorKind::Protocol, "the database returned an id that was not asked for")
            })?;
            new[*at] = true;
        }
    }
    Ok(new)
}

/// Looks for a marker at the start of a transaction of PostgreSQL.
pub(super) async fn look_first(conn: &mut Conn<'_>, inbox: &Inbox, operation: &Operation) -> Result<Claimed> {
    let (scope, idle) = (inbox.scope(operation), millis(inbox.idle).to_string());
    let args = [Arg::Text(&scope), Arg::Bytes(operation.id()), Arg::Text(&idle)];
    let rows = conn.rows(LOOK_FIRST_PG, &args, "look for an operation").await?;
    match rows.first() {
        Some(row) if row.is(1)? => Ok(Claimed::Duplicate(row.maybe_bytes(0)?.map(Bytes::from))),
        _ => Ok(Claimed::First),
    }
}

/// Returns the result of an operation that was done.
pub(super) async fn look(
    database: &Database,
    inbox: &Inbox,
    operation: &Operation,
) -> Result<Option<Option<Bytes>>> {
    let scope = inbox.scope(operation);
    let key = [Arg::Text(&scope), Arg::Bytes(operation.id())];
    let rows = database.rows(database.sql(LOOK_PG, LOOK_LITE), &key, "look for an operation").await?;
    rows.first().map(|row| Ok(Row::maybe_bytes(row, 0)?.map(Bytes::from))).transpose()
}

/// Adds the result to the marker of this transaction, and begins its retention anew.
pub(super) async fn finish(
    conn: &mut Conn<'_>,
    inbox: &Inbox,
    operation: &Operation,
    result: Option<&[u8]>,
) -> Result<()> {
    let scope = inbox.scope(operation);
    let (id, retention) = (Arg::Bytes(operation.id()), Arg::Int(millis(inbox.retention)));
    let args = [Arg::Text(&scope), id, Arg::MaybeBytes(result), retention];
    let sql = conn.sql(FINISH_PG, FINISH_LITE);
    if conn.rows(sql, &args, "complete an operation").await?.is_empty() {
        let why = format!("{operation} was not claimed in this transaction");
        return Err(Error::new(ErrorKind::NotFound, why));
    }
    Ok(())
}

/// Deletes the marker that this transaction has written.
pub(super) async fn withdraw(conn: &mut Conn<'_>, inbox: &Inbox, operation: &Operation) -> Result<()> {
    let scope = inbox.scope(operation);
    let args = [Arg::Text(&scope), Arg::Bytes(operation.id())];
    let sql = "DELETE FROM millstream_inbox WHERE scope = $1 AND id = $2 RETURNING 1";
    conn.rows(sql, &args, "withdraw an operation").await.map(drop)
}

/// A checked time in whole milliseconds.
pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
