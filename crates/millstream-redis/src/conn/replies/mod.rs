//! Replies of a server: where each ends, reading entries in place, and the client's values for everything else.

pub(crate) mod cursor;
pub(crate) mod reply;
pub(crate) mod resp;
pub(crate) mod wrong_type;
