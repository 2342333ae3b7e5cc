//! What the `worker` binary is told: a worker of a delay queue in a process of its own, made to be killed.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::member::Job;

/// How a worker works; its only argument, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The server.
    pub url: String,
    /// The queue; it is created by the test.
    pub queue: String,
    /// The file that all workers of a test write to.
    pub sink: PathBuf,
    /// `concurrency`.
    pub concurrency: usize,
    /// `hold` in milliseconds.
    pub hold_ms: u64,
    /// How long a failed task waits, in milliseconds.
    pub back_off_ms: u64,
    /// How many attempts a task has.
    pub attempts: u32,
    /// `crash_limit`.
    pub crash_limit: u32,
}

impl Setup {
    /// A worker of `queue` on the server at `url`; the rest is what most tests want.
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
        }
    }
}

/// By what its claims are known, while it runs.
#[must_use]
pub fn label(pid: u32) -> String {
    format!("w{pid}")
}

/// A task: what its handler is to do. Of a [`Job`], `work_us`, `fails`, `end` and `due_ms` count here.
pub type Work = Job;
