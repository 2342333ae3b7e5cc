//! Decisions that every backend and runtime makes the same way: pure functions of what they are given.

pub mod assignment;
pub mod continuity;
pub mod error_groups;
pub(crate) mod fault;
pub mod fingerprint;
pub mod limits;
pub mod pages;
pub mod rates;
pub mod retention;
pub mod running;
pub mod suspension;
