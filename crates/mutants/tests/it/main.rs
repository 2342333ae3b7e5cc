//! Tests of the suite, of its mutants and of the checks. One program: each costs its own linking.

mod chaos;
mod claims;
mod every_case_can_fail;
mod history;
mod memory;
mod support;
