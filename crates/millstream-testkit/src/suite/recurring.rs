//! The recurring role: messages that are scheduled repeatedly.

mod firing;
mod keeping;

use millstream_core::Timestamp;
use millstream_core::recurring::Recurrence;
use millstream_core::schedule::{OnConflict, Place, Placed};

use super::schedule::{body, id};
use super::suite;
use crate::case::{Case, Verdict, Violation, equal};
use crate::harness::Harness;

pub(super) fn cases() -> Vec<Case> {
    [keeping::cases(), firing::cases()].concat()
}

/// Returns a recurrence whose body contains its id.
fn recurrence(name: &str, next: Option<Timestamp>) -> Result<Recurrence, Violation> {
    let rule = format!("rule of {name}");
    Ok(Recurrence { id: id(name)?, rule, fields: body(name), next, paused: false })
}

/// Stores recurrences that do not exist yet.
async fn put_all<'a>(
    h: &Harness,
    place: &Place,
    recurrences: impl IntoIterator<Item = (&'a str, Timestamp)>,
) -> Verdict {
    for (name, next) in recurrences {
        let put = h.backend.recurring()?.put(place, &recurrence(name, Some(next))?, OnConflict::Keep).await?;
        equal!(put, Placed::New, "what became of a new recurrence");
    }
    Ok(())
}

/// Returns the ids of due recurrences.
async fn due(h: &Harness, place: &Place) -> Result<Vec<String>, Violation> {
    let due = h.backend.recurring()?.due(place).await?.recurrences;
    Ok(due.iter().map(|recurrence| recurrence.id.to_string()).collect())
}

/// Returns all recurrences.
async fn listed(h: &Harness, place: &Place) -> Result<Vec<Recurrence>, Violation> {
    Ok(h.backend.recurring()?.recurrences(place, None, 100).await?)
}
