//! Ids by which a message is stored once.

use crate::commands::produce::Produce;
use crate::commands::produce::field::Field;

/// The id of a message that is stored once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Once {
    /// Within the window of dedup ids.
    Dedup(String),
    /// While one with this id has to be settled.
    Unique(String),
}

impl Once {
    /// The id that a line has of its own.
    ///
    /// # Errors
    /// It has both.
    pub(super) fn of_line(dedup: Option<String>, unique: Option<String>) -> Result<Option<Self>, String> {
        match (dedup, unique) {
            (Some(_), Some(_)) => Err("both dedup and unique".into()),
            (Some(id), None) => Ok(Some(Self::Dedup(id))),
            (None, Some(id)) => Ok(Some(Self::Unique(id))),
            (None, None) => Ok(None),
        }
    }
}

/// The field from which ids are taken.
#[derive(Clone, Debug)]
pub(super) struct OnceField {
    field: Field,
    once: fn(String) -> Once,
}

impl OnceField {
    pub(super) fn new(options: &Produce) -> Option<Self> {
        let of = |name: &Option<String>, once: fn(String) -> Once| {
            name.as_deref().map(|name| Self { field: Field::new(name), once })
        };
        of(&options.dedup_field, Once::Dedup).or_else(|| of(&options.unique_field, Once::Unique))
    }

    /// Returns the id of a message with this payload.
    ///
    /// # Errors
    /// It has none: sent without, it could be stored twice.
    pub(super) fn of(&self, payload: &[u8]) -> Result<Once, String> {
        self.field.of(payload)?.map(self.once)
    }
}
