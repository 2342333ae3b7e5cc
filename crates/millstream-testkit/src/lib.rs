#![doc = include_str!("../README.md")]

pub mod case;
pub mod harness;
pub mod history;
pub mod owner;

mod caller;
mod suite;

pub mod broken;
pub mod chaos;

pub use case::{Case, Verdict, Violation};
pub use harness::{Harness, Operator};
pub use owner::Owner;
pub use suite::cases;
