//! Log entries in bulk: appending, reading under a fence, trimming; also that of dead letters.

pub(crate) mod appender;
pub(crate) mod cluster_appender;
pub(crate) mod dead_trimming;
pub(crate) mod dedup;
pub(crate) mod dictionaries;
pub(crate) mod guard;
pub(crate) mod reader;
pub(crate) mod reader_line;
pub(crate) mod sharing;
pub(crate) mod stream_read;
pub(crate) mod trimming;
pub(crate) mod unique;
pub(crate) mod unpacking;
pub(crate) mod weight;
