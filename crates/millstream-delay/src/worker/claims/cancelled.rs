//! Claims of this worker that are to end, since their tasks were cancelled from outside.
//!
//! A mark names the claim for which it asks, so it concerns neither the next attempt nor another task with this id. A task that waits needs
//! no mark: it is removed in one step.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::batches::BatchId;
use millstream_core::cancels::Cancels;
use millstream_core::{Backend, ScheduleId, Shard};
use tokio::sync::watch;

/// The claims of this worker for which somebody asks that they end.
pub(in crate::worker) struct TaskCancels {
    role: Option<Arc<dyn Cancels>>,
    /// For each shard the claims that are marked, by the ids of their tasks.
    marked: Vec<Mutex<HashMap<String, String>>>,
    /// For each shard the batches that are cancelled, with all of their members.
    batches: Vec<Mutex<HashSet<BatchId>>>,
    /// Whether the marks of each shard were read.
    read: Vec<watch::Sender<bool>>,
    /// Claims whose marks cannot be answered: their tasks are handled.
    ignored: Mutex<HashSet<String>>,
}

impl TaskCancels {
    pub(in crate::worker) fn of(backend: &Backend, shards: usize) -> Self {
        let marked = (0..shards).map(|_| Mutex::default()).collect();
        let batches = (0..shards).map(|_| Mutex::default()).collect();
        let role = backend.cancels().ok().cloned();
        let read = (0..shards).map(|_| watch::Sender::new(role.is_none())).collect();
        Self { role, marked, batches, read, ignored: Mutex::default() }
    }

    /// Returns the role, if the backend has it.
    pub(in crate::worker) fn role(&self) -> Option<&Arc<dyn Cancels>> {
        self.role.as_ref()
    }

    /// Says that the marks of a shard were read, or cannot be.
    pub(in crate::worker) fn set_read(&self, shard: &Shard) {
        if let Some(read) = self.read.get(shard.shard as usize) {
            read.send_replace(true);
        }
    }

    /// Waits until the marks of a shard were read: a batch may have been cancelled before this worker began.
    pub(in crate::worker) async fn until_read(&self, shard: &Shard) {
        if let Some(read) = self.read.get(shard.shard as usize)
            && !*read.borrow()
        {
            // The sender is here.
            let _ = read.subscribe().wait_for(|read| *read).await;
        }
    }

    /// Whether somebody asks that this claim of a task ends.
    pub(in crate::worker) fn has(&self, shard: &Shard, id: &ScheduleId, token: &str) -> bool {
        let is_marked =
            self.of_shard(shard).is_some_and(|marked| marked.get(id.as_str()).is_some_and(|it| it == token));
        is_marked && !self.ignored().contains(token)
    }

    /// Whether a task, whose headers these are, is a member of a batch that is cancelled. They are asked for only if there is one.
    pub(in crate::worker) fn has_batch(
        &self,
        shard: &Shard,
        batch: impl FnOnce() -> Option<BatchId>,
    ) -> bool {
        let Some(batches) = self.batches.get(shard.shard as usize) else { return false };
        let batches = batches.lock().unwrap_or_else(PoisonError::into_inner);
        !batches.is_empty() && batch().is_some_and(|batch| batches.contains(&batch))
    }

    /// Sets the batches of a shard that are cancelled.
    pub(in crate::worker) fn set_batches(&self, shard: &Shard, cancelled: Vec<BatchId>) {
        if let Some(batches) = self.batches.get(shard.shard as usize) {
            *batches.lock().unwrap_or_else(PoisonError::into_inner) = cancelled.into_iter().collect();
        }
    }

    /// Handles the task of this claim, since its mark cannot be answered.
    pub(in crate::worker) fn ignore(&self, token: String) {
        self.ignored().insert(token);
    }

    fn ignored(&self) -> MutexGuard<'_, HashSet<String>> {
        self.ignored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets which claims of a shard are marked.
    pub(in crate::worker) fn set(&self, shard: &Shard, claims: HashMap<String, String>) {
        if let Some(mut marked) = self.of_shard(shard) {
            *marked = claims;
        }
    }

    fn of_shard(&self, shard: &Shard) -> Option<MutexGuard<'_, HashMap<String, String>>> {
        let marked = self.marked.get(shard.shard as usize)?;
        Some(marked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
