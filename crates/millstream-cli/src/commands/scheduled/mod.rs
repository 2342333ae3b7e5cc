//! Messages and tasks that are due later: delayed, retries, recurring.

pub(in crate::commands) mod delayed;
pub(in crate::commands) mod recurring;
pub(in crate::commands) mod retries;
pub(in crate::commands) mod schedule;
mod when;
