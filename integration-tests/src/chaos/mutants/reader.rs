//! A mistake of reading.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::log::{Fetched, Reader};
use millstream_core::{Lease, Result};

/// A reader that skips the pending list once new entries were read under its lease: so it reads what former owners left, and
/// nothing that was lost on the way to this one.
///
/// Only the owner of a partition has it. In shared mode a consumer gets the bodies of what it takes over, and the proof that it
/// still has an entry, from its own pending list: without that nothing at all would work.
pub(super) struct NewOnly {
    inner: Box<dyn Reader>,
    token: String,
    begun: Arc<Mutex<HashSet<String>>>,
}

impl NewOnly {
    pub(super) fn new(inner: Box<dyn Reader>, lease: &Lease, begun: Arc<Mutex<HashSet<String>>>) -> Self {
        Self { inner, token: lease.token.to_string(), begun }
    }
}

#[async_trait]
impl Reader for NewOnly {
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        loop {
            let mut fetched = self.inner.fetch(max, wait).await?;
            let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            if !fetched.pending {
                begun.insert(self.token.clone());
                return Ok(fetched);
            }
            if !begun.contains(&self.token) {
                return Ok(fetched);
            }
            if fetched.tail_lost || fetched.rewound.is_some() {
                fetched.entries.clear();
                return Ok(fetched);
            }
        }
    }

    fn start_over(&mut self) {
        self.inner.start_over();
    }
}
