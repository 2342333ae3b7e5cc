//! All cases over a queue in memory.

#[path = "actions.rs"]
mod actions;
#[path = "audit.rs"]
mod audit;
#[path = "batches.rs"]
mod batches;
#[path = "cancels.rs"]
mod cancels;
#[path = "counts.rs"]
mod counts;
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

/// Returns an empty queue.
async fn queue() -> Millstream {
    Millstream::connect("memory://").await.expect("a queue")
}
