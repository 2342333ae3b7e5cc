//! How much one call may ask of a server.

pub(crate) mod bytes;
pub(crate) mod load;
pub(crate) mod portions;
