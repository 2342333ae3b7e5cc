//! The history of a test: members and tests append lines to one file, in the order of the events.
//!
//! A line is one write to a file opened for appending. It is therefore complete even if its writer dies, and it comes
//! after every line that was written before the write began, by any process.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::steps::Step;

/// One event, of a kind of events: that of members and workers, unless another one is named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line<W = What> {
    /// The time, by [`now_us`].
    pub at_us: u64,
    /// The process of the event.
    pub pid: u32,
    /// The event.
    pub what: W,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// The consumer is started.
    Ready,
    /// A handler begins.
    Started(Handling),
    /// A handler is about to return that its message is done.
    Done(Handling),
    /// A handler is about to return that it failed, or that its message is rejected.
    Failed(Handling),
    /// Something happened in a step of a handler.
    Step(Step),
    /// A handler's delivery was cancelled, as the message now has another owner.
    Cancelled(Handling),
    /// The partition was assigned to this process: partition and epoch.
    Assigned(u32, u64),
    /// The partition was released.
    Revoked(u32, u64),
    /// The partition was lost.
    Lost(u32, u64),
    /// A handler received a message that is not due: its number, and by how many microseconds it is early.
    Early(u64, i64),
    /// Claims of a shard's tasks were lost while they were handled: the shard, and their number.
    ClaimsLost(u32, usize),
    /// Settlements of a partition: the number that took effect, and the number that came too late.
    Settled(u32, usize, usize),
    /// A message is given up because processes died while handling it: the partition, and the number of processes.
    Crashed(u32, u32),
    /// The number of members of the group, and the number of its partitions that this member should own.
    Rebalanced(u32, usize),
    /// Another process has taken over the name of this one.
    Superseded,
    /// A loop encountered an error.
    Failing(String),
    /// The member shut down in an orderly way: the number of messages that it handed back.
    Ended(u64),
    /// The test killed the process, or found it dead. The time is from before the kill.
    Killed,
}

/// A message that a handler is working on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handling {
    /// The number of the message.
    pub number: u64,
    /// Its partition.
    pub partition: u32,
    /// The number of the attempt.
    pub attempt: u32,
    /// The number of deliveries.
    pub deliveries: u32,
    /// The epoch of the lease.
    pub epoch: u64,
}

/// Returns the time in microseconds of a clock that all processes of a machine share and that cannot be set.
#[must_use]
pub fn now_us() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000
}

/// Writes lines.
#[derive(Debug)]
pub struct Sink(File);

impl Sink {
    /// Opens the file at `path` for appending, and creates it if it does not exist.
    ///
    /// # Errors
    /// The errors of opening it.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        OpenOptions::new().append(true).create(true).open(path).map(Self)
    }

    /// Appends a line of this process.
    ///
    /// # Panics
    /// If the line cannot be written, since the event would be lost.
    pub fn write<W: Serialize>(&self, what: W) {
        self.line(&Line { at_us: now_us(), pid: std::process::id(), what });
    }

    /// Appends a line.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    pub fn line<W: Serialize>(&self, line: &Line<W>) {
        let mut text = serde_json::to_vec(line).expect("a line is JSON");
        text.push(b'\n');
        (&self.0).write_all(&text).expect("the sink can be written");
    }
}

/// Reads lines as they are written.
#[derive(Debug)]
pub struct History<W = What> {
    file: File,
    rest: Vec<u8>,
    /// The lines read so far, in the order of the events.
    pub lines: Vec<Line<W>>,
}

impl<W: DeserializeOwned> History<W> {
    /// Opens the history in the file at `path`.
    ///
    /// # Errors
    /// The errors of opening it.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self { file: File::open(path)?, rest: Vec::new(), lines: Vec::new() })
    }

    /// Reads the lines since the last read, and returns them.
    ///
    /// # Panics
    /// If the file contains anything that is not a line.
    pub fn read(&mut self) -> &[Line<W>] {
        let before = self.lines.len();
        self.file.read_to_end(&mut self.rest).expect("the sink can be read");
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in self.rest[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.lines.push(parse(line).unwrap_or_else(|error| {
                panic!("a torn line ({error}): {}", String::from_utf8_lossy(line));
            }));
        }
        self.rest.drain(..whole);
        &self.lines[before..]
    }
}

/// Parses a line. A process that is killed may leave the beginning of its last line, when the line goes over the end of a page
/// of the file: then another line follows without a line break. What is cut off was not recorded.
fn parse<W: DeserializeOwned>(line: &[u8]) -> serde_json::Result<Line<W>> {
    const BEGIN: &[u8] = b"{\"at_us\"";
    serde_json::from_slice(line).or_else(|error| {
        let behind = (1..line.len()).rev().find(|at| line[*at..].starts_with(BEGIN));
        behind.map_or(Err(error), |at| serde_json::from_slice(&line[at..]))
    })
}

/// Formats the quantiles for a summary, in milliseconds.
#[must_use]
pub fn quantiles(micros: &[u64]) -> String {
    let mut sorted = micros.to_vec();
    sorted.sort_unstable();
    let Some(last) = sorted.len().checked_sub(1) else { return "none".to_owned() };
    let at = |share: f64| sorted[((last as f64) * share).round() as usize] as f64 / 1_000.0;
    let [p50, p99, p100] = [0.5, 0.99, 1.0].map(at);
    format!("p50 {p50:.1} ms p99 {p99:.1} ms p100 {p100:.1} ms of {}", sorted.len())
}

/// Prints a measured figure, in the form that is searched for in the output.
pub fn figure(name: &str, text: &str) {
    println!("figure: {name} {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_began_to_write_hides_no_other_line() {
        let whole = br#"{"at_us":7,"pid":2,"what":"Killed"}"#;
        let torn = [&br#"{"at_us":6,"pid":2,"what":{"Started":{"number":69"#[..], whole].concat();
        for line in [&whole[..], &torn] {
            let line: Line = parse(line).expect("a line");
            assert_eq!((line.at_us, line.pid, line.what), (7, 2, What::Killed));
        }
        assert!(parse::<What>(&whole[..10]).is_err() && parse::<What>(&whole[1..]).is_err());
    }
}
