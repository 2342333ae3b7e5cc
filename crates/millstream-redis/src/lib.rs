#![doc = include_str!("../README.md")]

// In reading order: what a user sees, then the ground, then one file per role.
mod backend;
mod config;

mod connection;
mod error;
mod keeper;
mod reply;
mod script;

mod catalog;
mod dead_letters;
mod guard;
mod leases;
mod log;
mod members;
mod note;
mod ranges;
mod reader;
mod schedule;
mod shared;
mod shared_reader;

pub use backend::RedisBackend;
pub use config::RedisConfig;
