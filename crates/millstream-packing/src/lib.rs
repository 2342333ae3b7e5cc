#![doc = include_str!("../README.md")]

mod compression;
mod dictionary;
mod layout;
mod pack;
#[cfg(feature = "zstd")]
mod pool;
#[cfg(test)]
mod tests;
#[cfg(feature = "train")]
mod train;

pub use compression::is_built;
pub use dictionary::{BadDictionary, Dictionary};
pub use pack::{
    NotPacked, Unpacked, Unreadable, dictionary_of, is_pack, pack, pack_alone, pack_with, size, unpack,
    unpack_with,
};
#[cfg(feature = "train")]
pub use train::{NotTrained, train};
