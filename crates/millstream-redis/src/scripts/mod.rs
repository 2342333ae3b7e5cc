//! Scripts: calls by hash, those that name a gate, their arguments (times, retentions), and the keys of a wrong type that they met.

pub(crate) mod gate;
pub(crate) mod gather;
pub(crate) mod gathered;
pub(crate) mod retention;
pub(crate) mod script;
pub(crate) mod times;
pub(crate) mod wrong_type;
