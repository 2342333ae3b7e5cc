//! Partitioners: the choice of a message's partition.

pub(crate) mod jump;
mod murmur2;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::topic::Partition;

pub use murmur2::murmur2;

/// Chooses the partition of a message.
///
/// A partitioner that uses the key must always return the same partition for the same key and number of partitions, in
/// every process and version: the order per key depends on it.
pub trait Partitioner: fmt::Debug + Send + Sync {
    /// Returns the partition, below `partitions`, of a message with this key.
    fn partition(&self, key: Option<&[u8]>, partitions: NonZeroU32) -> Partition;
}

/// Returns the part, below `parts` (0 counts as 1), that these bytes belong to, by the hash of [`ByKey`].
#[must_use]
pub fn by_hash(bytes: &[u8], parts: u32) -> u32 {
    // Kafka drops the sign bit in the same way.
    (murmur2(bytes).cast_unsigned() & 0x7fff_ffff) % parts.max(1)
}

/// Chooses one partition after the other, whatever the key. No order per key.
#[derive(Debug, Default)]
pub struct RoundRobin(AtomicU32);

impl RoundRobin {
    /// Creates a partitioner that starts with partition 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Partitioner for RoundRobin {
    fn partition(&self, _: Option<&[u8]>, partitions: NonZeroU32) -> Partition {
        Partition(self.0.fetch_add(1, Ordering::Relaxed) % partitions)
    }
}

/// Chooses by the key's murmur2 hash, exactly as Kafka's default partitioner; without a key, one partition after the
/// other. The default.
///
/// A key's partition is `(murmur2(key) & 0x7fffffff) % partitions`: a Kafka client and Millstream agree on it.
/// When a topic grows from n to n + 1 partitions, n of n + 1 keys move. Where that matters, see [`Consistent`].
#[derive(Debug, Default)]
pub struct ByKey(RoundRobin);

impl ByKey {
    /// Creates the default partitioner.
    #[must_use]
    pub const fn new() -> Self {
        Self(RoundRobin::new())
    }
}

impl Partitioner for ByKey {
    fn partition(&self, key: Option<&[u8]>, partitions: NonZeroU32) -> Partition {
        match key {
            Some(key) => Partition(by_hash(key, partitions.get())),
            None => self.0.partition(None, partitions),
        }
    }
}

/// Chooses by the key, so that few keys move when a topic grows; without a key, one partition after the other.
///
/// From n to m > n partitions a share of 1 - n/m of the keys moves, all of them to the new partitions: the least that
/// keeps partitions even. (From 8 to 9: one key in nine, where [`ByKey`] moves eight in nine.) It is the jump consistent
/// hash of Lamping and Veach (2014) over the 64-bit FNV-1a hash of the key.
#[derive(Debug, Default)]
pub struct Consistent(RoundRobin);

impl Consistent {
    /// Creates a consistent partitioner.
    #[must_use]
    pub const fn new() -> Self {
        Self(RoundRobin::new())
    }
}

impl Partitioner for Consistent {
    fn partition(&self, key: Option<&[u8]>, partitions: NonZeroU32) -> Partition {
        match key {
            Some(key) => Partition(jump::bucket(jump::mix(key), partitions)),
            None => self.0.partition(None, partitions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).expect("not zero")
    }

    fn moved(partitioner: &dyn Partitioner, from: u32, to: u32) -> (f64, bool) {
        let keys = 0..20_000u32;
        let mut moved = 0;
        let mut only_to_new = true;
        for key in keys.clone() {
            let key = format!("key-{key}");
            let before = partitioner.partition(Some(key.as_bytes()), of(from));
            let after = partitioner.partition(Some(key.as_bytes()), of(to));
            if before != after {
                moved += 1;
                only_to_new &= after.0 >= from;
            }
        }
        (f64::from(moved) / f64::from(keys.end), only_to_new)
    }

    #[test]
    fn consistent_moves_the_least_and_only_to_new_partitions() {
        for (from, to) in [(8, 9), (8, 16), (1, 2), (100, 101)] {
            let (share, only_to_new) = moved(&Consistent::new(), from, to);
            let least = 1.0 - f64::from(from) / f64::from(to);
            assert!((share - least).abs() < 0.02, "{from} -> {to}: {share} moved, {least} expected");
            assert!(only_to_new, "{from} -> {to}");
        }
        let (share, _) = moved(&ByKey::new(), 8, 9);
        assert!((share - 8.0 / 9.0).abs() < 0.02, "as the docs of ByKey say: {share}");
    }

    #[test]
    fn partitions_are_even() {
        for partitioner in [&Consistent::new() as &dyn Partitioner, &ByKey::new(), &RoundRobin::new()] {
            let mut counts = [0u32; 16];
            for key in 0..32_000 {
                let key = format!("user-{key}");
                counts[partitioner.partition(Some(key.as_bytes()), of(16)).0 as usize] += 1;
            }
            for count in counts {
                assert!((1_800..2_200).contains(&count), "{partitioner:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn without_a_key_they_go_round() {
        let partitioner = ByKey::new();
        let chosen: Vec<_> = (0..4).map(|_| partitioner.partition(None, of(3)).0).collect();
        assert_eq!(chosen, [0, 1, 2, 0]);
    }

    /// Pinned: a release that changes any of these moves keys of running systems.
    #[test]
    fn keys_stay_where_they_are_across_releases() {
        let keys = ["N14228", "customer-42", "", "ü", "a-much-longer-key-than-the-others"];
        let by_key = keys.map(|key| ByKey::new().partition(Some(key.as_bytes()), of(64)).0);
        let consistent = keys.map(|key| Consistent::new().partition(Some(key.as_bytes()), of(64)).0);
        assert_eq!(by_key, [32, 25, 25, 26, 32]);
        assert_eq!(consistent, [21, 19, 27, 1, 11]);
    }

    proptest! {
        #[test]
        fn always_below_the_count(key: Vec<u8>, n in 1u32..20_000) {
            for partitioner in [&Consistent::new() as &dyn Partitioner, &ByKey::new(), &RoundRobin::new()] {
                prop_assert!(partitioner.partition(Some(&key), of(n)).0 < n);
                prop_assert!(partitioner.partition(None, of(n)).0 < n);
            }
        }
    }
}
