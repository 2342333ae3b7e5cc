//! The parts of the workload that both sides share.

use std::time::Duration;

use bytes::Bytes;

/// Delay of messages that must not become due during a run.
pub(crate) const AN_HOUR: Duration = Duration::from_secs(3_600);

/// Text that one message has, which is to be found.
pub(crate) const NEEDLE: &str = "order 4711 of a customer who called";

/// Returns the key of the `n`th message, given the number of keys.
pub(crate) fn key_of(n: u64, keys: u32) -> Option<String> {
    (keys > 0).then(|| format!("key-{}", n % u64::from(keys)))
}

/// Returns the payload of all messages of a seed: random bytes, so that compression by a server or network does not
/// help.
pub(crate) fn payload(seed: u64, bytes: u32) -> Bytes {
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
