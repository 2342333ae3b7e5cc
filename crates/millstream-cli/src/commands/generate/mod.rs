//! Output for other programs: shell completions, manual pages, the reference page, rules of access.

pub(in crate::commands) mod acl;
pub(crate) mod complete;
pub(in crate::commands) mod completions;
pub(in crate::commands) mod man;
pub(crate) mod markdown;
