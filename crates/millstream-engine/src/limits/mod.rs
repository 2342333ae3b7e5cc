//! Limits on how much is handled at once, across processes: what a message needs, and who gives it.
//!
//! A message needs units of one key for each limit that it comes under. [`PermitPool`] gets all of them or none, and answers when it has
//! them; until then the message waits without units. The pool is a state machine (`table/`) between three loops (`loops.rs`): one
//! exchanges units with the server, one listens for calls, and one renews the right of all units together.

mod limit;
mod loops;
mod pool;
mod table;

pub use limit::{Limit, LimitSet, Need};
pub use pool::{Asked, Permit, PermitAnswer, PermitPool};
