//! All cases over a queue on a server.

#[path = "actions.rs"]
mod actions;
#[path = "audit.rs"]
mod audit;
#[path = "batches.rs"]
mod batches;
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
#[path = "steps.rs"]
mod steps;
#[path = "support.rs"]
mod support;
#[path = "topics.rs"]
mod topics;
#[path = "walk.rs"]
mod walk;

use millstream::Millstream;

/// Path under which a host has the dashboard: none.
const PREFIX: &str = "";

/// Returns an empty queue, in a namespace of its own.
async fn queue() -> Millstream {
    crate::namespace(crate::server::shared_url()).await
}
