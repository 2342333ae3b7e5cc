//! Settings of a relay.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::dedup::check_window;
use millstream_core::error::{Problems, Result};
use millstream_core::partitioner::ByKey;
use millstream_core::{Limits, Partitioner};

/// Shortest and longest ttl of a shard's lease.
const TTLS: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(600));

/// Most rows of one batch.
const MAX_BATCH: usize = 5_000;

/// Configuration of an [`OutboxRelay`](super::OutboxRelay).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutboxRelayConfig {
    /// Number of rows that are read, appended and deleted together, 1 to 5,000. Default: 500.
    pub batch: usize,
    /// Time for which a relay has its shards without a renewal, by the database's clock: 300 ms to 10 minutes. After it another
    /// relay takes over those of one that was killed. Default: 10 s.
    pub ttl: Duration,
    /// Time for which a message is recognised if it is appended again: at least twice the ttl, and at most 7 days. It must cover the
    /// time from when a relay dies, having stored rows and not deleted them, until another one can delete them. Raise it if
    /// the database may be away for longer than that. Each id takes about 100 bytes of the server's memory for one to three
    /// windows. Default: 10 minutes.
    pub window: Duration,
    /// Whether PostgreSQL notifies it of commits, for which it keeps one connection (`LISTEN`). Otherwise, and where it finds that a
    /// pooler gives each transaction another session, it polls: after 5 ms while there is work, and up to 2 s when there was none.
    /// Switch it off behind such a pooler, where it may not be found while others use the pooler. Default: true.
    pub listen: bool,
    /// Limits on messages. A row that exceeds them is given up. Default: those of [`Limits`].
    pub limits: Limits,
    /// Partitioner: the one of the producers of the same topics. Default: [`ByKey`].
    pub partitioner: Arc<dyn Partitioner>,
}

impl Default for OutboxRelayConfig {
    fn default() -> Self {
        Self {
            batch: 500,
            ttl: Duration::from_secs(10),
            window: Duration::from_secs(600),
            listen: true,
            limits: Limits::default(),
            partitioner: Arc::new(ByKey::new()),
        }
    }
}

impl OutboxRelayConfig {
    pub(super) fn check(&self) -> Result<()> {
        let mut problems = Problems::new("outbox relay");
        problems.require((1..=MAX_BATCH).contains(&self.batch), || {
            format!("batch is {}, 1 to {MAX_BATCH} are allowed", self.batch)
        });
        let (shortest, longest) = TTLS;
        problems.require((shortest..=longest).contains(&self.ttl), || {
            format!("ttl is {:?}, {shortest:?} to {longest:?} are allowed", self.ttl)
        });
        problems.take(check_window(self.window));
        problems.require(self.window >= self.ttl.saturating_mul(2), || {
            format!("window is {:?}, at least twice the ttl of {:?} is needed", self.window, self.ttl)
        });
        problems.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        assert!(OutboxRelayConfig::default().check().is_ok());
        let bad = OutboxRelayConfig {
            batch: 0,
            ttl: Duration::from_secs(3_600),
            window: Duration::from_secs(60),
            ..OutboxRelayConfig::default()
        };
        assert_eq!(bad.check().expect_err("bad").problems().len(), 3);
    }
}
