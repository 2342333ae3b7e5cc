//! Training of dictionaries.

use millstream_core::packing::MAX_DICTIONARY;
use millstream_core::wire::Fields;
use thiserror::Error;

use crate::layout;

/// Reason why no dictionary can be trained.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotTrained {
    /// The size is 0, or more than a dictionary may have.
    #[error("a dictionary of up to {0} bytes: 1 to {MAX_DICTIONARY} are allowed")]
    Size(usize),
    /// The messages are too few, too small, or have nothing in common.
    #[error("{messages} messages of {bytes} bytes give no dictionary: {why}")]
    Samples {
        /// Number of messages.
        messages: usize,
        /// Size of all of them, in bytes.
        bytes: usize,
        /// What zstd says.
        why: String,
    },
}

/// Trains a dictionary of up to `size` bytes on messages, in the form in which packs hold them.
///
/// zstd advises samples of a hundred times the size of the dictionary.
///
/// # Errors
/// [`NotTrained`].
pub fn train<'a>(messages: impl Iterator<Item = &'a Fields>, size: usize) -> Result<Vec<u8>, NotTrained> {
    if !(1..=MAX_DICTIONARY).contains(&size) {
        return Err(NotTrained::Size(size));
    }
    let (mut samples, mut sizes) = (Vec::new(), Vec::new());
    for message in messages {
        let before = samples.len();
        layout::write(&mut samples, message);
        sizes.push(samples.len() - before);
    }
    let trained = zstd::dict::from_continuous(&samples, &sizes, size);
    let mut dictionary = trained.map_err(|error| NotTrained::Samples {
        messages: sizes.len(),
        bytes: samples.len(),
        why: error.to_string(),
    })?;
    name_by_all(&mut dictionary);
    Ok(dictionary)
}

/// Sets the id in the header of a dictionary to a hash of everything behind it. The id that zstd gives covers the end of it alone: two
/// dictionaries that differ in the tables before would have one name, and what one has packed would come out wrong with the other.
fn name_by_all(dictionary: &mut [u8]) {
    let Some((header, rest)) = dictionary.split_at_mut_checked(8) else { return };
    // FNV-1a: nobody chooses the contents so that two are alike.
    let hash = rest.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // RFC 8878, section 5: smaller and larger ids are reserved.
    let id = u32::try_from(hash % ((1 << 31) - (1 << 15))).unwrap_or_default() + (1 << 15);
    header[4..].copy_from_slice(&id.to_le_bytes());
}
