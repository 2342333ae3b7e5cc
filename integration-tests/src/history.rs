//! What happened: members and tests append lines to one file, whose order is the order in which things happened.
//!
//! A line is one write to a file that is opened for appending: it is whole whatever happens to its writer, and it stands
//! behind everything that was written before it was begun, by whichever process.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When, by [`now_us`].
    pub at_us: u64,
    /// In which process, or to which.
    pub pid: u32,
    /// What.
    pub what: What,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// The consumer is started.
    Ready,
    /// A handler begins.
    Started(Handling),
    /// A handler is about to say that its message is done.
    Done(Handling),
    /// A handler is about to say that it failed, or that its message is hopeless.
    Failed(Handling),
    /// A handler was told that its message is somebody else's now.
    Cancelled(Handling),
    /// The partition is ours: partition and epoch.
    Assigned(u32, u64),
    /// It was given back.
    Revoked(u32, u64),
    /// It was lost.
    Lost(u32, u64),
    /// A handler has a message that is not due: which, and by how many microseconds it is early.
    Early(u64, i64),
    /// Claims of a shard's tasks were lost while they were worked on: shard, how many.
    ClaimsLost(u32, usize),
    /// Settlements of a partition took effect, or came too late.
    Settled(u32, usize, usize),
    /// A message is given up since processes died over it: partition, how many.
    Crashed(u32, u32),
    /// How many members the group has, and how many partitions of it this one should own.
    Rebalanced(u32, usize),
    /// Another process has taken our name.
    Superseded,
    /// A loop met an error.
    Failing(String),
    /// The member shut down politely: how many messages it handed back.
    Ended(u64),
    /// The test killed the process, or found it dead; its time is from before the kill.
    Killed,
}

/// A message in the hands of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handling {
    /// Which message.
    pub number: u64,
    /// In which partition.
    pub partition: u32,
    /// The number of the attempt.
    pub attempt: u32,
    /// How often it was handed out.
    pub deliveries: u32,
    /// Under which lease.
    pub epoch: u64,
}

/// Microseconds of the clock that all processes of a machine share and nobody can set.
#[must_use]
pub fn now_us() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000
}

/// Writes lines.
#[derive(Debug)]
pub struct Sink(File);

impl Sink {
    /// Appends to the file at `path`, which is made if there is none.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        OpenOptions::new().append(true).create(true).open(path).map(Self)
    }

    /// Appends a line of this process.
    ///
    /// # Panics
    /// If it cannot be written: what happened would be lost.
    pub fn write(&self, what: What) {
        self.line(&Line { at_us: now_us(), pid: std::process::id(), what });
    }

    /// Appends a line.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    pub fn line(&self, line: &Line) {
        let mut text = serde_json::to_vec(line).expect("a line is JSON");
        text.push(b'\n');
        (&self.0).write_all(&text).expect("the sink can be written");
    }
}

/// Reads lines as they come.
#[derive(Debug)]
pub struct History {
    file: File,
    rest: Vec<u8>,
    /// What was read so far, in the order in which it happened.
    pub lines: Vec<Line>,
}

impl History {
    /// The history in the file at `path`.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self { file: File::open(path)?, rest: Vec::new(), lines: Vec::new() })
    }

    /// Reads what came since, and gives it back.
    ///
    /// # Panics
    /// If there is anything that is no line.
    pub fn read(&mut self) -> &[Line] {
        let before = self.lines.len();
        self.file.read_to_end(&mut self.rest).expect("the sink can be read");
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in self.rest[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let parsed = serde_json::from_slice(line);
            self.lines.push(parsed.unwrap_or_else(|error| {
                panic!("a torn line ({error}): {}", String::from_utf8_lossy(line));
            }));
        }
        self.rest.drain(..whole);
        &self.lines[before..]
    }
}

/// The quantiles that a summary shows, in milliseconds.
#[must_use]
pub fn quantiles(micros: &[u64]) -> String {
    let mut sorted = micros.to_vec();
    sorted.sort_unstable();
    let Some(last) = sorted.len().checked_sub(1) else { return "none".to_owned() };
    let at = |share: f64| sorted[((last as f64) * share).round() as usize] as f64 / 1_000.0;
    let [p50, p99, p100] = [0.5, 0.99, 1.0].map(at);
    format!("p50 {p50:.1} ms p99 {p99:.1} ms p100 {p100:.1} ms of {}", sorted.len())
}

/// Prints what was measured, in the form that people look for.
pub fn figure(name: &str, text: &str) {
    println!("figure: {name} {text}");
}
