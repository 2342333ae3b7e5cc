//! Processes that die or stand still, servers that are away, links that break, data that somebody else wrote.

mod batches;
mod breakers;
pub(crate) mod broken_keys;
mod cancels;
pub(crate) mod crash_scenes;
pub(crate) mod fault_rows;
pub(crate) mod faults;
pub(crate) mod foreign;
pub(crate) mod kills;
pub(crate) mod limits;
pub(crate) mod outage_scenes;
pub(crate) mod pairs;
pub(crate) mod poison;
mod rates;
mod requests;
mod steps;
pub(crate) mod stopped;
pub(crate) mod takeover;
