//! Poolers between this program and PostgreSQL that give each transaction another session.

use millstream_core::error::{Error, ErrorKind, Result};
use sqlx::postgres::PgConnection;
use sqlx::{Executor as _, Row as _};

use crate::error::{POOLED, Phase, failed};

/// Order in which two connections look at their session. Whether a pooler gives out the session that came back last or the one that
/// waits for longest: both see the same one, or one of them sees two.
const TURNS: [usize; 4] = [0, 1, 1, 0];

/// Returns whether the sessions of two connections are shared with others: a pooler gives each transaction another one. While others
/// use the pooler, it can happen that this does not show.
pub(crate) async fn shares_sessions(
    first: &mut PgConnection,
    second: &mut PgConnection,
) -> sqlx::Result<bool> {
    let mut sessions: [Option<i32>; 2] = [None; 2];
    for turn in TURNS {
        let connection = if turn == 0 { &mut *first } else { &mut *second };
        // As text: nothing is prepared.
        let session = connection.fetch_one(sqlx::raw_sql("SELECT pg_backend_pid()")).await?.try_get(0)?;
        if sessions[1 - turn] == Some(session) || sessions[turn].is_some_and(|before| before != session) {
            return Ok(true);
        }
        sessions[turn] = Some(session);
    }
    Ok(false)
}

/// Fails if sessions are shared and the pooler mixes up prepared statements, or knows no transactions. Every connection calls its first
/// statement by the same name.
pub(super) async fn check(first: &mut PgConnection, second: &mut PgConnection) -> Result<()> {
    let error = |error| failed(error, Phase::Connect, "connect to PostgreSQL");
    if !shares_sessions(first, second).await.map_err(error)? {
        return Ok(());
    }
    for sql in ["BEGIN", "COMMIT"] {
        first.execute(sqlx::raw_sql(sql)).await.map_err(error)?;
    }
    for turn in TURNS {
        let (connection, sql) =
            if turn == 0 { (&mut *first, "SELECT 0") } else { (&mut *second, "SELECT 1") };
        let answer: i32 = sqlx::query_scalar(sql).fetch_one(connection).await.map_err(error)?;
        if usize::try_from(answer) != Ok(turn) {
            return Err(Error::new(ErrorKind::Unsupported, POOLED).during("connect to PostgreSQL"));
        }
    }
    Ok(())
}
