//! Chaos for the steps of handlers.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::log::ProgressRight;
use millstream_core::steps::{Signalled, StepRecord, Steps, WorkId};
use millstream_core::{Result, Timestamp};

use super::Client;
use super::faults::Role;
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Steps for Client {
    async fn read(&self, id: &WorkId) -> Result<(Timestamp, Vec<StepRecord>)> {
        call!(self, Steps, steps?.read(id;))
    }

    async fn store(&self, right: &ProgressRight, id: &str, records: &[StepRecord]) -> Result<()> {
        call!(self, Steps, steps?.store(right, id, records;))
    }

    async fn signal(&self, id: &WorkId, name: &str, value: Bytes) -> Result<Signalled> {
        call!(self, Steps, steps?.signal(id, name; value))
    }
}
