//! Scripts: calls by hash, their replies, and the keys of a wrong type that they met.

pub(crate) mod reply;
pub(crate) mod script;
pub(crate) mod wrong_type;
