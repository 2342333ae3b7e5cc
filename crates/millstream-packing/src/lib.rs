#![doc = include_str!("../README.md")]

mod compression;
mod layout;
mod pack;

pub use compression::is_built;
pub use pack::{NotPacked, Unpacked, Unreadable, is_pack, pack, size, unpack};
