#![doc = include_str!("../README.md")]

mod backend;
mod batches;
mod boot_clock;
mod clock;
mod marks;
mod membership;
mod packs;
mod results;
mod shard;
mod state;
mod steps;
mod stream;
#[cfg(test)]
mod tests;
mod timetable;
mod trim;

mod roles;

pub mod operator;

pub use backend::MemoryBackend;
pub use boot_clock::SuspendableClock;
