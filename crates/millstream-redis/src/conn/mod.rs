//! Connections: dialling, one request and its replies, shared and exclusive use, and the parsers of replies.

pub(crate) mod bulk;
pub(crate) mod connection;
pub(crate) mod control_thread;
pub(crate) mod cursor;
pub(crate) mod pipe;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod resp;
pub(crate) mod socket;
pub(crate) mod stream;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod waiters;
pub(crate) mod wrong_type;
