//! Shared parts of tests and measurements of delayed messages and delay queues: both sides of the delay engine under
//! one name, the server's counters, and one file for each measurement.

pub mod clock;
pub mod kills;
pub mod load;
pub mod monitor;
pub mod precision;
mod recorder;
pub mod stage;
pub mod traffic;
pub mod worker;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::server::Server;

/// The two sides of the delay engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Delayed messages of a topic, moved into its log by the owner of the partition.
    Topic,
    /// A delay queue, whose workers claim due tasks.
    Queue,
}

/// Returns microseconds since 1970 by the clock of this machine, which is also that of the servers that tests start.
#[must_use]
pub fn wall_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the time after this duration, in whole milliseconds since 1970.
#[must_use]
pub fn wall_ms_in(delay: Duration) -> u64 {
    u64::try_from(wall_us() / 1_000).unwrap_or(0) + u64::try_from(delay.as_millis()).unwrap_or(0)
}

/// Returns a number from `INFO`.
///
/// # Panics
/// If `INFO` does not contain it.
#[must_use]
pub fn info(server: &Server, section: &str, field: &str) -> f64 {
    let text = server.cli(&["INFO", section]);
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {field}: {text}"))
}

/// Returns the seconds of CPU that the server has used.
#[must_use]
pub fn server_cpu(server: &Server) -> f64 {
    info(server, "cpu", "used_cpu_user") + info(server, "cpu", "used_cpu_sys")
}

/// Formats the minimum, the quantiles and the maximum of some values, in milliseconds.
#[must_use]
pub fn spread(micros: &[i64]) -> String {
    let mut sorted = micros.to_vec();
    sorted.sort_unstable();
    if sorted.is_empty() {
        return "none".to_owned();
    }
    let [min, p50, p99, max] = [0.0, 0.5, 0.99, 1.0].map(|share| quantile(&sorted, share) as f64 / 1_000.0);
    format!("min {min:.2} p50 {p50:.2} p99 {p99:.2} max {max:.2} ms of {}", sorted.len())
}

/// Returns the quantile of sorted values.
///
/// # Panics
/// If there are no values.
#[must_use]
pub fn quantile(sorted: &[i64], share: f64) -> i64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}
