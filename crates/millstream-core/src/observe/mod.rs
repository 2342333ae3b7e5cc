//! What observers get: events, spans and health.

pub mod event;
mod handled;
pub mod health;
mod lock_end;
mod message_bytes;
pub mod span;
