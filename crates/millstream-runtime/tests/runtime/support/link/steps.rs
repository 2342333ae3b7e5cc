//! Steps over the link.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::log::ProgressRight;
use millstream_core::steps::{Signalled, StepRecord, Steps};
use millstream_core::{Result, Timestamp, WorkId};

use super::Linked;

#[async_trait]
impl Steps for Linked<dyn Steps> {
    async fn read(&self, id: &WorkId) -> Result<(Timestamp, Vec<StepRecord>)> {
        self.link.pass("read_steps", self.role.read(id)).await
    }

    async fn store(&self, right: &ProgressRight, id: &str, records: &[StepRecord]) -> Result<()> {
        self.link.pass("store_steps", self.role.store(right, id, records)).await
    }

    async fn signal(&self, id: &WorkId, name: &str, value: Bytes) -> Result<Signalled> {
        self.link.pass("signal", self.role.signal(id, name, value)).await
    }
}
