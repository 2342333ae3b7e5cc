#![doc = include_str!("../README.md")]

// In reading order: the public API, then connections and scripts, then what roles share, then the roles.
mod acl;
mod address;
mod backend;
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod boot_clock;
mod config;
mod credentials;
mod error;
mod risks;
#[cfg(feature = "admin")]
mod server;
#[cfg(feature = "admin")]
mod usage;

mod conn;
mod scripts;
mod snapshots;
mod stored;

mod entries;
mod operations;
mod queue;
mod roles;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use acl::{Access, acl};
pub use backend::RedisBackend;
#[cfg(feature = "tls")]
pub use config::TlsConfig;
pub use config::{OnRisk, RedisConfig};
pub use credentials::{Credentials, CredentialsProvider, PasswordFile};
pub use risks::Risk;
