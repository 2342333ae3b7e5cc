#![doc = include_str!("../README.md")]

pub mod case;
pub mod harness;
pub mod owner;

mod suite;

pub mod broken;

pub use case::{Case, Verdict, Violation};
pub use harness::{Harness, Operator};
pub use owner::Owner;
pub use suite::cases;
