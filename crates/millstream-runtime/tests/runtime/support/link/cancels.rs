//! Cancels over the link.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::batches::BatchId;
use millstream_core::cancels::{CancelMark, CancelMarks, CancelRequest, Cancels, WorkPlace};
use millstream_core::log::ProgressRight;
use millstream_core::results::StoredResult;
use millstream_core::{Error, ErrorKind, Result};

use super::Linked;

#[async_trait]
impl Cancels for Linked<dyn Cancels> {
    async fn cancel(
        &self,
        place: &WorkPlace,
        id: &str,
        request: &CancelRequest,
    ) -> Result<Option<CancelMark>> {
        self.link.pass("cancel", self.role.cancel(place, id, request)).await
    }

    async fn cancel_batch(&self, place: &WorkPlace, batch: &BatchId) -> Result<()> {
        self.link.pass("cancel_batch", self.role.cancel_batch(place, batch)).await
    }

    async fn mark(&self, place: &WorkPlace, id: &str, wait: Duration) -> Result<Option<CancelMark>> {
        self.link.pass("mark", self.role.mark(place, id, wait)).await
    }

    async fn forget(&self, place: &WorkPlace, id: &str) -> Result<()> {
        self.link.pass("forget", self.role.forget(place, id)).await
    }

    async fn marks(&self, place: &WorkPlace, version: u64, wait: Duration) -> Result<Option<CancelMarks>> {
        self.link.pass("marks", self.role.marks(place, version, wait)).await
    }

    async fn share(&self, place: &WorkPlace) -> Result<()> {
        self.link.pass("share", self.role.share(place)).await
    }

    async fn answer(
        &self,
        right: &ProgressRight,
        id: &str,
        mark: CancelMark,
        result: Option<&StoredResult>,
    ) -> Result<Option<CancelMark>> {
        if self.link.answers_of_cancels_wait.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "told to fail"));
        }
        self.link.pass("answer", self.role.answer(right, id, mark, result)).await
    }
}
