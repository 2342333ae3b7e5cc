//! What is tested of delay queues, over the backend in memory.
//! One program with the unit tests: each costs its own linking.

mod claims;
mod delayed;
mod faults;
mod firing;
mod limits;
mod outages;
mod panics;
mod queue;
#[cfg(feature = "cron")]
mod recurring;
mod retention;
#[cfg(feature = "cron")]
mod rules;
mod support;
mod suspension;
mod topics;
mod worker;
