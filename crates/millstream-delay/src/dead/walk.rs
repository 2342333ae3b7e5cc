//! Iteration over the dead tasks of all shards, with a filter.

use std::collections::BTreeSet;
use std::fmt;

use millstream_core::error::Result;
use millstream_core::tasks::DeadTask;
use millstream_core::{Backend, Fingerprint, MessageId, QueueSpec, Reason, Shard, Timestamp};

use super::PAGE;

/// Conditions on dead tasks: a task must match all that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadTaskFilter {
    /// Ids of the tasks. Default: all.
    pub tasks: Option<BTreeSet<String>>,
    /// Text that replaces the errors of tasks with the reason `undecodable` before anything is compared, and in what is returned:
    /// codecs quote what they cannot read. Default: errors are as they are stored.
    pub undecodable_error: Option<&'static str>,
    /// Text contained in the error of the last attempt.
    pub error: Option<String>,
    /// Fingerprint of the error of the last attempt, as [`DeadTasks::errors`](crate::DeadTasks::errors) returns it.
    pub fingerprint: Option<Fingerprint>,
    /// Time at which the task died at the latest, by the clock of its server. Default: any.
    pub until: Option<Timestamp>,
}

impl DeadTaskFilter {
    /// Returns whether all tasks match.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self { undecodable_error: self.undecodable_error, ..Self::default() }
    }

    /// Returns whether a task matches.
    #[must_use]
    pub fn fits(&self, task: &DeadTask) -> bool {
        self.tasks.as_ref().is_none_or(|tasks| tasks.contains(task.task.as_str()))
            && self.error.as_ref().is_none_or(|text| task.error.contains(text))
            && self.fingerprint.is_none_or(|print| print == Fingerprint::of(&task.error))
            && self.until.is_none_or(|until| task.id.timestamp() <= until)
    }
}

/// Iterates over the dead tasks that were there when it began: shard by shard, oldest first within each.
pub struct DeadTaskWalk {
    backend: Backend,
    filter: DeadTaskFilter,
    /// The shards still to be read; the last one is next.
    shards: Vec<Shard>,
    /// Last task read of the shard that is next.
    after: MessageId,
    /// Number of tasks of that shard to read; `None` before its first page. Tasks may die faster than they are read.
    left: Option<u64>,
    looked_at: u64,
}

impl DeadTaskWalk {
    pub(super) fn new(backend: Backend, queue: &QueueSpec, filter: DeadTaskFilter) -> Self {
        let mut shards: Vec<_> = queue.iter().collect();
        shards.reverse();
        Self { backend, filter, shards, after: MessageId::ZERO, left: None, looked_at: 0 }
    }

    /// Reads a page of at most 100 tasks, fewer if they are large, and returns the matching ones: possibly none while there
    /// are more.
    ///
    /// # Errors
    /// Those of [`Tasks::dead_tasks`](millstream_core::Tasks::dead_tasks); the next call continues where this one ended.
    pub async fn run_once(&mut self) -> Result<Vec<DeadTask>> {
        let Some(shard) = self.shards.last() else { return Ok(Vec::new()) };
        let role = self.backend.tasks()?;
        let left = match self.left {
            Some(left) => left,
            None => role.counts(shard).await?.dead,
        };
        let page = PAGE.min(usize::try_from(left).unwrap_or(PAGE));
        let mut tasks = if page == 0 { Vec::new() } else { role.dead_tasks(shard, self.after, page).await? };
        self.looked_at += tasks.len() as u64;
        let left = left.saturating_sub(tasks.len() as u64);
        match tasks.last() {
            Some(last) if left > 0 => (self.after, self.left) = (last.id, Some(left)),
            _ => {
                self.shards.pop();
                (self.after, self.left) = (MessageId::ZERO, None);
            }
        }
        if let Some(text) = self.filter.undecodable_error {
            let hidden = tasks.iter_mut().filter(|task| task.reason == Reason::Undecodable);
            hidden.for_each(|task| text.clone_into(&mut task.error));
        }
        Ok(tasks.into_iter().filter(|task| self.filter.fits(task)).collect())
    }

    /// Returns whether all tasks were read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shards.is_empty()
    }

    /// Returns the number of tasks read so far.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }
}

impl fmt::Debug for DeadTaskWalk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadTaskWalk")
            .field("filter", &self.filter)
            .field("looked_at", &self.looked_at)
            .finish_non_exhaustive()
    }
}
