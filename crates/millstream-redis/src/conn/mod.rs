//! Connections: dialling, the servers of a cluster, one request and its replies, and shared and exclusive use.

pub(crate) mod appends;
pub(crate) mod cluster;
pub(crate) mod command;
pub(crate) mod dial;
pub(crate) mod replies;
pub(crate) mod stream;

pub(crate) mod bulk;
pub(crate) mod connection;
pub(crate) mod lease_thread;
pub(crate) mod login;
pub(crate) mod multiplexed;
pub(crate) mod once;
pub(crate) mod pipe;
pub(crate) mod pooled;
pub(crate) mod reader_connections;
pub(crate) mod request;
pub(crate) mod socket;
pub(crate) mod terms;
pub(crate) mod waits;
