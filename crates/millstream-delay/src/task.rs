//! A task as a handler gets it.

use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use millstream_core::{Headers, History, ScheduleId, Shard};
use tokio_util::sync::CancellationToken;

use crate::queue::time_of;

/// A task as a handler gets it: the payload, and what is known of it.
///
/// It does not deref to its payload, whose methods of the same names would then be hidden.
#[derive(Clone)]
pub struct Task<T> {
    /// What was scheduled.
    pub payload: T,
    pub(crate) about: About,
}

/// Everything but the payload.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) id: ScheduleId,
    pub(crate) shard: Shard,
    pub(crate) due: u64,
    pub(crate) late: Duration,
    pub(crate) attempt: u32,
    pub(crate) crashes: u32,
    pub(crate) error: String,
    pub(crate) history: History,
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: Headers,
    pub(crate) cancelled: CancellationToken,
}

impl<T> Task<T> {
    /// The payload alone.
    pub fn into_payload(self) -> T {
        self.payload
    }

    /// Its id: the same on every attempt. Use it to recognise what was done before.
    pub fn id(&self) -> &ScheduleId {
        &self.about.id
    }

    /// The shard that it waited in.
    pub fn shard(&self) -> &Shard {
        &self.about.shard
    }

    /// When it was due, by the server's clock; of a retry, when that was due.
    pub fn due(&self) -> SystemTime {
        time_of(self.about.due)
    }

    /// How long after that it was claimed, by the server's clock.
    pub fn late(&self) -> Duration {
        self.about.late
    }

    /// The number of this attempt, from 1. It grows when a handler failed, not when a worker died.
    pub fn attempt(&self) -> u32 {
        self.about.attempt
    }

    /// How many workers died over this attempt, or stood still for as long as they may hold it. More than 0 means that
    /// it may have been done.
    pub fn crashes(&self) -> u32 {
        self.about.crashes
    }

    /// What the last attempt failed with.
    pub fn last_error(&self) -> Option<&str> {
        Some(&*self.about.error).filter(|error| !error.is_empty())
    }

    /// What the attempts before this one failed with: the first, and the newest.
    pub fn history(&self) -> &History {
        &self.about.history
    }

    /// The key.
    pub fn key(&self) -> Option<&Bytes> {
        self.about.key.as_ref()
    }

    /// The headers.
    pub fn headers(&self) -> &Headers {
        &self.about.headers
    }

    /// Ready when the task is no longer certainly ours: it could not be renewed for as long as it is held, or another
    /// worker has it. Whatever takes long may end early; what the handler says is told to the server all the same, and
    /// holds if nobody else has the task.
    ///
    /// Nothing is cut short by itself: a handler that does not ask runs to its end.
    ///
    /// ```
    /// # use millstream_delay::Task;
    /// # async fn transcode(_: &str) -> Result<(), String> { Ok(()) }
    /// async fn handle(film: Task<String>) -> Result<(), String> {
    ///     tokio::select! {
    ///         done = transcode(&film.payload) => done,
    ///         () = film.cancelled() => Err("no longer ours".into()),
    ///     }
    /// }
    /// ```
    pub async fn cancelled(&self) {
        self.about.cancelled.cancelled().await;
    }

    /// Whether the task is no longer certainly ours. See [`cancelled`](Self::cancelled).
    pub fn is_cancelled(&self) -> bool {
        self.about.cancelled.is_cancelled()
    }
}

/// Without the payload: it may be a secret.
impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("id", &self.about.id)
            .field("shard", &self.about.shard)
            .field("attempt", &self.about.attempt)
            .finish_non_exhaustive()
    }
}
