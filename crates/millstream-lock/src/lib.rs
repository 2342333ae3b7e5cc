#![doc = include_str!("../README.md")]

mod builder;
mod client;
mod error;
mod held;
mod leader;
mod reaper;
mod redlock;
mod watches;

pub use builder::LockBuilder;
pub use client::LockClient;
pub use error::{AcquireError, Busy, Lost, NoQuorum, RedLockError, RunError};
pub use held::{Held, LockView, Release};
pub use leader::{LeaderBuilder, LeaderWatch, Leadership, Term};
pub use redlock::{RedHeld, RedLock};
