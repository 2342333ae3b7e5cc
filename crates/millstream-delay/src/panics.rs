//! What becomes of panics: no code of others ends a loop, or keeps a task.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::FutureExt;
use millstream_core::Observer;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;

/// One round of a loop: a panic is an error of it, which is told and tried again as any other.
pub(crate) async fn caught<T>(round: impl Future<Output = Result<T>>) -> Result<T> {
    let caught = AssertUnwindSafe(round).catch_unwind().await;
    caught.unwrap_or_else(|panic| {
        Err(Error::new(ErrorKind::Protocol, format!("panicked: {}", text_of(&*panic))))
    })
}

/// What a panic says.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// An observer whose panics are logged.
pub(crate) struct Careful(pub(crate) Arc<dyn Observer>);

impl Observer for Careful {
    fn observe(&self, event: &Event<'_>) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.0.observe(event))) {
            tracing::error!(panic = text_of(&*panic), "an observer panicked");
        }
    }
}
