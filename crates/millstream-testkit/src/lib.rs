#![doc = include_str!("../README.md")]

pub mod case;
pub mod harness;
pub mod history;
mod violation;

mod caller;
mod run;
mod suite;

pub mod chaos;

pub use case::{Case, Verdict, Violation};
pub use harness::owner::{self, Owner};
pub use harness::{Harness, Operator};
pub use run::{Report, run};
pub use suite::{cases, cases_for, packed_cases};
