//! Compression of the bytes of a pack, bounded by the size that it declares.

use millstream_core::packing::PackCompression;

#[cfg(feature = "zstd")]
use crate::pool::Pool;

/// Level of zstd: packs are written for each batch of a producer, and level 3 takes twice the time for a twentieth of the size.
#[cfg(feature = "zstd")]
pub(crate) const LEVEL: i32 = 1;

#[cfg(feature = "zstd")]
static COMPRESSORS: Pool<zstd::bulk::Compressor<'static>> = Pool::new();
#[cfg(feature = "zstd")]
static DECOMPRESSORS: Pool<zstd::bulk::Decompressor<'static>> = Pool::new();

/// Reason why bytes cannot be compressed or decompressed.
pub(crate) enum Failed {
    /// This program was built without the compression.
    NotBuilt,
    /// The bytes are not what they should be.
    Damaged(String),
}

#[cfg(feature = "zstd")]
impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// Returns whether this program was built with a compression.
#[must_use]
pub const fn is_built(compression: PackCompression) -> bool {
    let lz4 = cfg!(feature = "lz4") && matches!(compression, PackCompression::Lz4);
    let of_zstd = matches!(compression, PackCompression::Zstd | PackCompression::ZstdDictionary);
    let zstd = cfg!(feature = "zstd") && of_zstd;
    lz4 || zstd || matches!(compression, PackCompression::None)
}

pub(crate) fn compress(bytes: Vec<u8>, compression: PackCompression) -> Result<Vec<u8>, Failed> {
    match compression {
        PackCompression::None => Ok(bytes),
        #[cfg(feature = "lz4")]
        PackCompression::Lz4 => Ok(lz4_flex::block::compress(&bytes)),
        #[cfg(feature = "zstd")]
        PackCompression::Zstd => {
            COMPRESSORS.with(|| zstd::bulk::Compressor::new(LEVEL), |compressor| compressor.compress(&bytes))
        }
        #[allow(unreachable_patterns, reason = "without a feature its compression is left")]
        _ => Err(Failed::NotBuilt),
    }
}

/// Decompresses into `size` bytes. No more is allocated, whatever the bytes say of themselves.
pub(crate) fn decompress(bytes: &[u8], compression: PackCompression, size: usize) -> Result<Vec<u8>, Failed> {
    let plain = match compression {
        PackCompression::None => bytes.to_vec(),
        #[cfg(feature = "lz4")]
        PackCompression::Lz4 => {
            let damaged = |error: lz4_flex::block::DecompressError| Failed::Damaged(error.to_string());
            let mut plain = vec![0; size];
            let written = lz4_flex::block::decompress_into(bytes, &mut plain).map_err(damaged)?;
            plain.truncate(written);
            plain
        }
        #[cfg(feature = "zstd")]
        PackCompression::Zstd => {
            DECOMPRESSORS.with(zstd::bulk::Decompressor::new, |it| it.decompress(bytes, size))?
        }
        #[allow(unreachable_patterns, reason = "without a feature its compression is left")]
        _ => return Err(Failed::NotBuilt),
    };
    whole(plain, size)
}

/// Returns what was decompressed if it is as large as the pack says.
pub(crate) fn whole(plain: Vec<u8>, size: usize) -> Result<Vec<u8>, Failed> {
    if plain.len() == size {
        Ok(plain)
    } else {
        Err(Failed::Damaged(format!("{} bytes where {size} are declared", plain.len())))
    }
}
