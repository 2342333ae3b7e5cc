//! Transactional outbox: rows that are written in the user's transaction become messages.
//!
//! [`Outbox`] writes rows; a program in another language inserts them in plain SQL. An [`OutboxRelay`] reads rows that are
//! committed, appends them with their ids as dedup ids, and deletes them. No position is remembered: what is in the table was
//! not sent yet, so a row whose transaction commits late cannot be passed over.

/// Bytes of a text of PostgreSQL: in UTF-8, or as they are in a database whose texts have no encoding. There they may be anything,
/// and the server refuses to send such a text.
macro_rules! text_bytes {
    ($text:literal) => {
        concat!(
            "convert_to(",
            $text,
            ", CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)"
        )
    };
}

mod admin;
mod headers;
mod relay;
mod row;
mod send;
mod store;

pub use admin::{DeadRow, OutboxStatus};
pub use relay::{OutboxRelay, OutboxRelayBuilder, OutboxRelayConfig};
pub use send::{Outbox, OutboxRow, OutboxSend};
