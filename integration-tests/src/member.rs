//! The settings of the `member` binary: how its consumer works, and how its handler treats a message.
//!
//! A message contains instructions for the handler, so that one binary serves every test.

use std::path::PathBuf;
use std::time::Duration;

use millstream::{Packing, Topic};
use serde::{Deserialize, Serialize};

/// The group of all members, unless a test sets another one.
pub const GROUP: &str = "g";

/// The settings of a member; its only argument, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The URL of the server.
    pub url: String,
    /// The namespace: the prefix of all keys.
    pub namespace: String,
    /// The topic.
    pub topic: String,
    /// Its number of partitions.
    pub partitions: u32,
    /// How many messages are packed into an entry at most, two at the least; not packed if there is none.
    pub packed: Option<u32>,
    /// The file that all members of a test write to.
    pub sink: PathBuf,
    /// `lease_ttl` in milliseconds.
    pub ttl_ms: u64,
    /// `prefetch`.
    pub prefetch: usize,
    /// `concurrency`.
    pub mode: Mode,
    /// Whether partitions are shared instead of owned.
    pub shared: bool,
    /// Whether `retry_order` is `BlockKey` instead of `Skip`.
    pub block_key: bool,
    /// The delay before a failed message is retried, in milliseconds.
    pub back_off_ms: u64,
    /// The maximum number of attempts of a message.
    pub attempts: u32,
    /// `crash_limit`.
    pub crash_limit: u32,
    /// `member_id`.
    pub member_id: Option<String>,
    /// Whether handlers are idempotent, by the numbers of the messages.
    pub idempotent: bool,
    /// How many messages all members handle at once, if that is limited.
    pub limit: Option<u32>,
    /// How many messages begin in a second, of all members, if that is limited.
    pub rate: Option<u32>,
    /// How many calls a breaker looks at, if there is one: handlers fail while [what they call](Self::away) is away.
    pub breaker: Option<u32>,
    /// Whether three tenants are served fairly, those of the numbers of messages.
    pub fair: bool,
}

/// How long breakers stay open.
pub const OPEN: Duration = Duration::from_millis(500);

/// `concurrency`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Mode {
    /// One at a time.
    Serial,
    /// This many concurrently, in order by key.
    PerKey(usize),
    /// This many concurrently.
    Unordered(usize),
}

impl Setup {
    /// Returns the settings of a member of `topic` on the server at `url`, with defaults that suit most tests.
    #[must_use]
    pub fn new(url: &str, topic: &str, partitions: u32) -> Self {
        Self {
            url: url.to_owned(),
            namespace: "members".to_owned(),
            topic: topic.to_owned(),
            partitions,
            packed: None,
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
            idempotent: false,
            limit: None,
            rate: None,
            breaker: None,
            fair: false,
        }
    }

    /// Returns the file that is there once messages do not become dead letters any more.
    #[must_use]
    pub fn healed(&self) -> PathBuf {
        self.sink.with_extension("healed")
    }

    /// Returns the file that is there while what handlers call is away, if members have a breaker.
    #[must_use]
    pub fn away(&self) -> PathBuf {
        self.sink.with_extension("away")
    }

    /// Returns the topic, for producers and consumers.
    #[must_use]
    pub fn topic(&self) -> Topic<Job> {
        let topic = Topic::<Job>::new("jobs").named(self.topic.clone()).partitions(self.partitions);
        let packing = |most| Packing::new().min_messages(2).max_messages(most);
        match self.packed {
            Some(most) => topic.packed(packing(most)),
            None => topic,
        }
    }
}

/// A message: instructions for its handler. Fields with two values are for the first delivery and for later ones.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// The number of the message.
    pub number: u64,
    /// When it is due, in milliseconds since 1970; 0 if it is not delayed.
    pub due_ms: u64,
    /// How long the handler works, in microseconds.
    pub work_us: u64,
    /// How long the handler then blocks its thread, in milliseconds.
    pub block_ms: u64,
    /// The number of attempts that fail.
    pub fails: u32,
    /// Whether the handler has [steps](crate::steps).
    pub steps: bool,
    /// Whether the handler continues to work until the member is released or the delivery is cancelled.
    pub hold: [bool; 2],
    /// The final result of the handler.
    pub end: [End; 2],
}

impl Job {
    /// Returns a message that is handled immediately.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }
}

/// The result that a handler returns for a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It is done.
    #[default]
    Ack,
    /// It failed.
    Fail,
    /// It becomes a dead letter.
    DeadLetter,
    /// It becomes a dead letter until [somebody heals it](Setup::healed).
    DeadLetterUntilHealed,
    /// No result: the process aborts.
    Abort,
}
