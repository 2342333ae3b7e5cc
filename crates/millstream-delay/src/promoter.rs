//! The promoter: moves parked messages when they are due.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{ErrorKind, Problems, Result};
use millstream_core::event::{Event, Ignore, Observer};
use millstream_core::policy::Exponential;
use millstream_core::schedule::{MAX_PROMOTE, Promoted};
use millstream_core::upkeep::{Trigger, Upkeep};
use millstream_core::{Lease, Schedule};

/// How a [`Promoter`] works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromoterConfig {
    /// The most messages moved per call, 1 to [`MAX_PROMOTE`]. A server does nothing else meanwhile: 200 take it
    /// about 1 ms. Default: [`MAX_PROMOTE`].
    pub limit: usize,
    /// The longest sleep, and so the most that a lost wake-up can cost. Default: 15 s.
    pub longest_sleep: Duration,
}

impl Default for PromoterConfig {
    fn default() -> Self {
        Self { limit: MAX_PROMOTE, longest_sleep: Duration::from_secs(15) }
    }
}

impl PromoterConfig {
    /// Another limit.
    #[must_use]
    pub fn with_limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Another longest sleep.
    #[must_use]
    pub fn with_longest_sleep(self, longest_sleep: Duration) -> Self {
        Self { longest_sleep, ..self }
    }
}

/// Moves what is due, of any partition whose lease it is shown.
pub struct Promoter {
    schedule: Arc<dyn Schedule>,
    config: PromoterConfig,
}

impl Promoter {
    /// A promoter over a schedule.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if the limit is not 1 to [`MAX_PROMOTE`] or the longest sleep is zero.
    pub fn new(schedule: Arc<dyn Schedule>, config: PromoterConfig) -> Result<Self> {
        let mut problems = Problems::new("promoter");
        problems.require((1..=MAX_PROMOTE).contains(&config.limit), || {
            format!("limit is {}, 1 to {MAX_PROMOTE} are allowed", config.limit)
        });
        problems.require(!config.longest_sleep.is_zero(), || "longest_sleep is zero".into());
        problems.finish()?;
        Ok(Self { schedule, config })
    }

    /// Promotes until the lease is lost. Errors do not end it: it pauses, 50 ms to 2 s, and goes on.
    pub async fn run(&self, lease: &Lease) {
        let pauses =
            Exponential::from(Duration::from_millis(50)).up_to(Duration::from_secs(2)).equal_jitter();
        let mut failures = 0;
        loop {
            let sleep = match self.run_once(lease, &Ignore).await {
                Ok(next) => {
                    failures = 0;
                    next.unwrap_or(self.config.longest_sleep)
                }
                Err(error) if error.kind() == ErrorKind::Fenced => return,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, resource = %lease.resource, "promoter failed, will try again");
                    pauses.delay(failures, fastrand::u64(..))
                }
            };
            tokio::time::sleep(sleep).await;
        }
    }
}

impl std::fmt::Debug for Promoter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Promoter").field("config", &self.config).finish_non_exhaustive()
    }
}

#[async_trait]
impl Upkeep for Promoter {
    fn name(&self) -> &'static str {
        "promote"
    }

    fn trigger(&self) -> Trigger {
        Trigger::Parked
    }

    async fn run_once(&self, lease: &Lease, events: &dyn Observer) -> Result<Option<Duration>> {
        let promoted = self.schedule.promote(lease, self.config.limit).await?;
        if promoted.moved + promoted.orphans > 0 {
            let (topic_partition, group) = lease.partition()?;
            let Promoted { moved: messages, orphans, .. } = promoted;
            events.observe(&Event::Promoted { topic_partition, group, messages, orphans });
        }
        let longest = self.config.longest_sleep;
        Ok(Some(promoted.next.map_or(longest, |next| next.min(longest))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::catalog::Start;
    use millstream_core::leases::{Acquired, Resource};
    use millstream_core::log::{Append, Settlement};
    use millstream_core::wire;
    use millstream_core::{Backend, Envelope, TopicSpec};
    use millstream_memory::MemoryBackend;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    async fn owned() -> (Backend, TopicSpec, Lease) {
        let backend = Backend::from(MemoryBackend::new());
        let spec = TopicSpec::new("t".parse().expect("name"), 1).expect("spec");
        let group = "g".parse().expect("name");
        backend.catalog.create_topic(&spec).await.expect("topic");
        backend.catalog.create_group(&spec, &group, Start::Earliest).await.expect("group");
        let resource = Resource::partition(spec.iter().next().expect("one"), group);
        let acquired = backend.leases.acquire(&resource, "me", "n", Duration::from_secs(3600)).await;
        let Ok(Acquired::Granted(lease)) = acquired else { panic!("{acquired:?}") };
        (backend, spec, lease)
    }

    async fn park(backend: &Backend, lease: &Lease, delays: &[u64]) {
        let (topic_partition, _) = lease.partition().expect("a partition");
        let entry = |_| Append {
            topic_partition: topic_partition.clone(),
            fields: wire::encode(&Envelope::new("x")),
        };
        let batch: Vec<_> = delays.iter().map(entry).collect();
        assert!(backend.log.append(&batch).await.iter().all(Result::is_ok));
        let mut reader = backend.log.reader(lease).await.expect("reader");
        let mut parked = 0;
        while parked < delays.len() {
            let fetched = reader.fetch(100, MS(0)).await.expect("fetch");
            for entry in fetched.entries {
                let after = MS(delays[parked]);
                let origin = entry.receipt.id;
                let retry = Settlement::Retry { after, attempt: 2, origin, error: "x".into() };
                backend.log.settle(lease, &[(entry.receipt, retry)]).await.expect("settle");
                parked += 1;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_sleeps_to_the_next_due_message_and_never_longer_than_told() {
        let (backend, _, lease) = owned().await;
        let config = PromoterConfig::default().with_longest_sleep(MS(500));
        let promoter = Promoter::new(backend.schedule.clone(), config).expect("valid");
        assert_eq!(promoter.run_once(&lease, &Ignore).await.expect("runs"), Some(MS(500)));
        park(&backend, &lease, &[100, 90_000]).await;
        let next = promoter.run_once(&lease, &Ignore).await.expect("runs").expect("a time");
        assert!(next > MS(90) && next <= MS(101), "{next:?}");
        tokio::time::sleep(next).await;
        assert_eq!(promoter.run_once(&lease, &Ignore).await.expect("runs"), Some(MS(500)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_backlog_is_moved_in_bounded_steps_without_a_pause() {
        let (backend, _, lease) = owned().await;
        park(&backend, &lease, &[1; 25]).await;
        tokio::time::sleep(MS(10)).await;
        let promoter =
            Promoter::new(backend.schedule.clone(), PromoterConfig::default().with_limit(10)).expect("valid");
        let steps: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::default();
        let count = |event: &Event<'_>| {
            if let Event::Promoted { messages, .. } = event {
                steps.lock().expect("lock").push(*messages);
            }
        };
        let mut next = Some(Duration::ZERO);
        while next == Some(Duration::ZERO) {
            next = promoter.run_once(&lease, &count).await.expect("runs");
        }
        assert_eq!(*steps.lock().expect("lock"), [10, 10, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn run_ends_when_the_lease_is_lost() {
        let (backend, _, lease) = owned().await;
        let promoter = Promoter::new(backend.schedule.clone(), PromoterConfig::default()).expect("valid");
        backend.leases.release(&lease).await.expect("released");
        promoter.run(&lease).await;
    }

    #[test]
    fn both_problems_of_a_config_are_told() {
        let config = PromoterConfig::default().with_limit(0).with_longest_sleep(Duration::ZERO);
        let backend = Backend::from(MemoryBackend::new());
        let error = Promoter::new(backend.schedule, config).expect_err("invalid");
        assert_eq!(error.problems().len(), 2);
    }
}
