//! Trimming by relays: a lossy retention holds for what they send, also where no consumer runs. As producers do, a relay trims in the
//! background, takes turns with others, and no row waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::log::{Lost, Trimmed, UnleasedTrim};
use millstream_core::{Catalog, Log, TopicPartition};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Minimum time between two trims of a partition, a little longer than a turn, and after one that was another client's turn.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1_010), Duration::from_secs(2));
/// Pause of a relay that may not trim.
const DENIED: Duration = Duration::from_secs(600);
/// Maximum number of partitions that are trimmed one after the other.
const MOST: usize = 64;

type Results = Vec<(TopicPartition, Result<Trimmed>)>;

/// Partitions to which was sent, with the time from which on each may be trimmed.
pub(super) struct Trims {
    log: Arc<dyn Log>,
    catalog: Arc<dyn Catalog>,
    observer: Arc<dyn Observer>,
    due: HashMap<TopicPartition, Instant>,
    running: Option<JoinHandle<Results>>,
}

impl Trims {
    pub(super) fn new(log: Arc<dyn Log>, catalog: Arc<dyn Catalog>, observer: Arc<dyn Observer>) -> Self {
        Self { log, catalog, observer, due: HashMap::new(), running: None }
    }

    /// Notes that something was sent to a partition.
    pub(super) fn stored(&mut self, topic_partition: &TopicPartition) {
        self.due.entry(topic_partition.clone()).or_insert_with(Instant::now);
    }

    /// Takes in the results of the last trims, and begins those that are due.
    pub(super) async fn begin(&mut self) {
        let now = Instant::now();
        if let Some(running) = self.running.take_if(|running| running.is_finished()) {
            for (topic_partition, trimmed) in running.await.unwrap_or_default() {
                let again = match trimmed {
                    Ok(trimmed) if trimmed.skipped => Some(PAUSE.1),
                    Ok(trimmed) => trimmed.more.then_some(PAUSE.0),
                    Err(error) => {
                        tracing::debug!(%topic_partition, %error, "the retention was not applied");
                        let may_not = matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported);
                        Some(if may_not { DENIED } else { PAUSE.0 })
                    }
                };
                if let Some(pause) = again {
                    // What was sent meanwhile waits as long.
                    self.due.insert(topic_partition, now + pause);
                }
            }
        }
        if self.running.is_some() {
            return;
        }
        // Those that have waited longest first, or some would never come.
        let mut due: Vec<_> = self.due.iter().filter(|(_, due)| **due <= now).collect();
        due.sort_unstable_by_key(|(_, due)| **due);
        let due: Vec<_> = due.into_iter().take(MOST).map(|(partition, _)| partition.clone()).collect();
        self.due.retain(|topic_partition, _| !due.contains(topic_partition));
        if !due.is_empty() {
            let (log, catalog, observer) = (self.log.clone(), self.catalog.clone(), self.observer.clone());
            self.running = Some(tokio::spawn(async move { trim(&*log, &*catalog, &*observer, due).await }));
        }
    }
}

async fn trim(
    log: &dyn Log,
    catalog: &dyn Catalog,
    observer: &dyn Observer,
    due: Vec<TopicPartition>,
) -> Results {
    let mut results = Results::new();
    for topic_partition in due {
        let trimmed = async {
            // As it is now: it may be another topic of that name.
            let retention = catalog.topic(&topic_partition.topic).await?.retention;
            if !retention.is_lossy() {
                return Ok(Trimmed::default());
            }
            log.trim_unleased(&topic_partition, UnleasedTrim::OncePerSecond(retention)).await
        };
        let trimmed = trimmed.await;
        if let Ok(trimmed) = &trimmed {
            if trimmed.dropped > 0 {
                let (topic_partition, messages) = (&topic_partition, trimmed.dropped);
                observer.observe(&Event::Trimmed { topic_partition, messages });
            }
            for Lost { group, unread, pending } in &trimmed.lost {
                let topic_partition = &topic_partition;
                observer.observe(&Event::Lost { topic_partition, group, unread: *unread, pending: *pending });
            }
        }
        results.push((topic_partition, trimmed));
    }
    // So that each partition is trimmed once in this time.
    tokio::time::sleep(PAUSE.0).await;
    results
}
