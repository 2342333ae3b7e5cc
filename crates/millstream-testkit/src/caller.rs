//! The caller: who makes a call, for a recorder that stands below those who make it.

use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    static CALLER: Option<Arc<str>>;
}

/// Runs a call in somebody's name.
pub(crate) fn of<F: Future>(name: Option<Arc<str>>, call: F) -> impl Future<Output = F::Output> + use<F> {
    CALLER.scope(name, call)
}

/// In whose name this call runs; `None` if nobody said.
pub(crate) fn name() -> Option<String> {
    CALLER.try_with(|name| name.as_deref().map(str::to_owned)).ok().flatten()
}
