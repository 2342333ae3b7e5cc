//! What needs no server. One program, because each costs its own linking.
//!
//! Two modules set what belongs to the process, which matters to `cargo test` alone, since cargo-nextest has a process for each test:
//! [`fuzzing`] limits the address space to 4 GiB, which is enough for the others, and it and [`simulation`] each add a
//! panic hook, which counts panics of its own thread and calls the hook before it.
#![allow(missing_docs)]

mod continuity;
mod fuzzing;
mod minimal;
mod model;
mod simulation;
mod wire;
