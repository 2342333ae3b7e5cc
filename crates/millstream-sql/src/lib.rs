#![doc = include_str!("../README.md")]

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("millstream-sql needs one of its features `postgres` and `sqlite`");

mod cleaner;
mod database;
mod error;
mod inbox;
mod markers;
mod migrations;
mod outbox;
#[cfg(test)]
mod tests;

pub use cleaner::Cleaner;
pub use database::{Conn, Database, Dialect, Tx};
pub use error::is_transient;
pub use inbox::{Claimed, Fence, Inbox, InboxBuilder, Mode, Once, OnceError};
pub use markers::SqlIdempotency;
pub use migrations::{Migration, migrate, migrations};
pub use outbox::{
    DeadRow, Outbox, OutboxRelay, OutboxRelayBuilder, OutboxRelayConfig, OutboxRow, OutboxSend, OutboxStatus,
};

/// The SQL client: its types are those of a transaction's connection.
pub use sqlx;
