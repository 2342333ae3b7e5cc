//! What is done once: sends with an id, idempotent handlers and calls, locks.

pub(crate) mod calls;
pub(crate) mod dedup;
pub(crate) mod idempotent_kills;
pub(crate) mod lock_faults;
pub(crate) mod locks;
pub(crate) mod unique;
