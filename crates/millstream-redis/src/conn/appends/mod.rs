//! Connections of producers: one that requests follow each other on, and what all producers of a process share.

pub(crate) mod appender;
pub(crate) mod calls;
pub(crate) mod confirm;
pub(crate) mod dedup;
pub(crate) mod dictionaries;
pub(crate) mod node_appender;
pub(crate) mod numbered;
pub(crate) mod packed;
pub(crate) mod part;
pub(crate) mod script;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::Append;
use millstream_core::wire::MAX_BODY_FIELDS;

/// Checks the number of fields of an entry that a script appends: it passes their names and values to a command at once. Readers
/// take an entry with more fields for no message.
pub(crate) fn check_fields(fields: usize) -> Result<()> {
    match fields {
        0 => Err(Error::new(ErrorKind::Encode, "an entry needs at least one field")),
        1..=MAX_BODY_FIELDS => Ok(()),
        _ => {
            let why = format!(
                "an entry with {fields} fields, at most {MAX_BODY_FIELDS} are allowed with an id or number"
            );
            Err(Error::new(ErrorKind::TooLarge, why))
        }
    }
}

/// Returns the error of an append, which says where.
pub(crate) fn during(error: Error, append: &Append) -> Error {
    error.during(format_args!("append to {}", append.topic_partition)).at(&append.topic_partition)
}
