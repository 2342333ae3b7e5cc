//! How every loop meets errors: tell, pause, go on.

use std::time::Duration;

use millstream_core::error::Error;
use millstream_core::event::{Event, Observer};
use millstream_core::policy::Exponential;
use millstream_core::topic::TopicPartition;

/// The state of one loop's troubles.
#[derive(Debug)]
pub(crate) struct Trouble {
    operation: &'static str,
    failures: u32,
}

impl Trouble {
    pub(crate) fn new(operation: &'static str) -> Self {
        Self { operation, failures: 0 }
    }

    /// It worked. Tells so if it had not.
    pub(crate) fn over(&mut self, observer: &dyn Observer, topic_partition: Option<&TopicPartition>) {
        if self.failures > 0 {
            self.failures = 0;
            let operation = self.operation;
            tracing::info!(
                operation,
                partition = topic_partition.map(tracing::field::display),
                "works again"
            );
            observer.observe(&Event::Recovered { operation, topic_partition });
        }
    }

    /// It failed. Tells so, and gives back how long to pause: 50 ms to 2 s for what may pass by itself, 1 s to 10 s
    /// for what somebody has to mend; with jitter, so that many loops do not come back together.
    #[must_use]
    pub(crate) fn met(
        &mut self,
        error: &Error,
        observer: &dyn Observer,
        topic_partition: Option<&TopicPartition>,
    ) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let operation = self.operation;
        let partition = topic_partition.map(tracing::field::display);
        if self.failures == 1 {
            tracing::warn!(operation, partition, %error, "failed, will try again");
        } else {
            tracing::debug!(operation, partition, %error, failures = self.failures, "failed again");
        }
        observer.observe(&Event::Failing { operation, topic_partition, error });
        let (base, longest) = if error.is_transient() { (50, 2_000) } else { (1_000, 10_000) };
        let pauses = Exponential::from(Duration::from_millis(base)).up_to(Duration::from_millis(longest));
        pauses.equal_jitter().delay(self.failures, fastrand::u64(..))
    }
}
