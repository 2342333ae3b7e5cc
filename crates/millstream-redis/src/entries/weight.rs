//! Estimate of how large the entries of a stream are, before any is read.

use millstream_core::keys::Key;
use redis::{Pipeline, Value};

use crate::conn::replies::reply;

/// Number of entries of a log and its approximate size.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weight {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// Adds the commands that estimate how large the entries of a stream are before any is read.
pub(crate) fn add_weight(pipe: &mut Pipeline, stream: &Key) {
    pipe.cmd("XLEN").arg(stream.as_str());
    pipe.cmd("MEMORY").arg("USAGE").arg(stream.as_str()).arg("SAMPLES").arg(5);
}

/// Parses the replies to [`add_weight`]. A field is 0 where the server or the user's permissions do not allow the
/// command; then the first page shows the size.
pub(crate) fn weight(length: Value, bytes: Value) -> Weight {
    let number = |value| reply::count(value).map_or(0, |number| number as u64);
    Weight { entries: number(length), bytes: number(bytes) }
}
