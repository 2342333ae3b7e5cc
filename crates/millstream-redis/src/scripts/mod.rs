//! Scripts: calls by hash, their arguments, and the keys of a wrong type that they met.

pub(crate) mod script;
pub(crate) mod times;
pub(crate) mod wrong_type;
