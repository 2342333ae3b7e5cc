//! The name of the caller of a backend call, for a recorder below the layer that makes the call.

use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    static CALLER: Option<Arc<str>>;
}

/// Runs a call under a caller's name.
pub(crate) fn of<F: Future>(name: Option<Arc<str>>, call: F) -> impl Future<Output = F::Output> + use<F> {
    CALLER.scope(name, call)
}

/// Returns the name under which this call runs; `None` if none was set.
pub(crate) fn name() -> Option<String> {
    CALLER.try_with(|name| name.as_deref().map(str::to_owned)).ok().flatten()
}
