//! Every command, as people and programs call it, on a real server: a module each.

mod dlq;
mod docs;
mod group;
mod help;
mod http;
mod limits;
mod lock;
mod messages;
mod plan;
mod queue;
mod sound;
mod support;
mod table;
#[cfg(feature = "top")]
mod top;
mod topic;
