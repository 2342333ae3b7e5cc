//! Tests by what the crate exports. One program with the unit tests: each costs its own linking.

#[cfg(feature = "prometheus")]
mod events;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "prometheus")]
mod limit;
mod observability;
#[cfg(feature = "prometheus")]
mod panics;
#[cfg(feature = "http")]
#[path = "support/scrape.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "the integration tests use the rest")]
mod scrape;
#[cfg(feature = "opentelemetry")]
mod spans;
#[cfg(feature = "prometheus")]
mod support;
mod table;
#[cfg(feature = "opentelemetry")]
mod telemetry;
