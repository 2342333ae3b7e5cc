//! Tests by what the crate exports. One program with the unit tests: each costs its own linking.

mod batches;
mod failover;
mod operator;
mod tasks;
mod waking;
