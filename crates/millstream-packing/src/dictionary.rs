//! Dictionaries: what the messages of a topic have in common, so that zstd needs not find it in each pack again.

use millstream_core::packing::{DictionaryName, MAX_DICTIONARY};
use thiserror::Error;

use crate::compression::Failed;
#[cfg(feature = "zstd")]
use crate::compression::LEVEL;
#[cfg(feature = "zstd")]
use crate::pool::Pool;

/// Reason why bytes are no dictionary.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadDictionary {
    /// They are larger than a dictionary may be.
    #[error("a dictionary of {0} bytes: at most {MAX_DICTIONARY} are allowed")]
    Size(usize),
    /// They are not what zstd trains: without an id, or nothing can be compressed with them.
    #[error("the bytes are no dictionary of zstd")]
    Form,
    /// This program was built without zstd.
    #[error("this program was built without zstd")]
    NotBuilt,
}

/// Dictionary of a topic, ready for use. It can be shared by threads.
pub struct Dictionary {
    name: DictionaryName,
    #[cfg(feature = "zstd")]
    bytes: Vec<u8>,
    /// States that compress, with the dictionary loaded: to load it takes longer than to compress a pack. There are as many as were
    /// needed at once.
    #[cfg(feature = "zstd")]
    compressors: Pool<zstd::bulk::Compressor<'static>>,
    #[cfg(feature = "zstd")]
    decompressors: Pool<zstd::bulk::Decompressor<'static>>,
}

impl std::fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dictionary").field("name", &self.name).finish_non_exhaustive()
    }
}

impl AsRef<Self> for Dictionary {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Dictionary {
    /// Loads a dictionary that was stored under this version, and tries it.
    ///
    /// # Errors
    /// [`BadDictionary`].
    pub fn new(version: u32, bytes: &[u8]) -> Result<Self, BadDictionary> {
        if bytes.len() > MAX_DICTIONARY {
            return Err(BadDictionary::Size(bytes.len()));
        }
        Self::load(version, bytes)
    }

    /// Returns its version and its id.
    #[must_use]
    pub const fn name(&self) -> DictionaryName {
        self.name
    }

    /// Returns the bytes that it was loaded from.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        #[cfg(feature = "zstd")]
        return &self.bytes;
        #[cfg(not(feature = "zstd"))]
        &[]
    }

    #[cfg(not(feature = "zstd"))]
    fn load(_: u32, _: &[u8]) -> Result<Self, BadDictionary> {
        Err(BadDictionary::NotBuilt)
    }

    #[cfg(not(feature = "zstd"))]
    pub(crate) fn compress(&self, _: &[u8]) -> Result<Vec<u8>, Failed> {
        Err(Failed::NotBuilt)
    }

    #[cfg(not(feature = "zstd"))]
    pub(crate) fn decompress(&self, _: &[u8], _: usize) -> Result<Vec<u8>, Failed> {
        Err(Failed::NotBuilt)
    }
}

#[cfg(feature = "zstd")]
impl Dictionary {
    fn load(version: u32, bytes: &[u8]) -> Result<Self, BadDictionary> {
        // One without an id is plain text: packs could not say that they need this one.
        let (name, bytes) = (DictionaryName::of(version, bytes).ok_or(BadDictionary::Form)?, bytes.to_vec());
        let dictionary = Self { name, bytes, compressors: Pool::new(), decompressors: Pool::new() };
        // zstd reads the tables in it at the first use.
        let sample = b"{\"a\":1}";
        let compressed = dictionary.compress(sample).map_err(|_| BadDictionary::Form)?;
        let back = dictionary.decompress(&compressed, sample.len()).map_err(|_| BadDictionary::Form)?;
        if back == sample { Ok(dictionary) } else { Err(BadDictionary::Form) }
    }

    pub(crate) fn compress(&self, bytes: &[u8]) -> Result<Vec<u8>, Failed> {
        let make = || zstd::bulk::Compressor::with_dictionary(LEVEL, &self.bytes);
        self.compressors.with(make, |compressor| compressor.compress(bytes))
    }

    /// Decompresses into `size` bytes at the most.
    pub(crate) fn decompress(&self, bytes: &[u8], size: usize) -> Result<Vec<u8>, Failed> {
        let make = || zstd::bulk::Decompressor::with_dictionary(&self.bytes);
        self.decompressors.with(make, |decompressor| decompressor.decompress(bytes, size))
    }
}

/// Returns the id of the dictionary that a frame needs; `None` if it says none, or is no frame.
pub(crate) fn id_of_frame(bytes: &[u8]) -> Option<u32> {
    #[cfg(feature = "zstd")]
    return zstd::zstd_safe::get_dict_id_from_frame(bytes).map(std::num::NonZeroU32::get);
    #[cfg(not(feature = "zstd"))]
    {
        let _ = bytes;
        None
    }
}
