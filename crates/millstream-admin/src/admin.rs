//! The handle of all operator functions.

use std::fmt;
use std::sync::Arc;

use millstream_core::batches::{BatchMember, EndedMember, MemberEnd};
use millstream_core::cancels::CancelRequest;
use millstream_core::event::Ignore;
use millstream_core::panics::Careful;
use millstream_core::results::StoredResult;
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

impl Admin {
    /// Says to its batch that a member was removed. It has left a note, so a failure costs time and nothing else.
    pub(crate) async fn end_member(&self, request: &CancelRequest) {
        let Some(StoredResult { demand, result }) = &request.result else { return };
        if let (Some(BatchMember { batch, number, keeps_result, .. }), Ok(role)) =
            (&demand.member, self.backend.batches())
        {
            let result = keeps_result.then(|| result.clone());
            let member = EndedMember { result, ..EndedMember::new(*number, MemberEnd::Dead) };
            if let Err(error) = role.end_members(batch, &[member]).await {
                tracing::debug!(%batch, number, %error, "a batch learns later that a member was removed");
            }
        }
    }
}
