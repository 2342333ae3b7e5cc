//! Operations that are parts of several roles.

pub(crate) mod page;
pub(crate) mod repair;
