//! What all of these tests use: the compiled command, a terminal, data, a server.

pub(crate) mod cli;
pub(crate) mod envelope;
pub(crate) mod feed;
pub(crate) mod pty;
pub(crate) mod seed;
// The same file as other tests use: one home for how a server is started, watched and stopped.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../../integration-tests/src/server.rs"]
pub(crate) mod server;
