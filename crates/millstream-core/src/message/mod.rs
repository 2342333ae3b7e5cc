//! The message: envelope, its wire form, the codec of the payload, attempt history and trace context.

pub mod codec;
pub mod envelope;
pub mod history;
pub mod trace;
pub mod wire;
