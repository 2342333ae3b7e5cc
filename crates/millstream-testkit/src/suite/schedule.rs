//! The schedule role: messages that are due later.

mod changing;
mod delaying;
mod listing;
mod placing;
mod retrying;
mod waking;

use std::time::Duration;

use millstream_core::envelope::Limits;
use millstream_core::log::Entry;
use millstream_core::schedule::{
    Due, OnConflict, Place, Placed, Promoted, ScheduleId, Scheduled, Scheduling,
};
use millstream_core::wire::{self, Fields};
use millstream_core::{Capability, Envelope, ErrorKind, TopicPartition};

use super::suite;
use crate::case::{Case, Violation, ensure, equal};
use crate::harness::Harness;

pub(super) fn cases() -> Vec<Case> {
    [
        retrying::cases(),
        delaying::cases(),
        placing::cases(),
        changing::cases(),
        listing::cases(),
        waking::cases(),
    ]
    .concat()
}

/// Tolerance, as backends count whole milliseconds, rounded up.
pub(super) const ROUNDING: Duration = Duration::from_millis(2);

/// A delay that no case outlives.
pub(super) const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn id(text: impl AsRef<str>) -> Result<ScheduleId, Violation> {
    Ok(ScheduleId::new(text)?)
}

/// Returns the body of the message with this id.
pub(super) fn body(id: &str) -> Fields {
    wire::encode(&Envelope::new(format!("of {id}")))
}

/// Returns a message whose payload contains its id.
pub(super) fn scheduling(place: &Place, name: impl AsRef<str>, due: Due) -> Result<Scheduling, Violation> {
    let fields = body(name.as_ref());
    Ok(Scheduling { place: place.clone(), id: id(name)?, due, fields, on_conflict: OnConflict::Keep })
}

/// Schedules messages, and expects that each succeeds.
pub(super) async fn schedule(h: &Harness, batch: &[Scheduling]) -> Result<Vec<Placed>, Violation> {
    let results = h.backend.schedule().schedule(batch).await;
    ensure!(results.len() == batch.len(), "{} results for {} schedulings", results.len(), batch.len());
    Ok(results.into_iter().collect::<Result<_, _>>()?)
}

/// Schedules messages under ids that do not exist yet.
pub(super) async fn place_all<'a>(
    h: &Harness,
    place: &Place,
    messages: impl IntoIterator<Item = (&'a str, Due)>,
) -> Result<(), Violation> {
    let batch: Vec<_> =
        messages.into_iter().map(|(id, due)| scheduling(place, id, due)).collect::<Result<_, _>>()?;
    let placed = schedule(h, &batch).await?;
    equal!(placed, vec![Placed::New; batch.len()], "what became of new messages");
    Ok(())
}

/// Returns a waiting message.
pub(super) async fn shown(h: &Harness, place: &Place, name: &str) -> Result<Scheduled, Violation> {
    let found = h.backend.schedule().get(place, &id(name)?).await?;
    found.ok_or_else(|| Violation::new(format!("{name} does not wait")))
}

/// Returns the ids of all waiting messages.
pub(super) async fn all(h: &Harness, place: &Place) -> Result<Vec<String>, Violation> {
    let waiting = h.backend.schedule().scheduled(place, None, 1_000).await?;
    Ok(waiting.iter().map(|scheduled| scheduled.id.to_string()).collect())
}

/// Expects that exactly these messages wait, if the backend can list them.
pub(super) async fn expect_all(h: &Harness, place: &Place, expected: &[&str]) -> Result<(), Violation> {
    if h.backend.supports(Capability::ListScheduled) {
        equal!(all(h, place).await?, expected, "what waits");
    }
    Ok(())
}

/// Promotes delayed messages once: without a lease, or under one where the backend needs it.
async fn promote_once(h: &Harness, tp: &TopicPartition, limit: usize) -> Result<Promoted, Violation> {
    if h.backend.supports(Capability::PromoteDelayed) {
        return Ok(h.backend.schedule().promote_delayed(tp, limit).await?);
    }
    let promoter = h.owner(tp, "promoter").await?;
    let promoted = h.backend.schedule().promote(&promoter.lease, limit).await?;
    h.backend.leases().release(&promoter.lease).await?;
    Ok(promoted)
}

/// Promotes until `count` delayed messages were moved.
async fn promote_delayed(h: &Harness, tp: &TopicPartition, count: usize) -> Result<(), Violation> {
    let mut deadline = h.wait_for("delayed messages to be promoted");
    let mut moved = 0;
    loop {
        moved += promote_once(h, tp, 100).await?.moved;
        ensure!(moved <= count, "{moved} messages were promoted, {count} were scheduled");
        if moved == count {
            return Ok(());
        }
        deadline.pause().await?;
    }
}

/// Returns the id in the payload of an entry.
fn named(entry: &Entry) -> Result<String, Violation> {
    let message = wire::decode(entry.receipt, &entry.fields, &Limits::default()).envelope;
    let payload = message.map(|envelope| String::from_utf8_lossy(&envelope.payload).into_owned());
    let name = payload.ok().and_then(|payload| Some(payload.strip_prefix("of ")?.to_owned()));
    name.ok_or_else(|| Violation::new(format!("an entry that nobody scheduled: {entry:?}")))
}

fn names(entries: &[Entry]) -> Result<Vec<String>, Violation> {
    entries.iter().map(named).collect()
}

/// Returns the value of each result, or the kind of its error.
pub(super) fn outcomes(results: Vec<millstream_core::Result<Placed>>) -> Vec<Result<Placed, ErrorKind>> {
    results.into_iter().map(|result| result.map_err(|error| error.kind())).collect()
}

fn after(ms: u64) -> Due {
    Due::In(Duration::from_millis(ms))
}

fn partition(place: &Place) -> Result<&TopicPartition, Violation> {
    match place {
        Place::Partition(tp) => Ok(tp),
        Place::Shard(shard) => Err(Violation::new(format!("{shard} is no partition"))),
    }
}
