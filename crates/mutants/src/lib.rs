//! Backends with one classic mistake each, which the conformance suite must find.
//!
//! A suite that nothing fails proves nothing. [`Broken`] wraps a correct backend and spoils one behaviour. The test
//! `every_case_can_fail` runs every case against every [`Mutant`].

mod broken;
mod mutant;

pub use broken::Broken;
pub use mutant::Mutant;
