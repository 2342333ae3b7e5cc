//! Connection of either database, as statements of this crate use it.

use millstream_core::error::Result;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnection, PgRow};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Executor, Row as _};

use super::Dialect;
use crate::error::{Phase, failed};

/// Connection that runs statements within the caller's transaction: made of a [`Tx`](super::Tx), or of a connection or
/// transaction of the client.
#[derive(Debug)]
pub enum Conn<'c> {
    /// Connection to PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(&'c mut PgConnection),
    /// Connection to SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite(&'c mut SqliteConnection),
}

/// Argument of a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    Int(i64),
    MaybeBytes(Option<&'a [u8]>),
    // Not used by markers, which have none.
    #[allow(dead_code)]
    MaybeInt(Option<i64>),
    /// An array of byte strings on PostgreSQL; on SQLite a JSON array of them in hexadecimal, for `unhex`.
    List(&'a [&'a [u8]]),
    /// An array of integers; on SQLite a JSON array.
    Ints(&'a [i64]),
}

/// Row of a result.
pub(crate) enum Row {
    #[cfg(feature = "postgres")]
    Postgres(PgRow),
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteRow),
}

impl Conn<'_> {
    /// Borrows it for one call.
    pub fn reborrow(&mut self) -> Conn<'_> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(conn) => Conn::Postgres(conn),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(conn) => Conn::Sqlite(conn),
        }
    }

    /// Returns the kind of the database.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// Chooses the text of a statement.
    pub(crate) fn sql<'a>(&self, postgres: &'a str, sqlite: &'a str) -> &'a str {
        match self.dialect() {
            Dialect::Postgres => postgres,
            Dialect::Sqlite | Dialect::Mysql => sqlite,
        }
    }

    /// Runs one statement of the transaction and returns its rows.
    pub(crate) async fn rows(&mut self, sql: &str, args: &[Arg<'_>], what: &str) -> Result<Vec<Row>> {
        self.rows_in(sql, args, Phase::Within, what).await
    }

    pub(super) async fn rows_in(
        &mut self,
        sql: &str,
        args: &[Arg<'_>],
        phase: Phase,
        what: &str,
    ) -> Result<Vec<Row>> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(conn) => {
                let mut query = sqlx::query::<sqlx::Postgres>(sql);
                for arg in args {
                    query = match *arg {
                        Arg::Text(text) => query.bind(text),
                        Arg::Bytes(bytes) => query.bind(bytes),
                        Arg::Int(number) => query.bind(number),
                        Arg::MaybeBytes(bytes) => query.bind(bytes),
                        Arg::MaybeInt(number) => query.bind(number),
                        Arg::List(list) => query.bind(list),
                        Arg::Ints(list) => query.bind(list),
                    };
                }
                let rows = query.fetch_all(&mut **conn).await.map_err(|error| failed(error, phase, what))?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(conn) => {
                let mut query = sqlx::query::<sqlx::Sqlite>(sql);
                for arg in args {
                    query = match *arg {
                        Arg::Text(text) => query.bind(text),
                        Arg::Bytes(bytes) => query.bind(bytes),
                        Arg::Int(number) => query.bind(number),
                        Arg::MaybeBytes(bytes) => query.bind(bytes),
                        Arg::MaybeInt(number) => query.bind(number),
                        Arg::List(list) => query.bind(json_of_bytes(list)),
                        Arg::Ints(list) => query.bind(json_of_ints(list)),
                    };
                }
                let rows = query.fetch_all(&mut **conn).await.map_err(|error| failed(error, phase, what))?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
        }
    }

    /// Runs statements without arguments.
    pub(crate) async fn script(&mut self, sql: &str, what: &str) -> Result<()> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(conn) => {
                let done = (&mut **conn).execute(sqlx::raw_sql(sql)).await;
                done.map(drop).map_err(|error| failed(error, Phase::Within, what))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(conn) => {
                let done = (&mut **conn).execute(sqlx::raw_sql(sql)).await;
                done.map(drop).map_err(|error| failed(error, Phase::Within, what))
            }
        }
    }
}

/// Makes a getter of a column, by its position from 0.
macro_rules! column {
    ($name:ident, $type:ty) => {
        pub(crate) fn $name(&self, at: usize) -> Result<$type> {
            let value = match self {
                #[cfg(feature = "postgres")]
                Self::Postgres(row) => row.try_get(at),
                #[cfg(feature = "sqlite")]
                Self::Sqlite(row) => row.try_get(at),
            };
            value.map_err(|error| failed(error, Phase::Within, "read a row"))
        }
    };
}

impl Row {
    column!(int, i64);
    column!(text, String);
    column!(bytes, Vec<u8>);
    column!(maybe_int, Option<i64>);
    column!(maybe_bytes, Option<Vec<u8>>);
    column!(is, bool);
}

#[cfg(feature = "sqlite")]
fn json_of_bytes(list: &[&[u8]]) -> String {
    let mut json = String::with_capacity(list.iter().map(|bytes| bytes.len() * 2 + 3).sum::<usize>() + 2);
    json.push('[');
    for (at, bytes) in list.iter().enumerate() {
        json.push_str(if at == 0 { "\"" } else { ",\"" });
        for byte in *bytes {
            for digit in [byte >> 4, byte & 15] {
                json.push(char::from_digit(u32::from(digit), 16).expect("a digit below 16"));
            }
        }
        json.push('"');
    }
    json.push(']');
    json
}

#[cfg(feature = "sqlite")]
fn json_of_ints(list: &[i64]) -> String {
    let numbers: Vec<_> = list.iter().map(i64::to_string).collect();
    format!("[{}]", numbers.join(","))
}

#[cfg(feature = "postgres")]
impl<'c> From<&'c mut PgConnection> for Conn<'c> {
    fn from(conn: &'c mut PgConnection) -> Self {
        Self::Postgres(conn)
    }
}

#[cfg(feature = "postgres")]
impl<'c> From<&'c mut sqlx::Transaction<'_, sqlx::Postgres>> for Conn<'c> {
    fn from(tx: &'c mut sqlx::Transaction<'_, sqlx::Postgres>) -> Self {
        Self::Postgres(tx)
    }
}

#[cfg(feature = "sqlite")]
impl<'c> From<&'c mut SqliteConnection> for Conn<'c> {
    fn from(conn: &'c mut SqliteConnection) -> Self {
        Self::Sqlite(conn)
    }
}

#[cfg(feature = "sqlite")]
impl<'c> From<&'c mut sqlx::Transaction<'_, sqlx::Sqlite>> for Conn<'c> {
    fn from(tx: &'c mut sqlx::Transaction<'_, sqlx::Sqlite>) -> Self {
        Self::Sqlite(tx)
    }
}

impl<'c> From<&'c mut super::Tx> for Conn<'c> {
    fn from(tx: &'c mut super::Tx) -> Self {
        tx.conn()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_json_for_sqlite() {
        assert_eq!(json_of_bytes(&[b"\x00\xff", b"", b"a"]), r#"["00ff","","61"]"#);
        assert_eq!((json_of_bytes(&[]), json_of_ints(&[-1, 7])), ("[]".into(), "[-1,7]".into()));
    }
}
