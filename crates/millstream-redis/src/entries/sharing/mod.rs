//! Readers beside others: of many streams of one server, and of one partition of a cluster.

mod new_entries;
mod pages;
pub(crate) mod partition_reader;
mod plan;
pub(crate) mod shared_reader;
