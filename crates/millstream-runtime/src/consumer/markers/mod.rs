//! Markers of operations: the guard around the handler, and the loop that extends the markers of those that run.

pub(in crate::consumer) mod guard;
pub(in crate::consumer) mod keeper;
