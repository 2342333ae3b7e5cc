//! What both sides agree upon.

use std::time::Duration;

/// When something is due that should not be due during a run.
pub(super) const AN_HOUR: Duration = Duration::from_secs(3_600);

/// The key of the `n`th message when there are so many.
pub(super) fn key_of(n: u64, keys: u32) -> Option<String> {
    (keys > 0).then(|| format!("key-{}", n % u64::from(keys)))
}
