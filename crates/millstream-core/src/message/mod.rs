//! The message: envelope, its wire form, receipts and dead letters, the codec of the payload, attempt history and trace
//! context.

pub(crate) mod append;
pub(crate) mod batches;
pub mod codec;
pub(crate) mod dead_letter;
pub mod dedup;
pub mod delivered;
pub(crate) mod durability;
pub mod envelope;
pub mod history;
pub(crate) mod operation;
pub mod progress;
pub(crate) mod receipt;
pub mod results;
pub(crate) mod steps;
pub mod trace;
pub mod wire;
