//! The batches role in memory.

use async_trait::async_trait;
use millstream_core::batches::{
    BatchId, BatchNote, BatchSpec, BatchState, Batches, Block, Confirmed, EndedMember, MAX_BLOCK,
    MAX_CALLBACK, MemberState,
};
use millstream_core::results::MessageResult;
use millstream_core::{Error, ErrorKind, MessageId, Place, Result, TopicPartition};

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::batches::{Batch, Sent};
use crate::clock::Now;
use crate::state::State;
use crate::stream::bytes;

#[async_trait]
impl Batches for MemoryBackend {
    async fn create(&self, id: &BatchId, spec: &BatchSpec) -> Result<()> {
        breathe().await;
        for (kind, fields) in &spec.callbacks {
            let size = bytes(fields);
            if size > MAX_CALLBACK as u64 {
                let why =
                    format!("the message of {} has {size} bytes, at most {MAX_CALLBACK}", kind.as_str());
                return Err(Error::new(ErrorKind::TooLarge, why).at(&id.place));
            }
        }
        let mut state = self.lock();
        let now = self.now();
        state.partition(&id.place).batches.create(id.number, spec, now);
        Ok(())
    }

    async fn reserve(
        &self,
        id: &BatchId,
        block: Block,
        target: &str,
        confirmed: &[Confirmed],
    ) -> Result<Block> {
        breathe().await;
        let count = block.to.saturating_sub(block.from);
        if count > MAX_BLOCK {
            let why = format!("{count} numbers cannot be reserved: at most {MAX_BLOCK}");
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        let mut state = self.lock();
        let now = self.now();
        let batch = state.partition(&id.place).batches.get_mut(id, now)?;
        let block = batch.reserve(id, (count, block.token), target, confirmed)?;
        batch.changed(now);
        Ok(block)
    }

    async fn seal(&self, id: &BatchId, confirmed: &[Confirmed]) -> Result<BatchState> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let batch = state.partition(&id.place).batches.get_mut(id, now)?;
        if batch.is_sealed() {
            let known = batch.has_confirmed(confirmed);
            return if known { Ok(batch.state()) } else { Err(BatchState::is_sealed_without(id)) };
        }
        batch.knows(id, confirmed)?;
        batch.confirm_all(confirmed);
        batch.seal(now);
        state.send_events(id, now)?;
        Ok(state.partition(&id.place).batches.get_mut(id, now)?.state())
    }

    async fn end_members(&self, id: &BatchId, ends: &[EndedMember]) -> Result<Option<bool>> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let Ok(batch) = state.partition(&id.place).batches.get_mut(id, now) else { return Ok(None) };
        let changed = ends.iter().filter(|ended| batch.end(ended)).count();
        if changed > 0 {
            state.send_events(id, now)?;
        }
        Ok(state.partition(&id.place).batches.get(id.number, now).map(Batch::has_parent_note))
    }

    async fn close(&self, id: &BatchId, dies: bool) -> Result<BatchState> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let batch = state.partition(&id.place).batches.get_mut(id, now)?;
        let seals = !batch.is_sealed();
        if seals {
            batch.close(now);
        }
        if dies && batch.end_missing() || seals {
            state.send_events(id, now)?;
        }
        Ok(state.partition(&id.place).batches.get_mut(id, now)?.state())
    }

    async fn state(&self, id: &BatchId) -> Result<Option<BatchState>> {
        let state = self.lock();
        let now = self.now();
        let partition = state.peek(&id.place);
        Ok(partition.and_then(|it| it.batches.get(id.number, now)).map(Batch::state))
    }

    async fn numbers(
        &self,
        id: &BatchId,
        of: MemberState,
        from: u32,
        limit: usize,
    ) -> Result<(Vec<u32>, Option<u32>)> {
        let state = self.lock();
        let now = self.now();
        let batch = state.peek(&id.place).and_then(|it| it.batches.get(id.number, now));
        Ok(batch.map(|batch| batch.page(of, from, limit)).unwrap_or_default())
    }

    async fn results(&self, id: &BatchId, numbers: &[u32]) -> Result<Vec<Option<MessageResult>>> {
        let state = self.lock();
        let now = self.now();
        let batch = state.peek(&id.place).and_then(|it| it.batches.get(id.number, now));
        Ok(numbers.iter().map(|number| batch?.result(*number)).collect())
    }

    async fn list(&self, place: &TopicPartition, limit: usize) -> Result<Vec<BatchId>> {
        let state = self.lock();
        let now = self.now();
        let numbers = state.peek(place).map(|it| it.batches.first(limit, now)).unwrap_or_default();
        Ok(numbers.into_iter().map(|number| BatchId::new(place.clone(), number)).collect())
    }

    async fn notes(&self, place: &Place, after: Option<MessageId>, limit: usize) -> Result<Vec<BatchNote>> {
        breathe().await;
        Ok(self.lock().results(place).notes.behind(after, limit))
    }

    async fn forget(&self, place: &Place, notes: &[MessageId]) -> Result<()> {
        breathe().await;
        self.lock().results(place).notes.remove(notes);
        Ok(())
    }
}

impl State {
    /// Appends what a batch sends after a change, and leaves its note for its parent.
    fn send_events(&mut self, id: &BatchId, now: Now) -> Result<()> {
        let partition = self.partition(&id.place);
        let batch = partition.batches.get_mut(id, now)?;
        let Sent { messages, note } = batch.events(id, now);
        batch.changed(now);
        if let Some(note) = note {
            partition.results.notes.leave(note, now);
        }
        for message in &messages {
            partition.append(now.timestamp(), message)?;
        }
        if !messages.is_empty() {
            partition.wake.notify_waiters();
        }
        Ok(())
    }
}
