//! What is tested on real servers.
//! One binary, because each costs its own linking.
#![allow(missing_docs)]

mod abuse;
mod consumers;
mod delay;
mod failures;
mod load;
mod once;
mod operator;
mod security;
mod topology;
