//! Snapshots of logs with their groups, and the counts that are kept between them.

pub(crate) mod lag_cache;
pub(crate) mod look;
