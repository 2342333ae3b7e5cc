#![doc = include_str!("../README.md")]

mod backend;
mod clock;
mod shard;
mod state;
mod stream;
mod timetable;

// One file per role, named as in `millstream-core`.
mod catalog;
mod dead_letters;
mod leases;
mod log;
mod members;
mod recurring;
mod schedule;
mod shared;
mod tasks;

pub mod operator;

pub use backend::MemoryBackend;
