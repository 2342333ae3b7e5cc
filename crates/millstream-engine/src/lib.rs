#![doc = include_str!("../README.md")]

mod answers;
mod clock;
mod keeper;
mod monitor;
mod panics;
mod runners;
mod thread;

pub use answers::Answers;
pub use clock::LeaseClock;
pub use keeper::{Keeper, Kept, Rights};
pub use monitor::{LoopMonitor, LoopState, Loops, Scope};
pub use panics::catch_panic;
pub use runners::Runners;
pub use thread::ControlThread;
