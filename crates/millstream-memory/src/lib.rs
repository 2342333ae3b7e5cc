#![doc = include_str!("../README.md")]

mod backend;
mod boot_clock;
mod clock;
mod shard;
mod state;
mod stream;
mod timetable;
mod trim;

// One file per role, named as in `millstream-core`.
mod audit;
mod catalog;
mod dead_letters;
mod inspect;
mod leases;
mod log;
mod members;
mod recurring;
mod schedule;
mod shared;
mod tasks;

pub mod operator;

pub use backend::MemoryBackend;
pub use boot_clock::SuspendableClock;
