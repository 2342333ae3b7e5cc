//! Claims of this worker that are to end, since their tasks were cancelled from outside.
//!
//! A mark names the claim for which it asks, so it concerns neither the next attempt nor another task with this id. A task that waits needs
//! no mark: it is removed in one step.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::cancels::Cancels;
use millstream_core::{Backend, ScheduleId, Shard};

/// The claims of this worker for which somebody asks that they end.
pub(in crate::worker) struct TaskCancels {
    role: Option<Arc<dyn Cancels>>,
    /// For each shard the claims that are marked, by the ids of their tasks.
    marked: Vec<Mutex<HashMap<String, String>>>,
    /// Claims whose marks cannot be answered: their tasks are handled.
    ignored: Mutex<HashSet<String>>,
}

impl TaskCancels {
    pub(in crate::worker) fn of(backend: &Backend, shards: usize) -> Self {
        let marked = (0..shards).map(|_| Mutex::default()).collect();
        Self { role: backend.cancels().ok().cloned(), marked, ignored: Mutex::default() }
    }

    /// Returns the role, if the backend has it.
    pub(in crate::worker) fn role(&self) -> Option<&Arc<dyn Cancels>> {
        self.role.as_ref()
    }

    /// Whether somebody asks that this claim of a task ends.
    pub(in crate::worker) fn has(&self, shard: &Shard, id: &ScheduleId, token: &str) -> bool {
        let is_marked =
            self.of_shard(shard).is_some_and(|marked| marked.get(id.as_str()).is_some_and(|it| it == token));
        is_marked && !self.ignored().contains(token)
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
