//! Hash tags: what keeps keys together, and bytes of users as text of keys.

use std::fmt;

use crate::name::LockName;
use crate::partitioner::jump;
use crate::schedule::{Place, Shard};
use crate::topic::TopicPartition;

pub(super) struct Tag<'a>(pub(super) &'a TopicPartition);

impl fmt::Display for Tag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}:p:{}}}", self.0.topic, self.0.partition)
    }
}

pub(super) struct ShardTag<'a>(pub(super) &'a Shard);

impl fmt::Display for ShardTag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}:q:{}}}", self.0.queue, self.0.shard)
    }
}

/// Bytes that a user chose, with everything escaped as `%XX` but the characters of names.
pub(super) struct Escaped<'a>(pub(super) &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                fmt::Write::write_char(f, *byte as char)
            }
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

/// Number of shards that locks are spread over: enough for the nodes of a large cluster. Each has one key that stays.
pub const LOCK_SHARDS: u64 = 256;

pub(super) fn lock_shard(name: &LockName) -> u64 {
    jump::mix(name.as_str().as_bytes()) % LOCK_SHARDS
}

/// Hash tag of a lock's shard. No topic or queue has the same, since the letter differs.
pub(super) struct LockTag<'a>(pub(super) &'a LockName);

impl fmt::Display for LockTag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{lock:s:{}}}", lock_shard(self.0))
    }
}

pub(super) struct PlaceTag<'a>(pub(super) &'a Place);

impl fmt::Display for PlaceTag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Place::Partition(tp) => Tag(tp).fmt(f),
            Place::Shard(shard) => ShardTag(shard).fmt(f),
        }
    }
}
