#![doc = include_str!("../README.md")]

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("millstream-sql needs one of its features `postgres` and `sqlite`");

mod database;
mod error;
mod migrations;

pub use database::{Conn, Database, Dialect, Tx};
pub use error::is_transient;
pub use migrations::{Migration, migrate, migrations};

/// The SQL client: its types are those of a transaction's connection.
pub use sqlx;
