#![doc = include_str!("../README.md")]

mod answers;
mod cancelled;
mod clock;
mod keeper;
mod monitor;
mod panics;
mod runners;
mod scope;
mod thread;

pub mod batches;
pub mod decide;
pub mod delivery;
pub mod extract;
pub mod fairness;
pub mod handler;
pub mod letter;
pub mod limits;
pub mod markers;
pub mod priorities;
pub mod requests;
pub mod steps;
pub mod test;

pub use answers::Answers;
pub use batches::{BatchBuilder, BatchItem, OpenBatch};
pub use clock::LeaseClock;
pub use delivery::Delivery;
pub use fairness::Fairness;
pub use handler::{Answer, Batch, BatchConfig, Layer, Letter, Next, Timeout, Trace};
pub use keeper::{Keeper, Kept, Rights};
pub use letter::{DeadLetterOutcome, IntoDeadLetterOutcome};
pub use limits::{Breaker, Limit};
pub use markers::{Idempotent, WhileRunning};
pub use monitor::{LoopMonitor, LoopState, Loops, Scope};
pub use panics::catch_panic;
pub use priorities::Priorities;
pub use runners::Runners;
pub use steps::{FanIn, FanOut, StepError, Steps};
pub use thread::ControlThread;
