//! Maps errors of the SQL client to the project's kinds.

use millstream_core::error::{Error, ErrorKind};

/// Point at which a statement failed, which decides what is known about its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before anything was sent.
    Connect,
    /// Within a transaction that is not committed: without its commit it has no effect.
    Within,
    /// At the commit of a transaction, or a statement that commits by itself: if the connection breaks, it may have had its
    /// effect.
    Commit,
    /// A statement outside of a transaction.
    Alone,
}

/// Converts an error of the client that occurred during `what`. The error of the client is kept as the source.
///
/// The message is that of the client without its URL: sqlx puts neither URLs nor passwords into errors other than those of
/// parsing one, which do not come here.
pub(crate) fn failed(error: sqlx::Error, phase: Phase, what: &str) -> Error {
    let kind = kind_of(&error, phase);
    let message = match (&error, kind) {
        (sqlx::Error::Database(error), ErrorKind::NotFound) => {
            format!("{}: run millstream_sql::migrate, or the files of migrations/", error.message())
        }
        (sqlx::Error::Database(error), _) if is_pooled(error.as_ref()) => {
            format!("{POOLED} ({})", error.message())
        }
        (sqlx::Error::Database(error), _) => error.message().to_owned(),
        (error, _) => error.to_string(),
    };
    Error::new(kind, message).with_source(error).during(what)
}

/// Returns whether an error, or one that it was made of, is a failure of a database that may pass by itself: a lost
/// connection, a deadlock, a conflict of transactions, a server that starts or has no room.
///
/// For handlers whose errors have a type of their own, as in a retry policy by error.
///
/// ```
/// let error: Box<dyn std::error::Error + Send + Sync> = sqlx::Error::PoolTimedOut.into();
/// assert!(millstream_sql::is_transient(&*error));
/// # use millstream_sql::sqlx;
/// assert!(!millstream_sql::is_transient(&sqlx::Error::RowNotFound));
/// ```
#[must_use]
pub fn is_transient(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return error.is_transient();
        }
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return Error::new(kind_of(error, Phase::Within), "").is_transient();
        }
        next = error.source();
    }
    false
}

/// Whether a pooler between this program and the database makes it fail: a prepared statement is not there, or that of somebody else
/// is, since this session is not the one that prepared it; or there are no transactions.
fn is_pooled(error: &dyn sqlx::error::DatabaseError) -> bool {
    let is_mixed = error.code().is_some_and(|code| code == "42P05" || code == "26000");
    is_mixed || error.message().contains("statement pooling mode")
}

/// Reason of an error behind a pooler, and the cure.
pub(crate) const POOLED: &str = "a pooler shares its sessions, and keeps no prepared statements or no transactions: PgBouncer \
    needs pool_mode = session, or pool_mode = transaction with version 1.21 and max_prepared_statements above 0";

/// Returns whether the database undid a statement because of another transaction: a serialization failure or a deadlock.
pub(crate) fn is_conflict(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
    let code = source.and_then(sqlx::Error::as_database_error).and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| code == "40001" || code == "40P01")
}

fn kind_of(error: &sqlx::Error, phase: Phase) -> ErrorKind {
    let broken = match phase {
        Phase::Connect | Phase::Within => ErrorKind::Unavailable,
        Phase::Commit | Phase::Alone => ErrorKind::Unconfirmed,
    };
    match error {
        sqlx::Error::Database(error) if is_pooled(error.as_ref()) => ErrorKind::Unsupported,
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            if code.len() == 5 {
                by_sqlstate(&code, broken)
            } else {
                by_sqlite(code.parse().unwrap_or(1), error.message(), broken)
            }
        }
        sqlx::Error::Io(error) if phase == Phase::Connect && error.kind() == std::io::ErrorKind::NotFound => {
            ErrorKind::NotFound
        }
        sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => broken,
        // No connection: nothing was sent.
        sqlx::Error::PoolTimedOut => ErrorKind::Unavailable,
        sqlx::Error::PoolClosed => ErrorKind::Closed,
        sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) => ErrorKind::InvalidConfig,
        sqlx::Error::RowNotFound => ErrorKind::NotFound,
        _ => ErrorKind::Protocol,
    }
}

/// PostgreSQL's codes, whose first two characters are a class.
fn by_sqlstate(code: &str, broken: ErrorKind) -> ErrorKind {
    match code {
        // The server rolled the transaction back, or did not begin the statement: conflict, deadlock, lock or statement
        // timeout, a server that starts or recovers, too many connections, a standby that is read-only until it takes over.
        "40001" | "40P01" | "55P03" | "57014" | "57P03" | "53300" | "25006" => ErrorKind::Unavailable,
        // The server ended the session.
        "57P01" | "57P02" | "57P05" | "25P03" | "25P04" => broken,
        _ => match &code[..2] {
            "08" => broken,
            // Out of memory, disk or another resource.
            "53" => ErrorKind::Backpressure,
            "28" => ErrorKind::Denied,
            "0A" => ErrorKind::Unsupported,
            _ => match code {
                "42501" => ErrorKind::Denied,
                // No such database, schema or table.
                "3D000" | "3F000" | "42P01" => ErrorKind::NotFound,
                // No such function or column: an older server, or tables that are not ours.
                "42883" | "42703" => ErrorKind::Unsupported,
                _ => ErrorKind::Protocol,
            },
        },
    }
}

/// SQLite's result codes: the low byte is the primary one.
fn by_sqlite(code: u32, message: &str, broken: ErrorKind) -> ErrorKind {
    match code & 0xff {
        // Busy, locked.
        5 | 6 => ErrorKind::Unavailable,
        // No memory, disk full.
        7 | 13 => ErrorKind::Backpressure,
        // An error of the disk.
        10 => broken,
        // Permission, read-only, authorization.
        3 | 8 | 23 => ErrorKind::Denied,
        // The file cannot be opened.
        14 => ErrorKind::NotFound,
        _ if message.starts_with("no such table") => ErrorKind::NotFound,
        _ => ErrorKind::Protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_postgres_have_kinds() {
        let check = |code: &str, kind| assert_eq!(by_sqlstate(code, ErrorKind::Unconfirmed), kind, "{code}");
        for code in ["40001", "40P01", "55P03", "57P03", "53300"] {
            check(code, ErrorKind::Unavailable);
        }
        check("57P01", ErrorKind::Unconfirmed);
        check("08006", ErrorKind::Unconfirmed);
        check("53100", ErrorKind::Backpressure);
        check("28P01", ErrorKind::Denied);
        check("42501", ErrorKind::Denied);
        check("42P01", ErrorKind::NotFound);
        check("23505", ErrorKind::Protocol);
    }

    #[test]
    fn codes_of_sqlite_have_kinds() {
        let check = |code, text, kind| {
            assert_eq!(by_sqlite(code, text, ErrorKind::Unconfirmed), kind, "{code} {text}");
        };
        check(5, "database is locked", ErrorKind::Unavailable);
        check(517, "database is locked", ErrorKind::Unavailable);
        check(1, "no such table: x", ErrorKind::NotFound);
        check(1, "syntax error", ErrorKind::Protocol);
        check(8, "read-only", ErrorKind::Denied);
        check(13, "full", ErrorKind::Backpressure);
    }

    #[test]
    fn what_may_pass_is_found_behind_other_errors() {
        #[derive(Debug, thiserror::Error)]
        #[error("transfer failed")]
        struct Own(#[source] sqlx::Error);
        assert!(is_transient(&Own(sqlx::Error::PoolTimedOut)));
        assert!(!is_transient(&Own(sqlx::Error::RowNotFound)));
        assert!(is_transient(&failed(sqlx::Error::WorkerCrashed, Phase::Commit, "commit")));
        assert!(!is_transient(&std::io::Error::other("mine")));
    }

    #[test]
    fn the_phase_decides_whether_a_broken_connection_is_unconfirmed() {
        let broken = |phase| {
            let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
            failed(sqlx::Error::Io(error), phase, "work").kind()
        };
        assert_eq!(broken(Phase::Connect), ErrorKind::Unavailable);
        assert_eq!(broken(Phase::Within), ErrorKind::Unavailable);
        assert_eq!(broken(Phase::Commit), ErrorKind::Unconfirmed);
        assert_eq!(broken(Phase::Alone), ErrorKind::Unconfirmed);
    }
}
