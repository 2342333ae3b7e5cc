//! Retries, changed in steps.

use millstream::Result;
use millstream::admin::{RetryQueue, RetrySelection};
use millstream::crates::core::schedule::RetryAction;

use super::Action;

/// Number of retries of one step: that of one request.
const STEP: usize = 200;

/// Changes the selected retries.
///
/// # Errors
/// Those of `RetryQueue::settle`.
pub(crate) async fn settle(
    running: &Action,
    queue: &RetryQueue,
    selected: RetrySelection,
    action: RetryAction,
) -> Result<()> {
    for (partition, ids) in &selected.ids {
        for ids in ids.chunks(STEP) {
            if running.is_cancelled() {
                return Ok(());
            }
            let mut step = RetrySelection::default();
            step.ids.insert(*partition, ids.to_vec());
            let done = queue.settle(&step, action).await?;
            running.add(done);
            running.skip(ids.len() as u64 - done.min(ids.len() as u64));
        }
    }
    Ok(())
}
