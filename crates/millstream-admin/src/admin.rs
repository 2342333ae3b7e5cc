//! The handle of all operator functions.

use std::fmt;
use std::sync::Arc;

use millstream_core::event::Ignore;
use millstream_core::panics::Careful;
use millstream_core::{Backend, Error, ErrorKind, Observer, TopicName};

/// Handle for inspecting and changing queues as an operator. Cloning is cheap.
#[derive(Clone)]
pub struct Admin {
    pub(crate) backend: Backend,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Admin {
    /// Creates a handle over a backend.
    #[must_use]
    pub fn new(backend: Backend) -> Self {
        Self { backend, observer: Arc::new(Ignore) }
    }

    /// Returns the handle with an observer, which receives what is done with dead letters
    /// ([`Event::DeadLetters`](millstream_core::Event::DeadLetters)).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Careful::over(Arc::new(observer)), ..self }
    }
}

pub(crate) fn not_found(topic: &TopicName) -> Error {
    Error::new(ErrorKind::NotFound, format!("topic {topic} does not exist")).at(topic)
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}
