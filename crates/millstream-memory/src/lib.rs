#![doc = include_str!("../README.md")]

mod backend;
mod clock;
mod state;
mod stream;

// One file per role, named as in `millstream-core`.
mod catalog;
mod dead_letters;
mod leases;
mod log;
mod members;
mod schedule;
mod shared;

pub mod operator;

pub use backend::MemoryBackend;
