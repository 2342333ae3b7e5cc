//! Roles of the backend on Redis, one file each, named as in `millstream-core`.

#[cfg(feature = "admin")]
pub(crate) mod audit;
pub(crate) mod batches;
pub(crate) mod cancels;
pub(crate) mod catalog;
pub(crate) mod dead_letters;
pub(crate) mod idempotency;
#[cfg(feature = "admin")]
pub(crate) mod inspect;
pub(crate) mod leases;
#[cfg(feature = "lock")]
pub(crate) mod locks;
pub(crate) mod log;
pub(crate) mod members;
pub(crate) mod permits;
pub(crate) mod recurring;
pub(crate) mod schedule;
pub(crate) mod shared;
pub(crate) mod steps;
pub(crate) mod tasks;
