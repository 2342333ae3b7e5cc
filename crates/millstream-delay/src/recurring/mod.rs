//! Recurring entries of a delay queue or topic: storing, listing and pausing them.

mod builder;
mod home;
mod messages;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::recurring::{Recurrence, Recurring};
use millstream_core::schedule::{OnConflict, Placed, ScheduleId};
use millstream_core::wire::Fields;
use millstream_core::{Place, Timestamp};

use crate::rule::Rule;

pub use builder::Recur;
pub(crate) use home::{Home, Spread};
pub use messages::RecurringMessages;

/// Stores a recurring entry with `rule` at a place. If an entry with the same rule and message exists, nothing changes,
/// not even an occurrence that is due; otherwise it is replaced, and a pause is kept. So every instance of a program
/// may call this at its start.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a rule that never matches, like the 30th of February; those of [`Recurring::put`].
pub async fn recur(
    recurring: &dyn Recurring,
    place: &Place,
    id: &ScheduleId,
    rule: &Rule,
    fields: Fields,
) -> Result<Placed> {
    keep(recurring, place, id, rule, fields, None).await
}

/// Same as [`recur`]; `moved` is the entry found under this id at another place. Its pause is kept, and, if the rule is
/// the same, its next time too.
async fn keep(
    recurring: &dyn Recurring,
    place: &Place,
    id: &ScheduleId,
    rule: &Rule,
    fields: Fields,
    moved: Option<&Recurrence>,
) -> Result<Placed> {
    let now = recurring.due(place).await?.now;
    let next = rule.next_after(now);
    if next.is_none() {
        let why = format!("{id} would never recur: `{rule}` has no time after now");
        return Err(Error::new(ErrorKind::InvalidConfig, why));
    }
    let mut recurrence = Recurrence { id: id.clone(), rule: rule.to_string(), fields, next, paused: false };
    if let Some(moved) = moved {
        recurrence.paused = moved.paused;
        if has_rule(moved, rule) {
            (recurrence.rule, recurrence.next) = (moved.rule.clone(), moved.next);
        }
    }
    let placed = recurring.put(place, &recurrence, OnConflict::Keep).await?;
    if placed != Placed::Kept {
        return Ok(placed);
    }
    let there = recurring.get(place, id).await?;
    if there.is_some_and(|there| has_rule(&there, rule) && there.fields == recurrence.fields) {
        return Ok(Placed::Kept);
    }
    // A replace keeps a pause, even one that is set at this moment.
    recurring.put(place, &recurrence, OnConflict::Replace).await
}

fn has_rule(recurrence: &Recurrence, rule: &Rule) -> bool {
    recurrence.rule.parse::<Rule>().is_ok_and(|there| there.is_but_for_anchor(rule))
}

/// Stored recurring entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecurringEntry {
    /// Place of the entry: a shard of the queue, or a partition of the topic.
    pub place: Place,
    /// Id. The scheduled tasks or messages are called `<id>@<milliseconds since 1970>`.
    pub id: ScheduleId,
    /// Text of the [`Rule`], possibly written by a later version.
    pub rule: String,
    /// Next due time; `None` if there is no further one, or if the entry is paused.
    pub next: Option<Timestamp>,
    /// Whether it is paused.
    pub paused: bool,
    /// Message that is scheduled for each occurrence, as it is stored.
    pub message: Fields,
}

impl RecurringEntry {
    fn new(place: Place, found: Recurrence) -> Self {
        let next = found.next.filter(|_| !found.paused);
        Self { place, id: found.id, rule: found.rule, next, paused: found.paused, message: found.fields }
    }
}
