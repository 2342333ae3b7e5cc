//! Chaos for batches.

use async_trait::async_trait;
use millstream_core::batches::{
    BatchId, BatchNote, BatchSpec, BatchState, Batches, Block, Confirmed, EndedMember, MemberState,
};
use millstream_core::results::MessageResult;
use millstream_core::{MessageId, Place, Result, TopicPartition};

use super::Client;
use super::faults::Role;
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Batches for Client {
    async fn create(&self, id: &BatchId, spec: &BatchSpec) -> Result<()> {
        call!(self, Batches, batches?.create(id, spec;))
    }

    async fn reserve(
        &self,
        id: &BatchId,
        block: Block,
        target: &str,
        confirmed: &[Confirmed],
    ) -> Result<Block> {
        let (target, confirmed) = (target.to_owned(), confirmed.to_owned());
        call!(self, Batches, batches?.reserve(id; block, &target, &confirmed))
    }

    async fn seal(&self, id: &BatchId, confirmed: &[Confirmed]) -> Result<BatchState> {
        call!(self, Batches, batches?.seal(id, confirmed;))
    }

    async fn end_members(&self, id: &BatchId, ends: &[EndedMember]) -> Result<Option<bool>> {
        call!(self, Batches, batches?.end_members(id, ends;))
    }

    async fn close(&self, id: &BatchId, dies: bool) -> Result<BatchState> {
        call!(self, Batches, batches?.close(id; dies))
    }

    async fn state(&self, id: &BatchId) -> Result<Option<BatchState>> {
        call!(self, Batches, batches?.state(id;))
    }

    async fn numbers(
        &self,
        id: &BatchId,
        state: MemberState,
        from: u32,
        limit: usize,
    ) -> Result<(Vec<u32>, Option<u32>)> {
        call!(self, Batches, batches?.numbers(id; state, from, limit))
    }

    async fn results(&self, id: &BatchId, numbers: &[u32]) -> Result<Vec<Option<MessageResult>>> {
        call!(self, Batches, batches?.results(id, numbers;))
    }

    async fn list(&self, place: &TopicPartition, limit: usize) -> Result<Vec<BatchId>> {
        call!(self, Batches, batches?.list(place; limit))
    }

    async fn notes(&self, place: &Place, after: Option<MessageId>, limit: usize) -> Result<Vec<BatchNote>> {
        call!(self, Batches, batches?.notes(place; after, limit))
    }

    async fn forget(&self, place: &Place, notes: &[MessageId]) -> Result<()> {
        call!(self, Batches, batches?.forget(place, notes;))
    }
}
