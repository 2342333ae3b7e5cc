//! What the `member` binary is told: how its consumer works, and what its handler does with a message.
//!
//! A message is a small program for the handler, so that one binary serves every test.

use std::path::PathBuf;

use millstream::Topic;
use serde::{Deserialize, Serialize};

/// The group that all members are in, unless a test says otherwise.
pub const GROUP: &str = "g";

/// How a member consumes; its only argument, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The server.
    pub url: String,
    /// In front of all keys.
    pub namespace: String,
    /// The topic.
    pub topic: String,
    /// Its number of partitions.
    pub partitions: u32,
    /// The file that all members of a test write to.
    pub sink: PathBuf,
    /// `lease_ttl` in milliseconds.
    pub ttl_ms: u64,
    /// `prefetch`.
    pub prefetch: usize,
    /// `concurrency`.
    pub mode: Mode,
    /// Whether partitions are shared, and not owned.
    pub shared: bool,
    /// Whether `retry_order` is `BlockKey`, and not `Skip`.
    pub block_key: bool,
    /// How long a failed message waits, in milliseconds.
    pub back_off_ms: u64,
    /// How many attempts a message has.
    pub attempts: u32,
    /// `crash_limit`.
    pub crash_limit: u32,
    /// `member_id`.
    pub member_id: Option<String>,
}

/// `concurrency`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Mode {
    /// One at a time.
    Serial,
    /// This many at once, by key in order.
    PerKey(usize),
    /// This many at once.
    Unordered(usize),
}

impl Setup {
    /// A member of `topic` on the server at `url`; the rest is what most tests want.
    #[must_use]
    pub fn new(url: &str, topic: &str, partitions: u32) -> Self {
        Self {
            url: url.to_owned(),
            namespace: "members".to_owned(),
            topic: topic.to_owned(),
            partitions,
            sink: PathBuf::new(),
            ttl_ms: 3_000,
            prefetch: 64,
            mode: Mode::Serial,
            shared: false,
            block_key: false,
            back_off_ms: 5,
            attempts: 5,
            crash_limit: 3,
            member_id: None,
        }
    }

    /// The topic, as producers and consumers want it.
    #[must_use]
    pub fn topic(&self) -> Topic<Job> {
        Topic::<Job>::new("jobs").named(self.topic.clone()).partitions(self.partitions)
    }
}

/// A message: what its handler is to do, when it was handed out for the first time and when again.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Which message it is.
    pub number: u64,
    /// When it is due, in milliseconds since 1970; 0 if it is not delayed.
    pub due_ms: u64,
    /// How long the handler works, in microseconds.
    pub work_us: u64,
    /// How long the handler then blocks its thread, in milliseconds.
    pub block_ms: u64,
    /// How many attempts fail.
    pub fails: u32,
    /// Whether the handler goes on working until the member is released or the delivery is cancelled.
    pub hold: [bool; 2],
    /// What it says at last.
    pub end: [End; 2],
}

impl Job {
    /// A message that is handled at once.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }
}

/// What a handler says of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It is done.
    #[default]
    Ack,
    /// It failed.
    Fail,
    /// It is hopeless.
    DeadLetter,
    /// Nothing: the process aborts.
    Abort,
}
