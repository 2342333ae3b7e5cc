//! Reading what is stored, page by page: messages, pending entries, new messages, and lists over many partitions.

pub(crate) mod cursor;
pub(crate) mod merge;
pub(crate) mod messages;
pub(crate) mod pending;
pub(crate) mod positions;
pub(crate) mod tail;
pub(crate) mod walk;
