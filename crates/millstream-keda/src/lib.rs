#![doc = include_str!("../README.md")]

mod proto;
mod scaler;
mod server;
mod service;
#[cfg(test)]
mod tests;
mod trigger;

pub use scaler::{Activity, Scaler};
pub use server::Server;
pub use trigger::Trigger;
