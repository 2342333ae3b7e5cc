//! Buffer of settlements on their way to the settler, so that they are sent in batches.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Settlement;
use millstream_core::event::Handled;
use millstream_core::log::Receipt;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::report::Counts;

/// Settlements that are sent together.
pub(in crate::consumer) type Settlements = Vec<(Receipt, Settlement)>;

/// Number of settlements that one request handles cheaply.
const ENOUGH: usize = 256;
/// Maximum time that a settlement waits for others while handlers keep this thread busy.
const LONGEST: Duration = Duration::from_millis(1);

/// Settlements that were decided and not yet sent to the settler.
///
/// They wait only while this thread goes from one handler to the next: the buffer is flushed when it [is due](is_due),
/// and before anything is awaited.
pub(in crate::consumer) struct SettlementBuffer {
    context: Arc<Subscription>,
    settlements: UnboundedSender<Settlements>,
    gathered: Settlements,
    /// Time of the first settlement in the buffer.
    since: Option<Instant>,
    /// Number of `Ack` outcomes that are not counted yet.
    acked: usize,
}

/// Whether `gathered` settlements are sent now, after the first has waited for `waited`.
fn is_due(gathered: usize, waited: Duration) -> bool {
    gathered >= ENOUGH || (gathered > 0 && waited >= LONGEST)
}

impl SettlementBuffer {
    pub(in crate::consumer) fn new(
        context: Arc<Subscription>,
        settlements: UnboundedSender<Settlements>,
    ) -> Self {
        Self { context, settlements, gathered: Settlements::new(), since: None, acked: 0 }
    }

    pub(in crate::consumer) fn add(&mut self, receipt: Receipt, settlement: Settlement, now: Instant) {
        self.since.get_or_insert(now);
        self.gathered.push((receipt, settlement));
    }

    /// Counts one handled message.
    pub(in crate::consumer) fn count(&mut self, handled: Handled) {
        match handled {
            // All partitions share this counter, so it is updated once per batch.
            Handled::Acked => self.acked += 1,
            other => self.context.counts.handled(other),
        }
    }

    /// Whether it is time to [`flush`](Self::flush).
    pub(in crate::consumer) fn is_due(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| is_due(self.gathered.len(), now.saturating_duration_since(since)))
    }

    /// Sends everything to the settler.
    pub(in crate::consumer) fn flush(&mut self) {
        let acked = std::mem::take(&mut self.acked);
        if acked > 0 {
            Counts::add(&self.context.counts.acked, acked);
        }
        if self.since.take().is_some() {
            let size = if self.gathered.len() < ENOUGH { 0 } else { ENOUGH };
            let gathered = std::mem::replace(&mut self.gathered, Vec::with_capacity(size));
            // A closed channel means that the lease is lost: nobody would accept the settlements.
            let _ = self.settlements.send(gathered);
        }
    }
}

/// Flushes, so that every decided settlement counts, however the partition ends.
impl Drop for SettlementBuffer {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settlements_wait_for_enough_others_or_a_millisecond() {
        let cases = [
            (0, Duration::from_secs(1), false),
            (1, Duration::ZERO, false),
            (1, LONGEST, true),
            (ENOUGH - 1, LONGEST / 2, false),
            (ENOUGH, Duration::ZERO, true),
        ];
        for (gathered, waited, due) in cases {
            assert_eq!(is_due(gathered, waited), due, "{gathered} {waited:?}");
        }
    }
}
