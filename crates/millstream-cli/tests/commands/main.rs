//! Every command, as people and programs call it, on a real server: a module each.

mod cli;
mod consume;
mod delayed;
mod dlq;
mod docs;
mod feed;
mod globals;
mod group;
mod help;
mod inspect;
mod lag;
mod letters;
mod lock;
mod partial;
#[cfg(feature = "top")]
mod picture;
mod produce;
mod pty;
mod queue;
mod retries;
mod schedule;
mod seed;
// The same file as other tests use: one home for how a server is started, watched and stopped.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../../integration-tests/src/server.rs"]
mod server;
mod sound;
mod table;
mod tail;
#[cfg(feature = "top")]
mod top;
mod topic;
mod trouble;
