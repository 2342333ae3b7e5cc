//! Waits for results of messages.

use std::time::Duration;

use millstream_core::Result;
use millstream_core::results::{MessageResult, ResultId};
use tokio::time::{Instant, timeout_at};

use crate::MemoryBackend;
use crate::backend::breathe;

impl MemoryBackend {
    pub(crate) async fn result_within(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        breathe().await;
        // A time that the clock cannot reach is as good as for ever.
        let until = Instant::now() + wait.min(Duration::from_secs(100 * 365 * 24 * 3_600));
        loop {
            let notice = {
                let mut state = self.lock();
                let now = self.now();
                let results = &state.partition(&id.topic_partition).results;
                if let Some(result) = results.get(id.number, now) {
                    return Ok(Some(result.clone()));
                }
                // A notice that was begun under the lock misses nothing.
                results.stored.clone().notified_owned()
            };
            if wait.is_zero() || timeout_at(until, notice).await.is_err() {
                return Ok(None);
            }
        }
    }
}
