//! Users with few rights, credentials, TLS, and what must never be written anywhere.

pub(crate) mod acl;
pub(crate) mod credentials;
pub(crate) mod secrets;
pub(crate) mod tls;
