//! Markers of operations: the guard around the handler, and the loop that extends the markers of those that run.

mod guard;
mod idempotent;
mod table;

pub use guard::{Guarding, wrap};
pub use idempotent::{Idempotent, WhileRunning};
pub use table::{MarkerTable, extend_markers};
