//! The settings of the `worker` binary: a worker of a delay queue in its own process, to be killed by tests.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::member::Job;

/// The settings of a worker; its only argument, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The URL of the server.
    pub url: String,
    /// The queue; it is created by the test.
    pub queue: String,
    /// The file that all workers of a test write to.
    pub sink: PathBuf,
    /// `concurrency`.
    pub concurrency: usize,
    /// `hold` in milliseconds.
    pub hold_ms: u64,
    /// The delay before a failed task is retried, in milliseconds.
    pub back_off_ms: u64,
    /// The maximum number of attempts of a task.
    pub attempts: u32,
    /// `crash_limit`.
    pub crash_limit: u32,
    /// How many tasks all workers handle at once, if that is limited.
    pub limit: Option<u32>,
}

impl Setup {
    /// Returns the settings of a worker of `queue` on the server at `url`, with defaults that suit most tests.
    #[must_use]
    pub fn new(url: &str, queue: &str) -> Self {
        Self {
            url: url.to_owned(),
            queue: queue.to_owned(),
            sink: PathBuf::new(),
            concurrency: 16,
            hold_ms: 1_500,
            back_off_ms: 20,
            attempts: 5,
            crash_limit: 1_000,
            limit: None,
        }
    }
}

/// Returns the label that identifies its claims while it runs.
#[must_use]
pub fn label(pid: u32) -> String {
    format!("w{pid}")
}

/// A task: instructions for its handler. Of a [`Job`], it uses `work_us`, `fails`, `end` and `due_ms`.
pub type Work = Job;
