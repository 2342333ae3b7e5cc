//! What both sides agree upon.

use std::time::Duration;

use bytes::Bytes;

/// When something is due that should not be due during a run.
pub(super) const AN_HOUR: Duration = Duration::from_secs(3_600);

/// The key of the `n`th message when there are so many.
pub(super) fn key_of(n: u64, keys: u32) -> Option<String> {
    (keys > 0).then(|| format!("key-{}", n % u64::from(keys)))
}

/// The payload of all messages of a seed. Bytes of any kind: a server or network that compresses does not help.
pub(super) fn payload(seed: u64, bytes: u32) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_payload_again() {
        assert_eq!(payload(7, 128), payload(7, 128));
        assert_ne!(payload(7, 128), payload(8, 128));
        assert_eq!(payload(7, 8).len(), 8);
    }
}
