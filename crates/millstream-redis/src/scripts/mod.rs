//! Scripts: calls by hash, their arguments (times, retentions), and the keys of a wrong type that they met.

pub(crate) mod retention;
pub(crate) mod script;
pub(crate) mod times;
pub(crate) mod wrong_type;
