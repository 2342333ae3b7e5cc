//! The jump consistent hash: <https://arxiv.org/abs/1406.2294>.

use std::num::NonZeroU32;

/// Returns the bucket, below `buckets`, of a hash. A larger number of buckets moves as few hashes as possible.
pub(super) fn bucket(mut hash: u64, buckets: NonZeroU32) -> u32 {
    let mut current: i64 = 0;
    let mut next: i64 = 0;
    while next < i64::from(buckets.get()) {
        // `next` is the bucket that the hash would move to next as the number of buckets grows.
        current = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let step = (1u64 << 31) as f64 / ((hash >> 33) + 1) as f64;
        next = ((current + 1) as f64 * step) as i64;
    }
    // Below `buckets`, so below 2^32.
    u32::try_from(current).unwrap_or(0)
}

/// FNV-1a, 64 bits: short, published, and stable. The finisher (of `SplitMix64`) spreads keys that differ in their last
/// byte only.
pub(crate) fn mix(key: &[u8]) -> u64 {
    let fnv = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
