//! Batches over the link.

use async_trait::async_trait;
use millstream_core::batches::{
    BatchId, BatchNote, BatchSpec, BatchState, Batches, Block, Confirmed, EndedMember, MemberState,
};
use millstream_core::{MessageId, MessageResult, Place, Result, TopicPartition};

use super::Linked;

#[async_trait]
impl Batches for Linked<dyn Batches> {
    async fn create(&self, id: &BatchId, spec: &BatchSpec) -> Result<()> {
        self.link.pass("create", self.role.create(id, spec)).await
    }

    async fn reserve(
        &self,
        id: &BatchId,
        block: Block,
        target: &str,
        confirmed: &[Confirmed],
    ) -> Result<Block> {
        self.link.pass("reserve", self.role.reserve(id, block, target, confirmed)).await
    }

    async fn seal(&self, id: &BatchId, confirmed: &[Confirmed]) -> Result<BatchState> {
        self.link.pass("seal", self.role.seal(id, confirmed)).await
    }

    async fn end_members(&self, id: &BatchId, ends: &[EndedMember]) -> Result<Option<bool>> {
        self.link.pass("end_members", self.role.end_members(id, ends)).await
    }

    async fn close(&self, id: &BatchId, dies: bool) -> Result<BatchState> {
        self.link.pass("close", self.role.close(id, dies)).await
    }

    async fn state(&self, id: &BatchId) -> Result<Option<BatchState>> {
        self.link.pass("state", self.role.state(id)).await
    }

    async fn numbers(
        &self,
        id: &BatchId,
        state: MemberState,
        from: u32,
        limit: usize,
    ) -> Result<(Vec<u32>, Option<u32>)> {
        self.link.pass("numbers", self.role.numbers(id, state, from, limit)).await
    }

    async fn results(&self, id: &BatchId, numbers: &[u32]) -> Result<Vec<Option<MessageResult>>> {
        self.link.pass("results", self.role.results(id, numbers)).await
    }

    async fn list(&self, place: &TopicPartition, limit: usize) -> Result<Vec<BatchId>> {
        self.link.pass("list", self.role.list(place, limit)).await
    }

    async fn notes(&self, place: &Place, after: Option<MessageId>, limit: usize) -> Result<Vec<BatchNote>> {
        self.link.pass("notes", self.role.notes(place, after, limit)).await
    }

    async fn forget(&self, place: &Place, notes: &[MessageId]) -> Result<()> {
        self.link.pass("forget_notes", self.role.forget(place, notes)).await
    }
}
