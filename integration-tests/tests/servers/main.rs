//! What is tested on real servers.
//! One binary, because each costs its own linking.
#![allow(missing_docs)]

mod acl;
mod admin;
mod block_key;
mod broken_keys;
mod cluster;
mod cluster_sharing;
mod connections;
mod control;
mod crash_scenes;
mod credentials;
mod dedup;
mod delay_clock;
mod delay_cost;
mod delay_faults;
mod delay_herd;
mod delay_kills;
mod delay_oom;
mod delay_precision;
mod delay_races;
mod durability;
mod fault_rows;
mod faults;
mod foreign;
mod groups;
mod idempotent_kills;
mod kills;
mod lifecycle;
mod load;
mod lock_faults;
mod locks;
mod metrics;
mod outage_scenes;
mod pages;
mod poison;
mod rebalance;
mod secrets;
mod sentinel;
mod sharing;
mod stopped;
mod takeover;
mod tls;
mod unique;
mod verify;
