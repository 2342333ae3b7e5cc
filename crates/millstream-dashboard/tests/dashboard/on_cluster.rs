//! All cases over a queue on a cluster, with the dashboard under a prefix of a host that has asked who the user is.

#[path = "actions.rs"]
mod actions;
#[path = "audit.rs"]
mod audit;
#[path = "find.rs"]
mod find;
#[path = "forms.rs"]
mod forms;
#[path = "guarded/moves.rs"]
mod moves;
#[path = "place.rs"]
mod place;
#[path = "guarded/positions.rs"]
mod positions;
#[path = "support.rs"]
mod support;
#[path = "topics.rs"]
mod topics;
#[path = "walk.rs"]
mod walk;

use millstream::Millstream;

/// Path under which a host has the dashboard.
const PREFIX: &str = "/admin/mq";

/// Returns an empty queue, in a namespace of its own.
async fn queue() -> Millstream {
    crate::namespace(crate::cluster::shared_url()).await
}
