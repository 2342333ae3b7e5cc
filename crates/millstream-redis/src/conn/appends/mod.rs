//! Connections of producers: one that requests follow each other on, and what all producers of a process share.

pub(crate) mod appender;
pub(crate) mod confirm;
pub(crate) mod dedup;
pub(crate) mod dictionaries;
pub(crate) mod node_appender;
pub(crate) mod numbered;
pub(crate) mod packed;
pub(crate) mod part;
pub(crate) mod script;
