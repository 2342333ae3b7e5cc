//! The rules of the source tree and of its documents, and the pages of the book that are made from the code.
//!
//! It depends on none of the crates that it reads, so that its tests are built in seconds. The rules are in `tests/house`.

pub mod book;
pub mod faults;
pub mod text;
pub mod tree;
pub mod yaml;
