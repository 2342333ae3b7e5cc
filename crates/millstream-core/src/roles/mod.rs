//! Roles: the traits that a backend implements, one file each, with their types.

pub mod audit;
pub mod batches;
pub mod cancels;
pub mod catalog;
pub mod dead_letters;
pub mod idempotency;
pub mod inspect;
pub mod leases;
pub mod locks;
pub mod log;
pub mod members;
pub mod permits;
pub mod recurring;
pub mod schedule;
pub mod shared;
pub mod steps;
pub mod tasks;
