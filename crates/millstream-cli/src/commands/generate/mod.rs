//! Output for other programs: shell completions, manual pages, reference pages, rules of access, schemas.

pub(in crate::commands) mod acl;
pub(crate) mod complete;
pub(in crate::commands) mod completions;
pub(crate) mod json_page;
pub(in crate::commands) mod man;
pub(crate) mod markdown;
pub(in crate::commands) mod schema;

use crate::commands::schemas::{Table, of};

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("acl", of::<acl::AclView>()),
    ("completions", None),
    ("man", None),
    ("schema", of::<schema::SchemaView>()),
];
