//! Parts of background loops, shared by the consumer runtime and the delay engine.
//!
//! Millstream runs many loops: heartbeats, renewals, fetches, settlements, promotion, trimming. Each of them meets the same
//! four problems, and each is solved here once:
//!
//! - A round fails. The loop must say so once, back off, and say when it works again: [`LoopMonitor`].
//! - Somebody asks how the loops are: [`Loops`] lists them.
//! - A handler blocks every thread of the runtime, and leases must still be renewed: [`ControlThread`].
//! - The machine is suspended, and the monotonic clock does not count that time: [`LeaseClock`].
//!
//! A panic inside one round is an error of that round: [`catch_panic`].

mod clock;
mod monitor;
mod panics;
mod thread;

pub use clock::LeaseClock;
pub use monitor::{LoopMonitor, LoopState, Loops, Scope};
pub use panics::catch_panic;
pub use thread::ControlThread;
