//! A store with a fence, and the processes that write to it under a lock.

use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};

/// What a `locker` process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The servers of the lock. The first one is that of the store too.
    pub urls: Vec<String>,
    /// Ttl of the lock in milliseconds.
    pub ttl_ms: u64,
    /// How it takes the lock.
    pub work: Work,
}

/// Work of a `locker` process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Takes the lock again and again.
    Lock,
    /// Takes the lock again and again, as a candidate of an election.
    Lead,
    /// Takes the lock once, checks that it holds it, sets [`CHECKED`], and writes two seconds later, without another check.
    CheckThenWrite,
    /// The same with a lock over several servers, which has no fence: it shows 0.
    CheckThenWriteRed,
}

/// Key that a process sets when it has checked that it holds its lock: to the fence.
pub const CHECKED: &str = "checked";

/// Accepts a write only if its fence is not below the highest that it has seen, and records each with its result.
const WRITE: &str = "
local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
local accepted = tonumber(ARGV[1]) >= seen and 1 or 0
if accepted == 1 then redis.call('HSET', KEYS[1], 'fence', ARGV[1]) end
redis.call('RPUSH', KEYS[2], ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. accepted)
return accepted";

/// One write that reached the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The fence that the writer showed.
    pub fence: u64,
    /// The process that wrote.
    pub pid: u32,
    /// Whether the store took it.
    pub accepted: bool,
}

/// The store.
#[derive(Clone, Debug)]
pub struct Store(MultiplexedConnection);

impl Store {
    /// Connects.
    ///
    /// # Panics
    /// If the server is away.
    pub async fn connect(url: &str) -> Self {
        Self(crate::fixture::raw_connection(url).await)
    }

    /// Writes, and returns whether the write was accepted.
    ///
    /// # Panics
    /// If the server is away.
    pub async fn write(&mut self, fence: u64, pid: u32) -> bool {
        let mut command = redis::cmd("EVAL");
        command.arg(WRITE).arg(2).arg("store").arg("writes").arg(fence).arg(pid);
        command.query_async(&mut self.0).await.expect("an answer")
    }

    /// Sets [`CHECKED`].
    ///
    /// # Panics
    /// If the server is away.
    pub async fn checked(&mut self, fence: u64) {
        let set = redis::cmd("SET").arg(CHECKED).arg(fence).to_owned();
        set.query_async::<()>(&mut self.0).await.expect("set");
    }

    /// Returns all writes, in the order in which they came.
    ///
    /// # Panics
    /// If the server is away.
    pub async fn writes(&mut self) -> Vec<Write> {
        let lines: Vec<String> =
            redis::cmd("LRANGE").arg("writes").arg(0).arg(-1).query_async(&mut self.0).await.expect("a list");
        let write = |line: &String| {
            let words: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
            Write { fence: words[0], pid: u32::try_from(words[1]).expect("a pid"), accepted: words[2] == 1 }
        };
        lines.iter().map(write).collect()
    }
}
