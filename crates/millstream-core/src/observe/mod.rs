//! What observers get: events and health.

pub mod event;
pub mod health;
mod lock_end;
