//! The handle: everything starts here.

use std::fmt;

use millstream_core::{Backend, Error, ErrorKind, TopicName};

/// What an operator can ask and do. Cloning is cheap.
#[derive(Clone)]
pub struct Admin {
    pub(crate) backend: Backend,
}

impl Admin {
    /// Over a backend.
    #[must_use]
    pub fn new(backend: Backend) -> Self {
        Self { backend }
    }
}

pub(crate) fn not_found(topic: &TopicName) -> Error {
    Error::new(ErrorKind::NotFound, format!("topic {topic} does not exist"))
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}
