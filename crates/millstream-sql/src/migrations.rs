//! Tables of this crate, in numbered steps.

use millstream_core::error::Result;

use crate::database::{Arg, Database, Dialect};

/// Number of the lock under which instances that start together run the migrations one after the other, on PostgreSQL. It
/// is the text `mstream` as a number.
const LOCK: i64 = 0x006d_7374_7265_616d;

/// One step, which is run once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// Number, from 1.
    pub version: u32,
    /// Name of its file in `migrations/`, without the number.
    pub name: &'static str,
    /// Its statements. They can be run again without harm.
    pub sql: &'static str,
}

/// Makes the three lists, so that none can miss a step.
macro_rules! steps {
    ($($version:literal $name:literal),* $(,)?) => {
        const POSTGRES: &[Migration] = &[$(steps!(@ $version $name "postgres")),*];
        const SQLITE: &[Migration] = &[$(steps!(@ $version $name "sqlite")),*];
        const MYSQL: &[Migration] = &[$(steps!(@ $version $name "mysql")),*];
    };
    (@ $version:literal $name:literal $dialect:literal) => {
        Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../migrations/", $dialect, "/000", $version, "_", $name, ".sql")),
        }
    };
}

// One line for each step.
steps! {
    1 "inbox",
    2 "markers",
}

/// Returns the steps for a database, in order. Those of MySQL are for programs that use these tables without this crate.
#[must_use]
pub fn migrations(dialect: Dialect) -> &'static [Migration] {
    match dialect {
        Dialect::Postgres => POSTGRES,
        Dialect::Sqlite => SQLITE,
        Dialect::Mysql => MYSQL,
    }
}

/// Makes the tables of this crate, or brings them up to date, in one transaction. Returns the versions that were run now.
///
/// Any number of instances may call it at once, and a database that is newer than this crate stays as it is. The table
/// `millstream_migrations` has what was run. Who may not create tables lets somebody run the files instead; then this is not
/// called.
///
/// # Errors
/// Those of the database, such as [`ErrorKind::Denied`](millstream_core::ErrorKind::Denied). Then nothing was changed.
pub async fn migrate(database: &Database) -> Result<Vec<u32>> {
    let what = "migrate";
    let mut tx = database.begin().await?;
    let mut conn = tx.conn();
    if database.dialect() == Dialect::Postgres {
        conn.rows("SELECT pg_advisory_xact_lock($1)", &[Arg::Int(LOCK)], what).await?;
    }
    conn.script(
        "CREATE TABLE IF NOT EXISTS millstream_migrations (\
            version integer PRIMARY KEY, name text NOT NULL, \
            applied_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP)",
        what,
    )
    .await?;
    // 64 bits on both.
    let rows = conn.rows("SELECT CAST(version AS bigint) FROM millstream_migrations", &[], what).await?;
    let there = rows.iter().map(|row| row.int(0)).collect::<Result<Vec<_>>>()?;
    let mut applied = Vec::new();
    for step in migrations(database.dialect()).iter().filter(|it| !there.contains(&i64::from(it.version))) {
        conn.script(step.sql, what).await?;
        let row = [Arg::Int(step.version.into()), Arg::Text(step.name)];
        conn.rows("INSERT INTO millstream_migrations (version, name) VALUES ($1, $2)", &row, what).await?;
        applied.push(step.version);
    }
    tx.commit().await?;
    Ok(applied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbered_and_the_same_everywhere() {
        for dialect in [Dialect::Postgres, Dialect::Sqlite, Dialect::Mysql] {
            let steps = migrations(dialect);
            let versions: Vec<_> = steps.iter().map(|step| (step.version, step.name)).collect();
            let expected: Vec<_> = (1..).zip(POSTGRES.iter().map(|step| step.name)).collect();
            assert_eq!(versions, expected, "{dialect:?}");
            for step in steps {
                assert!(step.sql.starts_with("-- "), "{dialect:?} {}: says what it is for", step.name);
                assert!(step.sql.contains("IF NOT EXISTS"), "{dialect:?} {}: may run again", step.name);
            }
        }
    }
}
