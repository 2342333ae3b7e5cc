//! The promoter of a partition's owner: moves retries and delayed messages when they are due, and fires recurring messages.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{ErrorKind, Problems, Result};
use millstream_core::event::{Event, Ignore, Observer};
use millstream_core::schedule::{MAX_PROMOTE, Promoted};
use millstream_core::upkeep::{Trigger, Upkeep};
use millstream_core::{Backend, Lease};
use tokio::time::Instant;

use crate::expected::Expected;
use crate::fire::Firings;
use crate::sleep::{LONGEST_SLEEP, Sleep};
use millstream_engine::catch_panic;
use millstream_engine::{LoopMonitor, Scope};

/// Longest pause between two calls while more is due.
pub(crate) const LONGEST_BREATH: Duration = Duration::from_millis(50);

/// Interval of calls for due messages while a recurring message is due and cannot be fired: there is no notification
/// for messages that become due after it.
const MEANWHILE: Duration = Duration::from_millis(250);

/// Configuration of a [`Promoter`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromoterConfig {
    /// Maximum number of messages moved per call, 1 to [`MAX_PROMOTE`]. The server is blocked meanwhile: 200 take about
    /// 1 ms. Default: [`MAX_PROMOTE`].
    pub limit: usize,
    /// Longest sleep, which is the maximum delay that a lost wake-up can cause; 10 ms to a day. Default: 30 s.
    pub longest_sleep: Duration,
}

impl Default for PromoterConfig {
    fn default() -> Self {
        Self { limit: MAX_PROMOTE, longest_sleep: Duration::from_secs(30) }
    }
}

impl PromoterConfig {
    /// Sets the limit.
    #[must_use]
    pub fn with_limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let mut problems = Problems::new("promoter");
        problems.require((1..=MAX_PROMOTE).contains(&self.limit), || {
            format!("limit is {}, 1 to {MAX_PROMOTE} are allowed", self.limit)
        });
        problems.require(self.longest_sleep >= Duration::from_millis(10), || {
            format!("longest_sleep is {:?}, at least 10ms are needed", self.longest_sleep)
        });
        problems.require(self.longest_sleep <= LONGEST_SLEEP, || {
            format!("longest_sleep is {:?}, at most a day is allowed", self.longest_sleep)
        });
        problems.finish()
    }

    /// Returns the time until the next call, after a call that moved `moved` messages and returned `next`. `again` is
    /// the time after which firing is to be tried again: zero if something was fired, `None` if nothing was due to fire.
    pub(crate) fn next(moved: usize, next: Option<Duration>, again: Option<Duration>) -> Option<Duration> {
        match again {
            Some(Duration::ZERO) => Some(Duration::ZERO),
            // A stuck recurring message is due all the time, which is no reason to come back immediately; further due
            // messages are.
            Some(again) if moved == 0 => Some(again.min(MEANWHILE)),
            None | Some(_) => next,
        }
    }

    /// Returns the pause after a call that began at `started` and returned `next`. If more is due already, the pause is
    /// as long as the call took: even with a large backlog at most half of the server's time goes into moving.
    pub(crate) fn pause(&self, next: Option<Duration>, started: Instant) -> Duration {
        match next {
            Some(next) if next.is_zero() => started.elapsed().min(LONGEST_BREATH),
            Some(next) => next.min(self.longest_sleep),
            None => self.longest_sleep,
        }
    }

    /// Sets the longest sleep.
    #[must_use]
    pub fn with_longest_sleep(self, longest_sleep: Duration) -> Self {
        Self { longest_sleep, ..self }
    }
}

/// Promoter for any partition whose lease is passed in: moves due retries of the lease's group and due delayed
/// messages, and fires due recurring messages. Two promoters for the same partition do no harm.
pub struct Promoter {
    backend: Backend,
    firings: Firings,
    expected: Expected,
    sleep: Sleep,
    config: PromoterConfig,
}

impl Promoter {
    /// Returns a promoter over a backend.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if the limit is not 1 to [`MAX_PROMOTE`], or the longest sleep is zero or longer than
    /// a day.
    pub fn new(backend: &Backend, config: PromoterConfig) -> Result<Self> {
        config.check()?;
        let (firings, sleep) = (Firings::default(), Sleep::beside(backend));
        Ok(Self { backend: backend.clone(), firings, expected: Expected::default(), sleep, config })
    }

    /// Promotes until the lease is lost. Errors do not end it: it pauses for 50 ms to 2 s and continues.
    pub async fn run(&self, lease: &Lease) {
        let Ok((topic_partition, _)) = lease.partition() else {
            tracing::error!(resource = %lease.resource, "not the lease of a partition: nothing to promote");
            return;
        };
        let monitor = LoopMonitor::unlisted("promote", Scope::Partition(topic_partition.clone()));
        loop {
            let sleep = match catch_panic(self.run_once(lease, &Ignore)).await {
                Ok(next) => {
                    monitor.succeeded(&Ignore);
                    next.unwrap_or(self.config.longest_sleep)
                }
                Err(error) if error.kind() == ErrorKind::Fenced => return,
                Err(error) => monitor.failed(&error, &Ignore),
            };
            self.sleep.until(Instant::now() + sleep).await;
            tokio::task::yield_now().await;
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
        let (topic_partition, group) = lease.partition()?;
        let started = Instant::now();
        let Promoted { moved, orphans, next, recurring } =
            self.backend.schedule().promote(lease, self.config.limit).await?;
        let late = self.expected.answered(topic_partition, moved + orphans, next);
        if moved + orphans > 0 {
            events.observe(&Event::Promoted { topic_partition, group, messages: moved, orphans, late });
        }
        let again = self.firings.round(recurring, &self.backend, topic_partition, events).await;
        Ok(Some(self.config.pause(PromoterConfig::next(moved + orphans, next, again), started)))
    }

    fn sleep(&self, time: Duration) -> Option<millstream_core::upkeep::Sleep> {
        // Nothing is known to be due by then, or after one more look.
        if time >= self.config.longest_sleep / 32 * 31 {
            return None;
        }
        let (sleep, deadline) = (self.sleep, Instant::now() + time.min(LONGEST_SLEEP));
        Some(Box::pin(async move { sleep.until(deadline).await }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::catalog::Start;
    use millstream_core::leases::{Acquired, Resource};
    use millstream_core::log::{Append, Settlement};
    use millstream_core::wire;
    use millstream_core::{Backend, Due, Envelope, History, TopicSpec};
    use millstream_memory::MemoryBackend;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    async fn owned() -> (Backend, TopicSpec, Lease) {
        let backend = Backend::from(MemoryBackend::new());
        let spec = TopicSpec::new("t".parse().expect("name"), 1).expect("spec");
        let group = "g".parse().expect("name");
        backend.catalog().create_topic(&spec).await.expect("topic");
        backend.catalog().create_group(&spec, &group, Start::Earliest).await.expect("group");
        let resource = Resource::partition(spec.iter().next().expect("one"), group);
        let acquired = backend
            .leases()
            .acquire(&resource, "me", "n", Duration::from_secs(3600), &millstream_core::Continuity::assured())
            .await;
        let Ok(Acquired::Granted(lease)) = acquired else { panic!("{acquired:?}") };
        (backend, spec, lease)
    }

    async fn park(backend: &Backend, lease: &Lease, delays: &[u64]) {
        let (topic_partition, _) = lease.partition().expect("a partition");
        let entry = |_| Append::new(topic_partition.clone(), wire::encode(&Envelope::new("x")));
        let batch: Vec<_> = delays.iter().map(entry).collect();
        assert!(backend.log().append(&batch).await.iter().all(Result::is_ok));
        let mut reader = backend.log().reader(lease).await.expect("reader");
        let mut parked = 0;
        while parked < delays.len() {
            let fetched = reader.fetch(100, MS(0)).await.expect("fetch");
            for entry in fetched.entries {
                let after = MS(delays[parked]);
                let origin = entry.receipt.id;
                let (due, error, history) = (Due::In(after), "x".into(), History::default());
                let retry = Settlement::Retry { due, attempt: 2, origin, error, history, wait: None };
                backend.log().settle(lease, &[(entry.receipt, retry)]).await.expect("settle");
                parked += 1;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_sleeps_to_the_next_due_message_and_never_longer_than_told() {
        let (backend, _, lease) = owned().await;
        let config = PromoterConfig::default().with_longest_sleep(MS(500));
        let promoter = Promoter::new(&backend, config).expect("valid");
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
        let promoter = Promoter::new(&backend, PromoterConfig::default().with_limit(10)).expect("valid");
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
    async fn far_behind_it_pauses_as_long_as_a_call_took() {
        let config = PromoterConfig::default().with_longest_sleep(MS(900));
        let started = Instant::now();
        assert_eq!(config.pause(Some(MS(0)), started), MS(0));
        tokio::time::advance(MS(7)).await;
        assert_eq!(config.pause(Some(MS(0)), started), MS(7));
        assert_eq!(
            config.pause(Some(MS(3)), started),
            MS(3),
            "nothing is due: to the head, as precisely as can be"
        );
        tokio::time::advance(MS(700)).await;
        assert_eq!(config.pause(Some(MS(0)), started), LONGEST_BREATH);
        assert_eq!((config.pause(Some(MS(1_000)), started), config.pause(None, started)), (MS(900), MS(900)));
    }

    #[tokio::test(start_paused = true)]
    async fn it_fires_what_recurs_in_its_partition() {
        let (backend, spec, lease) = owned().await;
        let place = millstream_core::Place::from(spec.iter().next().expect("one"));
        let id = "beat".parse().expect("an id");
        let now = backend.recurring().expect("recurring schedules").due(&place).await.expect("read").now;
        let rule = crate::Rule::every(MS(1_000), now).expect("a rule");
        let fields = wire::encode(&Envelope::new("x"));
        crate::recur(&**backend.recurring().expect("recurring schedules"), &place, &id, &rule, fields)
            .await
            .expect("put");
        let promoter = Promoter::new(&backend, PromoterConfig::default()).expect("valid");
        let moved: std::sync::Mutex<(usize, usize)> = std::sync::Mutex::default();
        let count = |event: &Event<'_>| match event {
            Event::Fired { messages, .. } => moved.lock().expect("lock").0 += messages,
            Event::Promoted { messages, .. } => moved.lock().expect("lock").1 += messages,
            _ => {}
        };
        for _ in 0..100 {
            let next = promoter.run_once(&lease, &count).await.expect("runs").expect("a time");
            tokio::time::sleep(next).await;
        }
        let (fired, promoted) = *moved.lock().expect("lock");
        assert!(fired > 20 && fired - promoted <= 1, "{fired} fired, {promoted} moved");
    }

    #[tokio::test(start_paused = true)]
    async fn run_ends_when_the_lease_is_lost() {
        let (backend, _, lease) = owned().await;
        let promoter = Promoter::new(&backend, PromoterConfig::default()).expect("valid");
        backend.leases().release(&lease).await.expect("released");
        promoter.run(&lease).await;
    }

    #[test]
    fn both_problems_of_a_config_are_told() {
        let config = PromoterConfig::default().with_limit(0).with_longest_sleep(Duration::ZERO);
        let backend = Backend::from(MemoryBackend::new());
        let error = Promoter::new(&backend, config).expect_err("invalid");
        assert_eq!(error.problems().len(), 2);
    }
}
