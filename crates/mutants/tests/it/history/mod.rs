//! Every check can fail: a good history has no breach, and each of these bad ones breaks its rule.

mod story;

mod delivery;
mod ending;
mod innocent;
mod order;
mod ownership;
