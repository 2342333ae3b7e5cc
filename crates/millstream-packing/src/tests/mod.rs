//! Tests by what the crate exports. One program with the unit tests: each costs its own linking.

mod dictionary;
mod pack;
