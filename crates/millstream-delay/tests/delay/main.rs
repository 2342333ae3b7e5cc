//! What is tested of delay queues, over the backend in memory.
//! One binary, because each costs its own linking.
#![allow(missing_docs)]

mod claims;
mod delayed;
mod faults;
mod firing;
mod outages;
mod panics;
mod queue;
mod recurring;
mod retention;
mod rules;
mod support;
mod suspension;
mod topics;
mod worker;
