//! Chaos for cancelled messages.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::batches::BatchId;
use millstream_core::cancels::{CancelMark, CancelMarks, CancelRequest, Cancels, WorkPlace};
use millstream_core::log::ProgressRight;
use millstream_core::results::StoredResult;

use super::Client;
use super::faults::Role;
use super::reading::wait;
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Cancels for Client {
    async fn cancel(
        &self,
        place: &WorkPlace,
        id: &str,
        request: &CancelRequest,
    ) -> Result<Option<CancelMark>> {
        call!(self, Cancels, cancels?.cancel(place, id, request;))
    }

    async fn cancel_batch(&self, place: &WorkPlace, batch: &BatchId) -> Result<()> {
        call!(self, Cancels, cancels?.cancel_batch(place, batch;))
    }

    async fn mark(&self, place: &WorkPlace, id: &str, for_at_most: Duration) -> Result<Option<CancelMark>> {
        wait(self, Role::Cancels, self.0.backend.cancels()?.mark(place, id, for_at_most)).await
    }

    async fn forget(&self, place: &WorkPlace, id: &str) -> Result<()> {
        call!(self, Cancels, cancels?.forget(place, id;))
    }

    async fn marks(
        &self,
        place: &WorkPlace,
        version: u64,
        for_at_most: Duration,
    ) -> Result<Option<CancelMarks>> {
        wait(self, Role::Cancels, self.0.backend.cancels()?.marks(place, version, for_at_most)).await
    }

    async fn share(&self, place: &WorkPlace) -> Result<()> {
        call!(self, Cancels, cancels?.share(place;))
    }

    async fn answer(
        &self,
        right: &ProgressRight,
        id: &str,
        mark: CancelMark,
        result: Option<&StoredResult>,
    ) -> Result<Option<CancelMark>> {
        let result = result.cloned();
        call!(self, Cancels, cancels?.answer(right, id; mark, result.as_ref()))
    }
}
