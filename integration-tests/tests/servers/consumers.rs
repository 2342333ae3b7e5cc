//! Consumers and groups on an ordinary day.

pub(crate) mod block_key;
pub(crate) mod control;
pub(crate) mod fairness;
pub(crate) mod groups;
pub(crate) mod lifecycle;
pub(crate) mod pages;
pub(crate) mod rebalance;
pub(crate) mod shared_packs;
pub(crate) mod sharing;
