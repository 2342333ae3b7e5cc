//! Markers of operations in a database: the idempotency role, in place of that of the queue's server.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::idempotency::{Begun, Idempotency, Marker, Operation, check_begin, check_complete};
use millstream_core::{Backend, Namespace};

use crate::database::{Arg, Database, Dialect, Row};
use crate::inbox::{millis, scope};

/// Attempts of a statement that met another one, and of a begin whose marker expires between its two statements.
const TRIES: u32 = 5;

/// The time of SQLite in milliseconds.
macro_rules! now {
    () => {
        "CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)"
    };
}

/// Marks an operation as running. A row that has expired is as good as none; one that would last longer than twice its ttl
/// was written before the clock went back, and may not block the operation for so long.
const BEGIN_PG: &str = "\
    INSERT INTO millstream_markers AS m (scope, id, token, holder, ttl_ms, done, result, expires_at) \
    VALUES ($1, $2, $3, $4, $5, false, NULL, clock_timestamp() + $5 * interval '1 millisecond') \
    ON CONFLICT (scope, id) DO UPDATE SET token = excluded.token, holder = excluded.holder, \
        ttl_ms = excluded.ttl_ms, done = false, result = NULL, expires_at = excluded.expires_at \
    WHERE m.expires_at <= clock_timestamp() OR (NOT m.done AND (m.token = excluded.token \
        OR m.expires_at > clock_timestamp() + 2 * m.ttl_ms * interval '1 millisecond')) RETURNING 1::bigint";
const BEGIN_LITE: &str = concat!(
    "INSERT INTO millstream_markers (scope, id, token, holder, ttl_ms, done, result, expires_at) \
     VALUES ($1, $2, $3, $4, $5, false, NULL, ",
    now!(),
    " + $5) ON CONFLICT (scope, id) DO UPDATE SET token = excluded.token, holder = excluded.holder, \
        ttl_ms = excluded.ttl_ms, done = false, result = NULL, expires_at = excluded.expires_at \
     WHERE millstream_markers.expires_at <= ",
    now!(),
    " OR (NOT millstream_markers.done AND (millstream_markers.token = excluded.token \
        OR millstream_markers.expires_at > ",
    now!(),
    " + 2 * millstream_markers.ttl_ms)) RETURNING 1"
);

const STATE_PG: &str = "\
    SELECT done, result, token, holder, \
        ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint \
    FROM millstream_markers WHERE scope = $1 AND id = $2 AND expires_at > clock_timestamp()";
const STATE_LITE: &str = concat!(
    "SELECT done, result, token, holder, expires_at - ",
    now!(),
    " FROM millstream_markers WHERE scope = $1 AND id = $2 AND expires_at > ",
    now!()
);

/// Extends a marker, or makes it anew if it has expired or is gone.
const EXTEND_LITE: &str = concat!(
    "INSERT INTO millstream_markers (scope, id, token, holder, ttl_ms, done, result, expires_at) \
     VALUES ($1, $2, $3, $4, $5, false, NULL, ",
    now!(),
    " + $5) ON CONFLICT (scope, id) DO UPDATE SET token = excluded.token, holder = excluded.holder, \
        ttl_ms = excluded.ttl_ms, done = false, result = NULL, expires_at = excluded.expires_at \
     WHERE millstream_markers.expires_at <= ",
    now!(),
    " OR (NOT millstream_markers.done AND millstream_markers.token = excluded.token) RETURNING 1"
);

/// The same for many, in one request and in the order of their keys: two that share some do not deadlock.
const EXTEND_ALL_PG: &str = "\
    INSERT INTO millstream_markers AS m (scope, id, token, holder, ttl_ms, done, result, expires_at) \
    SELECT convert_from(u.scope, 'UTF8'), u.id, convert_from(u.token, 'UTF8'), convert_from(u.holder, 'UTF8'), u.ttl, \
        false, NULL, clock_timestamp() + u.ttl * interval '1 millisecond' \
    FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bigint[]) \
        AS u (scope, id, token, holder, ttl) ORDER BY u.scope, u.id \
    ON CONFLICT (scope, id) DO UPDATE SET token = excluded.token, holder = excluded.holder, \
        ttl_ms = excluded.ttl_ms, done = false, result = NULL, expires_at = excluded.expires_at \
    WHERE m.expires_at <= clock_timestamp() OR (NOT m.done AND m.token = excluded.token) \
    RETURNING m.scope, m.id";

/// Marks an operation as done, under the same conditions.
const COMPLETE_PG: &str = "\
    INSERT INTO millstream_markers AS m (scope, id, token, holder, ttl_ms, done, result, expires_at) \
    VALUES ($1, $2, $3, $4, $5, true, $6, clock_timestamp() + $5 * interval '1 millisecond') \
    ON CONFLICT (scope, id) DO UPDATE SET token = excluded.token, holder = excluded.holder, \
        ttl_ms = excluded.ttl_ms, done = true, result = excluded.result, expires_at = excluded.expires_at \
    WHERE m.expires_at <= clock_timestamp() OR (NOT m.done AND m.token = excluded.token) RETURNING 1::bigint";
const COMPLETE_LITE: &str = concat!(
    "INSERT INTO millstream_markers (scope, id, token, holder, ttl_ms, done, result, expires_at) \
     VALUES ($1, $2, $3, $4, $5, true, $6, ",
    now!(),
    " + $5) ON CONFLICT (scope, id) DO UPDATE SET token = excluded.token, holder = excluded.holder, \
        ttl_ms = excluded.ttl_ms, done = true, result = excluded.result, expires_at = excluded.expires_at \
     WHERE millstream_markers.expires_at <= ",
    now!(),
    " OR (NOT millstream_markers.done AND millstream_markers.token = excluded.token) RETURNING 1"
);

const ABANDON_PG: &str = "\
    DELETE FROM millstream_markers WHERE scope = $1 AND id = $2 \
    AND (expires_at <= clock_timestamp() OR (NOT done AND token = $3)) RETURNING 1::bigint";
const ABANDON_LITE: &str = concat!(
    "DELETE FROM millstream_markers WHERE scope = $1 AND id = $2 AND (expires_at <= ",
    now!(),
    " OR (NOT done AND token = $3)) RETURNING 1"
);

/// The idempotency role in a database: markers that are leases, then done with a result. For effects elsewhere, whose markers
/// should be as durable as the database. It replaces the role of a backend:
///
/// ```no_run
/// # use millstream_core::Backend;
/// # use millstream_sql::{Database, SqlIdempotency};
/// # fn example(backend: Backend, database: &Database) -> millstream_core::Result<Backend> {
/// let backend = SqlIdempotency::new(database, "shop")?.replace(backend);
/// # Ok(backend) }
/// ```
///
/// The window is that of every marker beside its effect: a process that dies between the two has its message handled again. An
/// effect in the same database belongs into an [inbox](crate::Inbox), which has no such window.
///
/// Markers of running handlers are extended on a connection of its own (PostgreSQL): handlers may hold all of the pool for
/// longer than a marker lasts. On SQLite a handler that keeps a transaction open which writes holds back the extensions of all.
///
/// All times are by the database's clock. Two queues that share a database need two namespaces.
#[derive(Clone, Debug)]
pub struct SqlIdempotency {
    database: Database,
    /// For extensions. They run on another thread than handlers, to which the connection then belongs.
    extending: Database,
    namespace: Namespace,
}

/// State of a marker that has not expired.
struct State {
    done: Option<Bytes>,
    token: String,
    holder: String,
    expires_in: Duration,
}

impl SqlIdempotency {
    /// Creates the role. It makes no request; the tables are made by [`migrate`](crate::migrate).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a namespace that is no name.
    pub fn new(database: &Database, namespace: impl AsRef<str>) -> Result<Self> {
        let namespace = Namespace::new(namespace)?;
        Ok(Self { database: database.clone(), extending: database.apart(), namespace })
    }

    /// Returns the backend with this role in place of its own.
    #[must_use]
    pub fn replace(self, backend: Backend) -> Backend {
        backend.with_idempotency(std::sync::Arc::new(self))
    }

    /// Runs a statement that has its effect by itself. One that met another transaction has had no effect, and runs again.
    async fn run(&self, sql: (&str, &str), args: &[Arg<'_>], what: &str) -> Result<bool> {
        let sql = self.database.sql(sql.0, sql.1);
        Self::run_on(&self.database, sql, args, what).await.map(|rows| !rows.is_empty())
    }

    async fn run_on(database: &Database, sql: &str, args: &[Arg<'_>], what: &str) -> Result<Vec<Row>> {
        let mut tried = 1;
        loop {
            match database.rows(sql, args, what).await {
                Err(error) if tried < TRIES && crate::error::is_conflict(&error) => tried += 1,
                other => return other,
            }
        }
    }

    async fn state(&self, scope: &str, operation: &Operation) -> Result<Option<State>> {
        let args = [Arg::Text(scope), Arg::Bytes(operation.id())];
        let sql = self.database.sql(STATE_PG, STATE_LITE);
        let rows = self.database.rows(sql, &args, "read a marker").await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let done = row.is(0)?.then_some(row.maybe_bytes(1)?).map(|result| result.unwrap_or_default().into());
        let expires_in = Duration::from_millis(u64::try_from(row.int(4)?).unwrap_or_default());
        Ok(Some(State { done, token: row.text(2)?, holder: row.text(3)?, expires_in }))
    }

    /// Extends all with one request, but those whose operation is in the list before: a statement writes a row once.
    async fn extend_all(&self, markers: &[Marker], scopes: &[String], answers: &mut [Option<Result<()>>]) {
        let mut at_of = BTreeMap::new();
        for (at, (marker, scope)) in markers.iter().zip(scopes).enumerate() {
            if answers[at].is_some() {
                continue;
            }
            at_of.entry((scope.as_str(), &marker.operation.id()[..])).or_insert(at);
        }
        let of =
            |part: fn(&Marker) -> &[u8]| at_of.values().map(|at| part(&markers[*at])).collect::<Vec<_>>();
        let (keys, ids) =
            at_of.keys().map(|(scope, id)| (scope.as_bytes(), *id)).unzip::<_, _, Vec<_>, Vec<_>>();
        let (tokens, holders) = (of(|it| it.token.as_bytes()), of(|it| it.holder.as_bytes()));
        let ttls: Vec<_> = at_of.values().map(|at| millis(markers[*at].ttl)).collect();
        if ids.is_empty() {
            return;
        }
        let args =
            [Arg::List(&keys), Arg::List(&ids), Arg::List(&tokens), Arg::List(&holders), Arg::Ints(&ttls)];
        let rows = Self::run_on(&self.extending, EXTEND_ALL_PG, &args, "extend markers").await;
        let extended = rows.and_then(|rows| {
            rows.iter().map(|row| Ok((row.text(0)?, row.bytes(1)?))).collect::<Result<HashSet<_>>>()
        });
        for ((scope, id), at) in at_of {
            answers[at] = Some(match &extended {
                Ok(extended) if extended.contains(&(scope.to_owned(), id.to_vec())) => Ok(()),
                Ok(_) => Err(markers[at].fenced()),
                Err(error) => Err(error.clone()),
            });
        }
    }

    async fn extend_one(&self, marker: &Marker, scope: &str) -> Result<()> {
        let [id, token, holder, ttl] = Self::of(marker, marker.ttl);
        let args = [Arg::Text(scope), id, token, holder, ttl];
        match &Self::run_on(&self.extending, EXTEND_LITE, &args, "extend a marker").await?[..] {
            [] => Err(marker.fenced()),
            _ => Ok(()),
        }
    }

    /// Returns the arguments of a statement after the scope.
    fn of<'a>(marker: &'a Marker, time: Duration) -> [Arg<'a>; 4] {
        let id = Arg::Bytes(marker.operation.id());
        [id, Arg::Text(&marker.token), Arg::Text(&marker.holder), Arg::Int(millis(time))]
    }
}

#[async_trait]
impl Idempotency for SqlIdempotency {
    async fn begin(&self, operation: &Operation, holder: &str, token: &str, ttl: Duration) -> Result<Begun> {
        check_begin(holder, token, ttl)?;
        let scope = scope(&self.namespace, operation);
        let marker = Marker::new(operation.clone(), holder, token, ttl);
        for _ in 0..TRIES {
            let [id, token, holder, ttl] = Self::of(&marker, ttl);
            let args = [Arg::Text(&scope), id, token, holder, ttl];
            if self.run((BEGIN_PG, BEGIN_LITE), &args, "begin an operation").await? {
                return Ok(Begun::Started(marker));
            }
            match self.state(&scope, operation).await? {
                Some(State { done: Some(result), .. }) => return Ok(Begun::Done(result)),
                Some(State { holder, expires_in, .. }) => return Ok(Begun::Running { holder, expires_in }),
                // It expired or ended between the two statements.
                None => {}
            }
        }
        let why = format!("the marker of {operation} comes and goes: try again");
        Err(Error::new(ErrorKind::Unavailable, why).during("begin an operation"))
    }

    async fn extend(&self, markers: &[Marker]) -> Vec<Result<()>> {
        let scopes: Vec<_> = markers.iter().map(|it| scope(&self.namespace, &it.operation)).collect();
        let mut answers: Vec<Option<Result<()>>> = vec![None; markers.len()];
        // An operation that is there twice is extended twice: by two requests.
        while self.database.dialect() == Dialect::Postgres && answers.iter().any(Option::is_none) {
            self.extend_all(markers, &scopes, &mut answers).await;
        }
        let mut extended = Vec::with_capacity(markers.len());
        for (at, answer) in answers.into_iter().enumerate() {
            extended.push(match answer {
                Some(answer) => answer,
                None => self.extend_one(&markers[at], &scopes[at]).await,
            });
        }
        extended
    }

    async fn complete(&self, marker: &Marker, result: &[u8], retention: Duration) -> Result<()> {
        check_complete(result, retention)?;
        let scope = scope(&self.namespace, &marker.operation);
        let [id, token, holder, kept] = Self::of(marker, retention);
        let args = [Arg::Text(&scope), id, token, holder, kept, Arg::Bytes(result)];
        if self.run((COMPLETE_PG, COMPLETE_LITE), &args, "complete an operation").await? {
            return Ok(());
        }
        match self.state(&scope, &marker.operation).await? {
            // The reply to an earlier call was lost.
            Some(State { done: Some(_), token, .. }) if token == marker.token => Ok(()),
            _ => Err(marker.fenced()),
        }
    }

    async fn abandon(&self, marker: &Marker) -> Result<()> {
        let scope = scope(&self.namespace, &marker.operation);
        let args = [Arg::Text(&scope), Arg::Bytes(marker.operation.id()), Arg::Text(&marker.token)];
        if self.run((ABANDON_PG, ABANDON_LITE), &args, "abandon an operation").await? {
            return Ok(());
        }
        match self.state(&scope, &marker.operation).await? {
            None => Ok(()),
            Some(_) => Err(marker.fenced()),
        }
    }
}
