//! Limits on how much is handled at once, or begins in a time, across processes: what a message needs, and who gives it.
//!
//! A message needs units of one key for each limit that it comes under. [`PermitPool`] gets all of them or none, and answers when it has
//! them; until then the message waits without units. The pool is a state machine (`table/`) between loops (`loops.rs`): one exchanges
//! units with the server, one listens for calls, and one renews the right of all units together.
//!
//! Tokens of rates (`tokens/`) come first and last. A message waits for them before it asks for units, so that it holds none meanwhile;
//! and it spends them when it has its units. If they are gone by then, it gives the units back, and waits for the next ones.
//!
//! Breakers (`breakers.rs`) come before both: while one is open, messages wait for it alone. It is looked at again when a message has the
//! rest, since that may take long.

mod breaker;
mod breakers;
mod lifecycle;
mod limit;
mod loops;
mod pool;
mod table;
mod tokens;

pub use breaker::Breaker;
pub use lifecycle::PoolLoops;
pub use limit::{BreakerNeed, Limit, LimitSet, Need, Needs, TokenNeed};
pub use pool::{Asked, Begun, CallEnd, Obtaining, Permit, PermitAnswer, PermitPool, Spent};
