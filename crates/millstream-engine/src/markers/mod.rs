//! Markers of operations: the guard around the handler, and the loop that extends the markers of those that run.

mod guard;
mod table;

pub use guard::{Guarding, wrap};
pub use table::{MarkerTable, extend_markers};
