//! Batches of a partition, and notes of members that have ended.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::Duration;

use millstream_core::batches::{
    BATCH_EVENT_HEADER, BatchEvent, BatchEventKind, BatchId, BatchMember, BatchNote, BatchParent, BatchSpec,
    BatchState, Block, BlockState, Confirmed, EndedMember, KEPT_ENDED, KEPT_OPEN, MAX_ENDS, MAX_MEMBERS,
    MemberEnd, MemberState, Noted,
};
use millstream_core::results::MessageResult;
use millstream_core::wire::{self, Fields};
use millstream_core::{MessageId, Result, Timestamp};

use crate::clock::Now;

/// Number of batches below which none is removed before it is looked up.
const FEW: usize = 1_024;

#[derive(Clone, Debug, Default)]
pub(crate) struct BatchTable {
    all: HashMap<u128, Batch>,
    /// Number of batches at which those that have expired are removed next.
    full: usize,
}

impl BatchTable {
    /// Creates a batch, unless it exists.
    pub(crate) fn create(&mut self, number: u128, spec: &BatchSpec, now: Now) {
        if self.get(number, now).is_some() {
            return;
        }
        if self.all.len() >= self.full.max(FEW) {
            self.all.retain(|_, batch| batch.expires > now);
            // Twice what is left, so that the cost of a removal is spread over as many insertions.
            self.full = 2 * self.all.len();
        }
        self.all.insert(number, Batch::new(spec, now));
    }

    pub(crate) fn get(&self, number: u128, now: Now) -> Option<&Batch> {
        self.all.get(&number).filter(|batch| batch.expires > now)
    }

    pub(crate) fn get_mut(&mut self, id: &BatchId, now: Now) -> Result<&mut Batch> {
        let batch = self.all.get_mut(&id.number).filter(|batch| batch.expires > now);
        batch.ok_or_else(|| BatchState::is_gone(id))
    }

    /// Returns up to `limit` numbers of batches, those that expire first in front.
    pub(crate) fn first(&self, limit: usize, now: Now) -> Vec<u128> {
        let live = self.all.iter().filter(|(_, batch)| batch.expires > now);
        let mut found: Vec<_> = live.map(|(number, batch)| (batch.expires, *number)).collect();
        found.sort_unstable();
        found.into_iter().take(limit).map(|(_, number)| number).collect()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Batch {
    spec: BatchSpec,
    created: Timestamp,
    sealed: Option<Timestamp>,
    ended: Option<Timestamp>,
    succeeded: bool,
    /// The number that is handed out next.
    next: u32,
    /// States of numbers. Those behind the end are missing.
    numbers: Vec<MemberState>,
    done: u32,
    dead: u32,
    left_out: u32,
    /// Results of members that have ended, as far as they are kept.
    results: HashMap<u32, MessageResult>,
    blocks: BTreeMap<u32, BlockState>,
    /// Percent of the last progress that was sent.
    percent: u8,
    death_sent: bool,
    /// Whether it was closed while blocks were open.
    closed_open: bool,
    expires: Now,
}

/// What a batch sends, and the note that it leaves for its parent.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) messages: Vec<Fields>,
    pub(crate) note: Option<Noted>,
}

impl Batch {
    fn new(spec: &BatchSpec, now: Now) -> Self {
        Self {
            spec: spec.clone(),
            created: now.timestamp(),
            sealed: None,
            ended: None,
            succeeded: false,
            next: 0,
            numbers: Vec::new(),
            done: 0,
            dead: 0,
            left_out: 0,
            results: HashMap::new(),
            blocks: BTreeMap::new(),
            percent: 0,
            death_sent: false,
            closed_open: false,
            expires: now.plus(KEPT_OPEN),
        }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether it has ended, and has left a note for its parent.
    pub(crate) fn has_parent_note(&self) -> bool {
        self.ended.is_some() && self.spec.parent.is_some()
    }

    /// Records a change: what expires counts from there on.
    pub(crate) fn changed(&mut self, now: Now) {
        let keep = match self.ended {
            None => KEPT_OPEN,
            Some(_) if self.spec.keep.is_zero() => KEPT_ENDED,
            Some(_) => self.spec.keep,
        };
        self.expires = now.plus(keep.max(Duration::from_millis(1)));
    }

    fn members(&self) -> u32 {
        self.next - self.left_out
    }

    /// Returns the state of a number that was handed out.
    fn state_of(&self, number: u32) -> Option<MemberState> {
        let state = || self.numbers.get(number as usize).copied().unwrap_or(MemberState::Missing);
        (number < self.next).then(state)
    }

    /// Sets the state of a number that was handed out.
    fn set(&mut self, number: u32, state: MemberState) {
        let at = number as usize;
        if self.numbers.len() <= at {
            self.numbers.resize(at + 1, MemberState::Missing);
        }
        let before = std::mem::replace(&mut self.numbers[at], state);
        if let Some(count) = self.count(before) {
            *count -= 1;
        }
        if let Some(count) = self.count(state) {
            *count += 1;
        }
    }

    fn count(&mut self, state: MemberState) -> Option<&mut u32> {
        match state {
            MemberState::Missing => None,
            MemberState::Done => Some(&mut self.done),
            MemberState::Dead => Some(&mut self.dead),
            MemberState::LeftOut => Some(&mut self.left_out),
        }
    }

    /// Fails if one of these blocks is unknown. One that was confirmed before may be shorter by now.
    pub(crate) fn knows(&self, id: &BatchId, confirmed: &[Confirmed]) -> Result<()> {
        confirmed.iter().try_for_each(|Confirmed { block, used, .. }| {
            let known = *used == block.from
                || self.blocks.get(&block.from).is_some_and(|known| {
                    known.block.token == block.token && (known.confirmed || known.block.to == block.to)
                });
            if known { Ok(()) } else { Err(BatchState::is_lost(id, block)) }
        })
    }

    /// Whether all of these blocks were confirmed before.
    pub(crate) fn has_confirmed(&self, confirmed: &[Confirmed]) -> bool {
        confirmed.iter().all(|Confirmed { block, used, .. }| {
            let known = self.blocks.get(&block.from);
            *used == block.from
                || known.is_some_and(|known| known.confirmed && known.block.token == block.token)
        })
    }

    pub(crate) fn confirm_all(&mut self, confirmed: &[Confirmed]) {
        confirmed.iter().for_each(|it| self.confirm(it));
    }

    fn confirm(&mut self, Confirmed { block, used, failed }: &Confirmed) {
        let Block { from, to, .. } = *block;
        let is_it = |known: &&mut BlockState| !known.confirmed && known.block.token == block.token;
        let Some(known) = self.blocks.get_mut(&from).filter(is_it) else { return };
        known.confirmed = true;
        let used = (*used).clamp(from, to);
        // Numbers that have ended belong to messages, so they are not handed out again.
        let unused = self.numbers.get(used as usize..).unwrap_or_default();
        if to == self.next && unused.iter().all(|state| *state == MemberState::Missing) {
            self.numbers.truncate(used as usize);
            (self.next, known.block.to) = (used, used);
        } else {
            self.leave_out(used..to);
        }
        self.leave_out(failed.iter().copied().filter(|number| (from..used).contains(number)));
    }

    /// Leaves out numbers that have not ended.
    fn leave_out(&mut self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            if self.state_of(number) == Some(MemberState::Missing) {
                self.set(number, MemberState::LeftOut);
            }
        }
    }

    /// Confirms blocks, and hands out further numbers.
    pub(crate) fn reserve(
        &mut self,
        id: &BatchId,
        (count, token): (u32, u64),
        target: &str,
        confirmed: &[Confirmed],
    ) -> Result<Block> {
        if self.is_sealed() {
            return Err(BatchState::is_sealed(id));
        }
        self.knows(id, confirmed)?;
        let is_full = |batch: &Self| batch.next.saturating_add(count) > MAX_MEMBERS;
        if is_full(self) {
            // Room may be left by what is given back. Tried on a copy, since nothing is done if there is none.
            let mut tried = self.clone();
            tried.confirm_all(confirmed);
            if is_full(&tried) {
                return Err(BatchState::is_full(id));
            }
        }
        self.confirm_all(confirmed);
        let from = self.next;
        let block = Block { from, to: from + count, token };
        self.next = block.to;
        if count > 0 {
            self.blocks.insert(from, BlockState { block, target: target.to_owned(), confirmed: false });
        }
        Ok(block)
    }

    /// Seals it, and leaves out the numbers of blocks that nobody confirmed.
    pub(crate) fn seal(&mut self, now: Now) {
        let open: Vec<_> =
            self.blocks.values().filter(|it| !it.confirmed).map(|it| it.block.from..it.block.to).collect();
        open.into_iter().for_each(|numbers| self.leave_out(numbers));
        self.sealed = Some(now.timestamp());
    }

    /// Seals it without its producers.
    pub(crate) fn close(&mut self, now: Now) {
        self.closed_open = self.blocks.values().any(|it| !it.confirmed);
        self.seal(now);
    }

    /// Records how a member ended, with its result. Returns whether that changed anything.
    pub(crate) fn end(&mut self, EndedMember { number, end, result }: &EndedMember) -> bool {
        let number = *number;
        match (self.state_of(number), end) {
            (None | Some(MemberState::Done), _) | (Some(MemberState::Dead), MemberEnd::Dead) => return false,
            (_, MemberEnd::Done) => self.set(number, MemberState::Done),
            (_, MemberEnd::Dead) => self.set(number, MemberState::Dead),
        }
        match result {
            Some(result) => drop(self.results.insert(number, result.clone())),
            // That of a failure is not that of what is done by now.
            None => drop(self.results.remove(&number)),
        }
        true
    }

    /// Returns what is kept of a member.
    pub(crate) fn result(&self, number: u32) -> Option<MessageResult> {
        self.results.get(&number).cloned()
    }

    /// Counts all members as dead that have not ended. Returns whether there were any.
    pub(crate) fn end_missing(&mut self) -> bool {
        let missing = self.page(MemberState::Missing, 0, usize::MAX).0;
        missing.iter().for_each(|number| self.set(*number, MemberState::Dead));
        !missing.is_empty()
    }

    /// Returns what it sends now, and counts that as sent.
    pub(crate) fn events(&mut self, id: &BatchId, now: Now) -> Sent {
        let mut sent = Sent::default();
        if !self.is_sealed() {
            return sent;
        }
        let (members, done, dead) = (self.members(), self.done, self.dead);
        let mut kinds = Vec::new();
        let every = self.spec.callbacks.iter().find_map(|(kind, _)| match kind {
            BatchEventKind::Progress(percent) => Some((*percent).max(1)),
            _ => None,
        });
        if let Some(every) = every {
            let percent = (u64::from(done) + u64::from(dead)) * 100;
            let percent = percent.checked_div(u64::from(members)).map_or(100, |it| it.min(100) as u8);
            let step = percent / every * every;
            if step > self.percent {
                self.percent = step;
                kinds.push(BatchEventKind::Progress(step));
            }
        }
        if dead > 0 && !self.death_sent {
            self.death_sent = true;
            kinds.push(BatchEventKind::Death);
        }
        let mut note = None;
        let completes = done + dead == members && self.ended.is_none();
        if completes {
            self.ended = Some(now.timestamp());
            kinds.push(BatchEventKind::Complete);
            note = Some(MemberEnd::Dead);
        }
        // What was left out when somebody else closed it may have been meant as members.
        let is_certain = !self.closed_open || self.left_out == 0;
        if done == members && !self.succeeded && is_certain {
            self.succeeded = true;
            kinds.push(BatchEventKind::Success);
            note = Some(MemberEnd::Done);
        }
        sent.note = note.and_then(|end| self.parent_note(end, completes));
        for kind in kinds {
            let of_kind = |(of, _): &&(BatchEventKind, Fields)| of.as_str() == kind.as_str();
            if let Some((_, fields)) = self.spec.callbacks.iter().find(of_kind) {
                let event = BatchEvent::new(id.clone(), kind, members, done, dead).to_string();
                let name = format!("{}{BATCH_EVENT_HEADER}", wire::HEADER);
                let mut fields = fields.clone();
                fields.push((name.into(), event.into()));
                sent.messages.push(fields);
            }
        }
        sent
    }

    /// Returns the note for its parent when it is complete, or done with all.
    fn parent_note(&self, end: MemberEnd, completes: bool) -> Option<Noted> {
        match self.spec.parent.as_ref()? {
            BatchParent::Batch(member) => {
                Some(Noted::Ended(member.batch.clone(), EndedMember::new(member.number, end)))
            }
            BatchParent::Step(id, name) => completes.then(|| Noted::Complete(id.clone(), name.clone())),
        }
    }

    pub(crate) fn state(&self) -> BatchState {
        BatchState {
            created: self.created,
            sealed: self.sealed,
            ended: self.ended,
            succeeded: self.succeeded,
            members: self.members(),
            done: self.done,
            dead: self.dead,
            left_out: self.left_out,
            parent: self.spec.parent.clone(),
            blocks: self.blocks.values().cloned().collect(),
        }
    }

    /// Returns up to `limit` numbers that have a state, and the number from which on there may be more.
    pub(crate) fn page(&self, state: MemberState, from: u32, limit: usize) -> (Vec<u32>, Option<u32>) {
        let mut found = Vec::new();
        for number in from..self.next {
            if found.len() >= limit {
                return (found, Some(number));
            }
            if self.state_of(number) == Some(state) {
                found.push(number);
            }
        }
        (found, None)
    }
}

/// Notes of members that have ended, and of batches that somebody waits for, until they are known where they belong.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchNotes {
    all: BTreeMap<MessageId, Noted>,
    last: MessageId,
}

impl BatchNotes {
    /// Leaves a note of a member that has ended, with its result if the batch keeps it.
    pub(crate) fn add(
        &mut self,
        member: &BatchMember,
        end: MemberEnd,
        result: Option<&MessageResult>,
        now: Now,
    ) {
        let result = result.filter(|_| member.keeps_result).cloned();
        let ended = EndedMember { result, ..EndedMember::new(member.number, end) };
        self.leave(Noted::Ended(member.batch.clone(), ended), now);
    }

    pub(crate) fn leave(&mut self, noted: Noted, now: Now) {
        let ms = now.timestamp().as_millis();
        self.last = if ms > self.last.ms { MessageId::new(ms, 0) } else { self.last.next() };
        self.all.insert(self.last, noted);
    }

    /// Returns the oldest behind one.
    pub(crate) fn behind(&self, after: Option<MessageId>, limit: usize) -> Vec<BatchNote> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let first = self.all.range((from, Bound::Unbounded)).take(limit.min(MAX_ENDS));
        first.map(|(id, said)| BatchNote { id: *id, said: Some(said.clone()) }).collect()
    }

    pub(crate) fn remove(&mut self, ids: &[MessageId]) {
        for id in ids {
            self.all.remove(id);
        }
    }
}
