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
    zstd::dict::from_continuous(&samples, &sizes, size).map_err(|error| NotTrained::Samples {
        messages: sizes.len(),
        bytes: samples.len(),
        why: error.to_string(),
    })
}
