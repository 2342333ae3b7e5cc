//! What is tested of the runtime, over the backend in memory.
//! One binary, because each costs its own linking.
#![allow(missing_docs)]

mod ahead;
mod batch;
mod bounded;
mod candidates;
mod checks;
mod consumer;
mod consumer_faults;
mod control;
mod control_health;
mod control_seek;
mod dead_letters;
mod dedup;
mod delayed;
mod deleted;
mod dispatch;
mod durability;
mod failover;
mod group_pause;
mod groups;
mod groups_faults;
mod groups_scale;
mod groups_threads;
mod idempotent;
mod lost_group;
mod order;
mod outages;
mod panics;
mod poison;
mod producer;
mod pull;
mod retries;
mod shared;
mod shared_crashes;
mod shared_pull;
mod support;
mod suspension;
mod unique;
