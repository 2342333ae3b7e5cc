//! Steps: what handlers have done, the waits for which they hand messages back, and the signals that end these.

mod ending;
pub(super) mod packs;
mod signalling;
mod storing;
mod waiting;

use std::time::Duration;

use bytes::Bytes;
use millstream_core::cancels::WorkPlace;
use millstream_core::log::{Entry, ProgressRight};
use millstream_core::schedule::Due;
use millstream_core::steps::{STEPS_HEADER, Signalled, StepKind, StepRecord, StepWait, Steps, WorkId};
use millstream_core::wire::{self, Field, Fields};
use millstream_core::{
    GroupName, History, Limits, MessageId, Settlement, Timestamp, TopicPartition, log::Source,
};

use super::suite;
use crate::case::{Case, Verdict, Violation, ensure, equal};
use crate::harness::Harness;
use crate::owner::Owner;

pub(super) fn cases() -> Vec<Case> {
    [storing::cases(), waiting::cases(), signalling::cases(), ending::cases()].concat()
}

pub(in crate::suite) fn role(h: &Harness) -> Result<&dyn Steps, Violation> {
    Ok(&**h.backend.steps()?)
}

/// Returns the id of a message as one group handles it.
fn work(tp: &TopicPartition, group: &str, id: MessageId) -> Result<WorkId, Violation> {
    Ok(WorkId::new(WorkPlace::Group(tp.clone(), GroupName::new(group)?), id))
}

/// Returns a step that is done.
pub(in crate::suite) fn step(name: &str, value: &str) -> StepRecord {
    let at = Timestamp::from_millis(1_700_000_000_000);
    StepRecord::new(StepKind::Done, at, name, value.to_owned())
}

pub(in crate::suite) async fn steps(h: &Harness, id: &WorkId) -> Result<Vec<StepRecord>, Violation> {
    Ok(role(h)?.read(id).await?.1)
}

/// Expects that these steps are stored, in this order.
pub(in crate::suite) async fn expect(
    h: &Harness,
    id: &WorkId,
    expected: &[StepRecord],
    when: &str,
) -> Verdict {
    equal!(steps(h, id).await?, expected, "the steps {when}");
    Ok(())
}

/// Returns kinds and names of what is stored.
pub(in crate::suite) async fn names(h: &Harness, id: &WorkId) -> Result<Vec<(StepKind, String)>, Violation> {
    Ok(steps(h, id).await?.into_iter().map(|it| (it.kind, it.name)).collect())
}

/// Returns the time of a record.
pub(in crate::suite) async fn time_of(
    h: &Harness,
    id: &WorkId,
    kind: StepKind,
    name: &str,
) -> Result<Timestamp, Violation> {
    let found = steps(h, id).await?.into_iter().find(|it| it.kind == kind && it.name == name);
    found.map(|it| it.at).ok_or_else(|| Violation::new(format!("there is no {kind:?} {name:?}")))
}

/// Signals, and returns what became of that.
pub(in crate::suite) async fn signal(
    h: &Harness,
    id: &WorkId,
    name: &str,
    value: &'static str,
) -> Result<Signalled, Violation> {
    Ok(role(h)?.signal(id, name, Bytes::from_static(value.as_bytes())).await?)
}

/// Returns the steps in the body of what is dead.
pub(in crate::suite) fn in_header(body: &[Field]) -> Result<Vec<StepRecord>, Violation> {
    let name = format!("{}{STEPS_HEADER}", wire::HEADER);
    let mut values = body.iter().filter(|(field, _)| *field == name).map(|(_, value)| value);
    let first = values.next().map(StepRecord::read).transpose()?;
    ensure!(values.next().is_none(), "there are several headers of steps");
    Ok(first.unwrap_or_default())
}

/// Returns the body of what is dead without the header of its steps.
pub(in crate::suite) fn without_header(body: &[Field]) -> Fields {
    let name = format!("{}{STEPS_HEADER}", wire::HEADER);
    body.iter().filter(|(field, _)| *field != name).cloned().collect()
}

fn right(owner: &Owner) -> ProgressRight {
    ProgressRight::Owner(owner.lease.clone())
}

/// Returns the id of the message's entry in the log.
fn origin(entry: &Entry) -> MessageId {
    wire::decode(entry.receipt, &entry.fields, &Limits::NONE).origin
}

/// Stores steps of a message under the right of its owner.
async fn store(owner: &mut Owner, entry: &Entry, records: &[StepRecord]) -> Verdict {
    let id = origin(entry).to_string();
    Ok(role(&owner.harness)?.store(&right(owner), &id, records).await?)
}

/// Returns the settlement of a message that is handed back for a wait.
fn waits(entry: &Entry, after: Duration, wait: StepWait) -> Settlement {
    Settlement::Retry {
        due: Due::In(after),
        attempt: 1,
        origin: origin(entry),
        error: String::new(),
        history: History::default(),
        wait: Some(Box::new(wait)),
    }
}

/// Hands a message back for a wait.
async fn park(owner: &mut Owner, entry: &Entry, after: Duration, wait: StepWait) -> Verdict {
    owner.settle_all(std::slice::from_ref(entry), &waits(entry, after, wait)).await
}

/// Takes the only message that is due.
async fn again(owner: &mut Owner) -> Result<Entry, Violation> {
    owner.promote(1).await?;
    let entry = owner.take_retries(1).await?.remove(0);
    equal!(entry.receipt.source, Source::Retry, "where it was read");
    Ok(entry)
}

/// Expects that no message is due.
async fn none_is_due(owner: &mut Owner, why: &str) -> Verdict {
    // What is due at once is due within the next millisecond.
    let now = owner.harness.now().await?;
    owner.harness.reaches(now.saturating_add(Duration::from_millis(2))).await?;
    let promoted = owner.harness.backend.schedule().promote(&owner.lease, 100).await?.moved;
    equal!(promoted, 0, "messages that are due ({why})");
    Ok(())
}
