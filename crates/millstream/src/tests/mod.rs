//! Tests by what the facade exports. One program with the unit tests: each costs its own linking.

#[cfg(feature = "redis")]
mod connect;
mod hours;
#[cfg(feature = "cron")]
mod recurring;
#[cfg(feature = "admin")]
mod status;
mod topics;
