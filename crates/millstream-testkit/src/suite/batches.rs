//! Batches: messages that are counted together.

mod counting;
mod filling;
mod keeping;
mod noting;
mod sending;
mod waiting;

use millstream_core::batches::{
    BATCH_EVENT_HEADER, BatchEvent, BatchEventKind, BatchId, BatchMember, BatchNote, BatchSpec, BatchState,
    Batches, Block, Confirmed, EndedMember, MAX_ENDS, MemberEnd, MemberState, Noted,
};
use millstream_core::results::{MessageResult, StoredResult};
use millstream_core::wire::{self, Fields};
use millstream_core::{Envelope, Place, TopicPartition};

use super::log::results::number;
use super::suite;
use crate::case::{Case, Violation, ensure, equal};
use crate::harness::Harness;

pub(super) fn cases() -> Vec<Case> {
    [
        filling::cases(),
        counting::cases(),
        sending::cases(),
        keeping::cases(),
        noting::cases(),
        waiting::cases(),
    ]
    .concat()
}

const DONE: MemberEnd = MemberEnd::Done;
const DEAD: MemberEnd = MemberEnd::Dead;

pub(in crate::suite) fn role(h: &Harness) -> Result<&dyn Batches, Violation> {
    Ok(&**h.backend.batches()?)
}

/// Returns a place in a batch that need not exist.
pub(in crate::suite) fn member(tp: &TopicPartition, at: u32) -> BatchMember {
    BatchMember::new(BatchId::new(tp.clone(), 7), at)
}

/// Returns what is stored with the settlement of a member.
pub(in crate::suite) fn noted(member: &BatchMember, result: MessageResult) -> Box<StoredResult> {
    Box::new(StoredResult::new(member.clone(), result))
}

/// Returns the notes of a place, each with a larger id than the one before.
async fn notes(h: &Harness, place: &Place, limit: usize) -> Result<Vec<BatchNote>, Violation> {
    let notes = role(h)?.notes(place, None, limit).await?;
    ensure!(notes.is_sorted_by(|one, next| one.id < next.id), "the ids of notes do not grow: {notes:?}");
    Ok(notes)
}

/// Expects the notes of these members. Those of one call may be in any order.
pub(in crate::suite) async fn expect_notes(
    h: &Harness,
    place: &(impl Clone + Into<Place>),
    expected: &[(&BatchMember, MemberEnd)],
    when: &str,
) -> Result<(), Violation> {
    let found = notes(h, &place.clone().into(), MAX_ENDS).await?;
    let ended = |note: BatchNote| match note.said {
        Some(Noted::Ended(batch, it)) => Some((batch, it.number, it.end)),
        _ => None,
    };
    let mut found: Vec<_> = found.into_iter().filter_map(ended).collect();
    found.sort_unstable();
    let expected = expected.iter().map(|(member, end)| (member.batch.clone(), member.number, *end));
    let mut expected: Vec<_> = expected.collect();
    expected.sort_unstable();
    equal!(found, expected, "the notes {when}");
    Ok(())
}

/// Returns the request of a client for so many numbers.
fn request(count: u32) -> Block {
    Block { from: 0, to: count, token: fastrand::u64(..) }
}

fn confirmed(block: Block, used: u32, failed: &[u32]) -> Confirmed {
    Confirmed { block, used, failed: failed.to_vec() }
}

/// Returns the confirmation of a block of which all numbers were used.
fn all_of(block: Block) -> Confirmed {
    confirmed(block, block.to, &[])
}

/// Returns the message for an event.
fn callback(kind: BatchEventKind) -> Fields {
    let mut fields = wire::encode(&Envelope::new(format!("on {}", kind.as_str())));
    fields.push(("h:of".into(), "the creator".into()));
    fields
}

/// Returns a spec with a message for each of these events.
fn spec(kinds: &[BatchEventKind]) -> BatchSpec {
    let callbacks = kinds.iter().map(|kind| (*kind, callback(*kind))).collect();
    BatchSpec { callbacks, ..BatchSpec::default() }
}

/// A batch of a new partition.
struct BatchUnderTest {
    h: Harness,
    id: BatchId,
}

impl BatchUnderTest {
    async fn new(h: &Harness, spec: &BatchSpec) -> Result<Self, Violation> {
        Self::at(h, h.partition().await?, spec).await
    }

    async fn at(h: &Harness, tp: TopicPartition, spec: &BatchSpec) -> Result<Self, Violation> {
        let id = BatchId::new(tp, number());
        role(h)?.create(&id, spec).await?;
        Ok(Self { h: h.clone(), id })
    }

    /// Creates one with so many members, and seals it.
    async fn sealed(h: &Harness, spec: &BatchSpec, members: u32) -> Result<Self, Violation> {
        let batch = Self::new(h, spec).await?;
        let block = batch.reserve(members, &[]).await?;
        batch.seal(&[all_of(block)]).await?;
        Ok(batch)
    }

    fn role(&self) -> Result<&dyn Batches, Violation> {
        role(&self.h)
    }

    async fn reserve(&self, count: u32, confirmed: &[Confirmed]) -> Result<Block, Violation> {
        let request = request(count);
        let block = self.role()?.reserve(&self.id, request, "target", confirmed).await?;
        equal!((block.token, block.to - block.from), (request.token, count), "token and count of a block");
        Ok(block)
    }

    async fn seal(&self, confirmed: &[Confirmed]) -> Result<BatchState, Violation> {
        Ok(self.role()?.seal(&self.id, confirmed).await?)
    }

    async fn ends(&self, ends: &[(u32, MemberEnd)]) -> Result<Option<bool>, Violation> {
        let ends: Vec<_> = ends.iter().map(|(number, end)| EndedMember::new(*number, *end)).collect();
        Ok(self.role()?.end_members(&self.id, &ends).await?)
    }

    async fn state(&self) -> Result<BatchState, Violation> {
        let state = self.role()?.state(&self.id).await?;
        state.ok_or_else(|| Violation::new(format!("batch {} does not exist", self.id)))
    }

    /// Expects these numbers of members, of those that are done and dead, and of what was left out.
    async fn expect(&self, expected: [u32; 4], when: &str) -> Result<(), Violation> {
        let state = self.state().await?;
        let found = [state.members, state.done, state.dead, state.left_out];
        equal!(found, expected, "members, done, dead and left out {when}");
        Ok(())
    }

    /// Returns all numbers that have a state, up to `limit` with each call.
    async fn numbers(&self, of: MemberState, limit: usize) -> Result<Vec<u32>, Violation> {
        let (mut found, mut from) = (Vec::new(), 0);
        loop {
            let (page, next) = self.role()?.numbers(&self.id, of, from, limit).await?;
            ensure!(page.len() <= limit, "a page of {}, {limit} were asked for", page.len());
            found.extend(page);
            let Some(next) = next else { return Ok(found) };
            ensure!(next > from, "the page from {from} on is followed by that from {next} on");
            from = next;
        }
    }

    /// Returns the message of an event, as it is in the log.
    fn message(&self, kind: BatchEventKind, [members, done, dead]: [u32; 3]) -> Fields {
        let mut fields = callback(kind);
        let event = BatchEvent::new(self.id.clone(), kind, members, done, dead).to_string();
        fields.push((format!("{}{BATCH_EVENT_HEADER}", wire::HEADER).into(), event.into()));
        fields
    }
}
