#![doc = include_str!("../README.md")]

// In reading order: the public API, then the basics, then one file per role.
mod backend;
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod boot_clock;
mod config;
mod durability;

mod bulk;
mod connection;
mod control_thread;
mod cursor;
mod error;
mod reply;
mod request;
mod resp;
mod script;
mod socket;
mod waiters;
mod wrong_type;

mod appender;
mod audit;
mod catalog;
mod dead_letters;
mod dead_tasks;
mod guard;
mod inspect;
mod item;
mod leases;
mod log;
mod members;
mod note;
mod pipe;
mod plan;
mod queues;
mod ranges;
mod reader;
mod recurring;
mod schedule;
mod scheduling;
mod server;
mod shared;
mod shared_reader;
mod task_state;
mod tasks;
mod trimming;
mod usage;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use durability::{Durability, Risk};
