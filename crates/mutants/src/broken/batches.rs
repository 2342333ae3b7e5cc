//! Mistakes of the role of batches.

use std::collections::HashMap;
use std::ops::Range;

use async_trait::async_trait;
use millstream_core::batches::{
    BATCH_EVENT_HEADER, BatchEvent, BatchEventKind, BatchId, BatchNote, BatchSpec, BatchState, Batches,
    Block, BlockState, Confirmed, EndedMember, MAX_BLOCK, MAX_ENDS, MAX_MEMBERS, MemberEnd, MemberState,
    Noted,
};
use millstream_core::log::{Append, Receipt, Settled, Settlement};
use millstream_core::results::MessageResult;
use millstream_core::{ErrorKind, MessageId, Place, Result, TopicPartition, wire};

use super::{Broken, Mutant};

/// State that mistakes of this role need.
#[derive(Default)]
pub(super) struct BatchMemo {
    specs: HashMap<BatchId, BatchSpec>,
    /// How each member ended: the first time, the last time, and how often it did again.
    ends: HashMap<(BatchId, u32), (MemberEnd, MemberEnd, u32)>,
    /// The last state of each batch.
    states: HashMap<BatchId, BatchState>,
    /// Notes of settlements that left none.
    notes: Vec<(TopicPartition, BatchNote)>,
    /// The last result of each member, or the first.
    results: HashMap<(BatchId, u32), MessageResult>,
}

#[async_trait]
impl Batches for Broken {
    async fn create(&self, id: &BatchId, spec: &BatchSpec) -> Result<()> {
        let mut spec = spec.clone();
        match self.sabotage {
            Mutant::BatchMessagesForgotten => spec.callbacks.clear(),
            Mutant::BatchStepIgnored => {
                for (kind, _) in &mut spec.callbacks {
                    if let BatchEventKind::Progress(percent) = kind {
                        *percent = 1;
                    }
                }
            }
            Mutant::BatchParentForgotten => spec.parent = None,
            Mutant::BatchKeepIgnored => spec.keep = std::time::Duration::ZERO,
            _ => {}
        }
        self.memo().batches.specs.insert(id.clone(), spec.clone());
        match self.inner.batches()?.create(id, &spec).await {
            Err(error) if self.is(Mutant::BatchMessageUnchecked) && error.kind() == ErrorKind::TooLarge => {
                self.inner.batches()?.create(id, &BatchSpec::default()).await
            }
            created => created,
        }
    }

    async fn reserve(
        &self,
        id: &BatchId,
        block: Block,
        target: &str,
        confirmed: &[Confirmed],
    ) -> Result<Block> {
        let (role, confirmed) = (self.inner.batches()?, self.confirmations(id, confirmed).await?);
        let target = if self.is(Mutant::BatchTargetForgotten) { "" } else { target };
        let reserved = role.reserve(id, block, target, &confirmed).await;
        let Err(error) = &reserved else { return reserved };
        match (self.sabotage, error.kind()) {
            (Mutant::BatchCountUnchecked, ErrorKind::InvalidConfig) => {
                let count = block.to.saturating_sub(block.from).clamp(1, MAX_BLOCK);
                role.reserve(id, Block { from: 0, to: count, ..block }, target, &confirmed).await
            }
            (Mutant::BatchMadeUp, ErrorKind::NotFound) => {
                role.create(id, &BatchSpec::default()).await?;
                role.reserve(id, block, target, &confirmed).await
            }
            (Mutant::BatchFullIgnored, ErrorKind::TooLarge) => {
                let to = MAX_MEMBERS + block.to - block.from;
                Ok(Block { from: MAX_MEMBERS, to, ..block })
            }
            (Mutant::BatchSealedGrows, ErrorKind::Closed) => Ok(block),
            _ => reserved,
        }
    }

    async fn seal(&self, id: &BatchId, confirmed: &[Confirmed]) -> Result<BatchState> {
        let before = self.watched(id).await?;
        let mut confirmed = self.confirmations(id, confirmed).await?;
        if self.is(Mutant::BatchSealForgetsOpenBlocks) {
            let all = self.blocks(id).await?.into_iter().filter(|it| !it.confirmed);
            let block = |BlockState { block, .. }| Confirmed { block, used: block.to, failed: vec![] };
            confirmed.extend(all.map(block));
        }
        let state = match self.inner.batches()?.seal(id, &confirmed).await {
            Err(error) if self.is(Mutant::BatchSealAgainUnchecked) && error.kind() == ErrorKind::Closed => {
                self.inner.batches()?.seal(id, &[]).await?
            }
            sealed => sealed?,
        };
        self.sends_more(id, before).await?;
        Ok(self.spoiled_state(id, state))
    }

    async fn end_members(&self, id: &BatchId, ends: &[EndedMember]) -> Result<Option<bool>> {
        let before = self.watched(id).await?;
        let mut ends = ends.to_vec();
        if self.is(Mutant::BatchLeftOutStays) {
            let out = self.inner.batches()?.numbers(id, MemberState::LeftOut, 0, usize::MAX).await?.0;
            ends.retain(|it| !out.contains(&it.number));
        }
        {
            let mut memo = self.memo();
            for EndedMember { number, end, .. } in &ends {
                let known = memo.batches.ends.entry((id.clone(), *number));
                let known = known.and_modify(|(_, last, again)| (*last, *again) = (*end, *again + 1));
                known.or_insert((*end, *end, 0));
            }
            if self.is(Mutant::BatchDeadStaysDead) {
                let first = |number: u32| memo.batches.ends.get(&(id.clone(), number)).map(|it| it.0);
                ends.retain(|it| first(it.number) == Some(it.end));
            }
        }
        self.note_member_results(id, &ends);
        let ended = self.inner.batches()?.end_members(id, &ends).await?;
        self.sends_more(id, before).await?;
        Ok(match (self.sabotage, ended) {
            (Mutant::BatchParentNoteHidden, Some(_)) | (Mutant::BatchMadeUp, None) => Some(false),
            (_, ended) => ended,
        })
    }

    async fn close(&self, id: &BatchId, dies: bool) -> Result<BatchState> {
        let (role, before) = (self.inner.batches()?, self.watched(id).await?);
        let open = role.state(id).await?.filter(|state| state.sealed.is_none());
        let state = match (self.sabotage, open) {
            (Mutant::BatchCloseSeals, _) => role.seal(id, &[]).await?,
            (Mutant::BatchCloseLeavesOpen, Some(state)) => state,
            _ => role.close(id, dies).await?,
        };
        self.sends_more(id, before).await?;
        Ok(self.spoiled_state(id, state))
    }

    async fn state(&self, id: &BatchId) -> Result<Option<BatchState>> {
        let state = self.inner.batches()?.state(id).await?.map(|state| self.spoiled_state(id, state));
        match state {
            None if self.is(Mutant::BatchOutlivesItsTime) => Ok(self.memo().batches.states.get(id).cloned()),
            state => Ok(state),
        }
    }

    async fn numbers(
        &self,
        id: &BatchId,
        state: MemberState,
        from: u32,
        limit: usize,
    ) -> Result<(Vec<u32>, Option<u32>)> {
        let state = match (self.sabotage, state) {
            (Mutant::BatchLeftOutIsMissing, MemberState::LeftOut) => MemberState::Missing,
            _ => state,
        };
        let (numbers, next) = self.inner.batches()?.numbers(id, state, from, limit).await?;
        Ok((numbers, next.filter(|_| !self.is(Mutant::BatchNumbersCut))))
    }

    async fn results(&self, id: &BatchId, numbers: &[u32]) -> Result<Vec<Option<MessageResult>>> {
        let mut results = self.inner.batches()?.results(id, numbers).await?;
        let memo = self.memo();
        for (result, number) in results.iter_mut().zip(numbers) {
            let known = memo.batches.results.get(&(id.clone(), *number)).cloned();
            *result = match self.sabotage {
                Mutant::BatchResultsForgotten => None,
                Mutant::BatchResultsOutlive => result.take().or(known),
                _ => known.or(result.take()),
            };
        }
        match self.sabotage {
            Mutant::BatchResultsUnordered => results.reverse(),
            Mutant::BatchResultsCut => results.retain(Option::is_some),
            _ => {}
        }
        Ok(results)
    }

    async fn list(&self, place: &TopicPartition, limit: usize) -> Result<Vec<BatchId>> {
        let limit = if self.is(Mutant::BatchListUnlimited) { usize::MAX } else { limit };
        let mut batches = self.inner.batches()?.list(place, limit).await?;
        if self.is(Mutant::BatchListUnordered) {
            batches.sort();
        }
        Ok(batches)
    }

    async fn notes(&self, place: &Place, after: Option<MessageId>, limit: usize) -> Result<Vec<BatchNote>> {
        let limit = if self.is(Mutant::BatchNotesUnlimited) { MAX_ENDS } else { limit };
        let mut notes = self.inner.batches()?.notes(place, after, limit).await?;
        match self.sabotage {
            Mutant::BatchNotesFromTheFront => notes = self.inner.batches()?.notes(place, None, limit).await?,
            Mutant::BatchNoteLost => notes.clear(),
            Mutant::BatchNotesReversed => notes.reverse(),
            Mutant::BatchNotesMerged => notes.dedup_by(|one, other| one.said == other.said),
            Mutant::BatchDeathUnnoted => {
                notes.retain(|note| ended_of(note).is_none_or(|it| it.end == MemberEnd::Done));
            }
            Mutant::BatchNotesAllDone => {
                notes.iter_mut().filter_map(ended_of_mut).for_each(|it| it.end = MemberEnd::Done);
            }
            Mutant::BatchNotesForgetResults => {
                notes.iter_mut().filter_map(ended_of_mut).for_each(|it| it.result = None);
            }
            Mutant::BatchEndUnnoted => {
                notes.retain(|note| !matches!(note.said, Some(Noted::Complete(..))));
            }
            Mutant::BatchNoteUnfenced => {
                let memo = self.memo();
                let here = memo.batches.notes.iter().filter(|(tp, _)| Place::from(tp.clone()) == *place);
                notes.extend(here.map(|(_, note)| note.clone()));
            }
            _ => {}
        }
        Ok(notes)
    }

    async fn forget(&self, place: &Place, notes: &[MessageId]) -> Result<()> {
        let role = self.inner.batches()?;
        match self.sabotage {
            Mutant::BatchForgetsNothing => Ok(()),
            Mutant::BatchForgetsAll => {
                let all: Vec<_> =
                    role.notes(place, None, MAX_ENDS).await?.iter().map(|note| note.id).collect();
                role.forget(place, &all).await
            }
            _ => role.forget(place, notes).await,
        }
    }
}

impl Broken {
    async fn blocks(&self, id: &BatchId) -> Result<Vec<BlockState>> {
        Ok(self.inner.batches()?.state(id).await?.map(|state| state.blocks).unwrap_or_default())
    }

    /// Returns the confirmations that the backend gets in place of those of the client.
    async fn confirmations(&self, id: &BatchId, confirmed: &[Confirmed]) -> Result<Vec<Confirmed>> {
        let mut confirmed = confirmed.to_vec();
        match self.sabotage {
            Mutant::BatchConfirmForgotten => confirmed.clear(),
            Mutant::BatchFailedCount => confirmed.iter_mut().for_each(|it| it.failed.clear()),
            Mutant::BatchNothingGivenBack => {
                for Confirmed { block, used, failed } in &mut confirmed {
                    failed.extend(*used..block.to);
                    *used = block.to;
                }
            }
            Mutant::BatchConfirmUnchecked => {
                let blocks = self.blocks(id).await?;
                confirmed.retain(|Confirmed { block, .. }| {
                    let same = |it: &BlockState| {
                        (it.block.from, it.block.token) == (block.from, block.token)
                            && (it.confirmed || it.block.to == block.to)
                    };
                    blocks.iter().any(same)
                });
            }
            Mutant::BatchTokenIgnored => {
                for block in self.blocks(id).await?.into_iter().map(|it| it.block) {
                    let of_block = confirmed.iter_mut().filter(|it| it.block.from == block.from);
                    of_block.for_each(|it| it.block.token = block.token);
                }
            }
            _ => {}
        }
        Ok(confirmed)
    }

    fn spoiled_state(&self, id: &BatchId, mut state: BatchState) -> BatchState {
        let mut memo = self.memo();
        let ends = memo.batches.ends.iter().filter(|((of, _), _)| of == id).map(|(_, ends)| *ends);
        match self.sabotage {
            Mutant::BatchCountsTwice => state.done += ends.map(|(.., again)| again).sum::<u32>(),
            Mutant::BatchDoneBecomesDead => {
                for _ in ends.filter(|it| (it.0, it.1) == (MemberEnd::Done, MemberEnd::Dead)) {
                    (state.done, state.dead) = (state.done.saturating_sub(1), state.dead + 1);
                }
            }
            Mutant::BatchBlocksHidden => state.blocks.clear(),
            Mutant::BatchBlocksConfirmed => state.blocks.iter_mut().for_each(|it| it.confirmed = true),
            _ => {}
        }
        memo.batches.states.insert(id.clone(), state.clone());
        state
    }

    /// Returns the state before a change, for mistakes that send messages.
    async fn watched(&self, id: &BatchId) -> Result<Option<BatchState>> {
        let watches = matches!(
            self.sabotage,
            Mutant::BatchFiresBeforeSeal
                | Mutant::BatchEventTwice
                | Mutant::BatchEachDeathSent
                | Mutant::BatchProgressAll
        );
        if watches { self.inner.batches()?.state(id).await } else { Ok(None) }
    }

    /// Sends messages that the backend did not send.
    async fn sends_more(&self, id: &BatchId, before: Option<BatchState>) -> Result<()> {
        let Some(before) = before else { return Ok(()) };
        let after = self.inner.batches()?.state(id).await?.unwrap_or_default();
        let completes = before.ended.is_none() && after.ended.is_some();
        let kinds: Vec<_> = match self.sabotage {
            Mutant::BatchFiresBeforeSeal if after.sealed.is_none() && after.missing() == 0 => {
                vec![BatchEventKind::Complete]
            }
            Mutant::BatchEventTwice if completes => vec![BatchEventKind::Complete],
            Mutant::BatchEachDeathSent if before.sealed.is_some() && after.dead > before.dead.max(1) => {
                vec![BatchEventKind::Death]
            }
            Mutant::BatchProgressAll if before.sealed.is_some() => {
                let steps = self.steps(id, percent(&before)..percent(&after));
                steps.into_iter().map(BatchEventKind::Progress).collect()
            }
            _ => Vec::new(),
        };
        for kind in kinds {
            self.send(id, kind, &after).await?;
        }
        Ok(())
    }

    /// Returns the steps of progress that are overtaken, which is all but the last one.
    fn steps(&self, id: &BatchId, passed: Range<u8>) -> Vec<u8> {
        let memo = self.memo();
        let callbacks = memo.batches.specs.get(id).into_iter().flat_map(|spec| &spec.callbacks);
        let every = callbacks.into_iter().find_map(|(kind, _)| match kind {
            BatchEventKind::Progress(every) => Some((*every).max(1)),
            _ => None,
        });
        let Some(every) = every else { return Vec::new() };
        let last = passed.end / every * every;
        (passed.start + 1..last).filter(|percent| percent.is_multiple_of(every)).collect()
    }

    async fn send(&self, id: &BatchId, kind: BatchEventKind, state: &BatchState) -> Result<()> {
        let spec = self.memo().batches.specs.get(id).cloned().unwrap_or_default();
        let of_kind = |(of, _): &(BatchEventKind, _)| of.as_str() == kind.as_str();
        let Some((_, mut fields)) = spec.callbacks.into_iter().find(of_kind) else { return Ok(()) };
        let BatchState { members, done, dead, .. } = *state;
        let event = BatchEvent::new(id.clone(), kind, members, done, dead).to_string();
        fields.push((format!("{}{BATCH_EVENT_HEADER}", wire::HEADER).into(), event.into()));
        let appended = self.inner.log().append(&[Append::new(id.place.clone(), fields)]).await;
        appended.into_iter().try_for_each(|appended| appended.map(drop))
    }

    /// Keeps results of members beside the backend.
    fn note_member_results(&self, id: &BatchId, ends: &[EndedMember]) {
        let mut memo = self.memo();
        for EndedMember { number, result, .. } in ends {
            let Some(result) = result.clone() else { continue };
            let known = memo.batches.results.entry((id.clone(), *number));
            match self.sabotage {
                Mutant::BatchResultReplaced | Mutant::BatchResultsOutlive => drop(known.insert_entry(result)),
                Mutant::BatchResultOfDeathStays => drop(known.or_insert(result)),
                _ => {}
            }
        }
    }

    /// Keeps the notes of settlements that left none.
    pub(super) fn note_members(
        &self,
        tp: &TopicPartition,
        batch: &[(Receipt, Settlement)],
        answer: &Result<Settled>,
    ) {
        let fails = answer.as_ref().map_or(true, |settled| settled.applied == 0);
        if !self.is(Mutant::BatchNoteUnfenced) || !fails {
            return;
        }
        for stored in batch.iter().filter_map(|(_, settlement)| settlement.result()) {
            let Some(member) = &stored.demand.member else { continue };
            let ended = EndedMember::new(member.number, MemberEnd::of(&stored.result));
            let said = Some(Noted::Ended(member.batch.clone(), ended));
            let notes = &mut self.memo().batches.notes;
            // Behind all that the backend has.
            let id = MessageId::new(u64::MAX, notes.len() as u64);
            notes.push((tp.clone(), BatchNote { id, said }));
        }
    }
}

/// Returns the member of which a note tells.
fn ended_of(note: &BatchNote) -> Option<&EndedMember> {
    match &note.said {
        Some(Noted::Ended(_, ended)) => Some(ended),
        _ => None,
    }
}

fn ended_of_mut(note: &mut BatchNote) -> Option<&mut EndedMember> {
    match &mut note.said {
        Some(Noted::Ended(_, ended)) => Some(ended),
        _ => None,
    }
}

fn percent(state: &BatchState) -> u8 {
    let ended = u64::from(state.done + state.dead) * 100;
    ended.checked_div(u64::from(state.members)).map_or(100, |percent| percent.min(100) as u8)
}
