//! What is tested on real servers.
//! One program, because each costs its own linking: with it are the tests of the folders beside this one that need servers, or
//! processes of ours.
#![allow(missing_docs)]

mod abuse;
#[path = "../bank/mod.rs"]
mod bank;
#[path = "../chaos/mod.rs"]
mod chaos;
mod consumers;
mod delay;
#[path = "../examples/mod.rs"]
mod examples;
mod failures;
mod load;
#[path = "../mutants/mod.rs"]
mod mutants;
mod once;
mod operator;
#[path = "../outbox/mod.rs"]
mod outbox;
mod security;
mod topology;
