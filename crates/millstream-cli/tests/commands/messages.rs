//! Commands that send, show or schedule messages.

pub(crate) mod cancel;
mod consume;
pub(crate) mod delayed;
pub(crate) mod find;
pub(crate) mod follow;
pub(crate) mod killed;
pub(crate) mod large;
pub(crate) mod produce;
pub(crate) mod retries;
pub(crate) mod schedule;
pub(crate) mod signals;
pub(crate) mod status;
pub(crate) mod steps;
pub(crate) mod tail;
pub(crate) mod targets;
