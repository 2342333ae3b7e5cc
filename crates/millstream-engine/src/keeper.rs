//! The keeper: renews rights that end, as often as the protocol demands.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Observer;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::leases::renewal_timeout;
use tokio::time::{Instant, timeout};

use crate::clock::LeaseClock;
use crate::monitor::LoopMonitor;
use crate::panics::catch_panic;

/// Rights that end unless they are renewed: leases, claims, locks, markers of operations.
#[async_trait]
pub trait Rights: Send + Sync {
    /// Renews all that is held, and records what was renewed, by a request of the time `asked`, and what was lost.
    ///
    /// It may be dropped under way: the keeper waits for [`Keeper::limit`]. Several requests are therefore made at once.
    ///
    /// # Errors
    /// What the monitor reports; some rights may have been renewed.
    async fn renew(&self, asked: Instant) -> Result<Kept>;

    /// Returns the name of the loop whose success shows that the server answers. The keeper looks at it while nothing is held.
    fn witness(&self) -> &'static str {
        "heartbeat"
    }

    /// Waits until something is held, after a renewal that found nothing. By default it is looked for once in a period.
    async fn held(&self) {}

    /// Waits until somebody needs a renewal before its time.
    async fn wanted(&self) {
        pending::<()>().await;
    }

    /// Gives up what was not renewed in time. Returns when the next of them is to be given up.
    fn expire(&self) -> Option<Instant> {
        None
    }

    /// Waits until something may be given up before `known`, the time that [`expire`](Self::expire) returned.
    async fn sooner(&self, known: Option<Instant>) {
        let _ = known;
        pending::<()>().await;
    }
}

/// What a renewal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The server has answered.
    Renewed,
    /// Nothing is held, so nothing was asked.
    Nothing,
    /// What was held is lost, and nothing will be held any more.
    Over,
}

/// The rhythm in which rights of one ttl are renewed: three times per ttl, and after a renewal that failed or was not answered
/// again within a sixth of the ttl, as `docs/protocol.md#continuity` demands; ttls below 2.6 s are too short for that.
#[derive(Clone, Debug)]
pub struct Keeper {
    ttl: Duration,
    clock: Arc<LeaseClock>,
}

impl Keeper {
    /// Creates the keeper of rights of this ttl, whose deadlines are times of `clock`.
    #[must_use]
    pub const fn new(ttl: Duration, clock: Arc<LeaseClock>) -> Self {
        Self { ttl, clock }
    }

    /// Returns the clock of all deadlines.
    #[must_use]
    pub const fn clock(&self) -> &Arc<LeaseClock> {
        &self.clock
    }

    /// Returns the ttl of the rights.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the time between two renewals: a third of the ttl.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.ttl / 3
    }

    /// Returns how long a renewal may take, as [`renewal_timeout`] says: a tenth of the ttl, at least 350 ms, at most a quarter.
    #[must_use]
    pub fn limit(&self) -> Duration {
        renewal_timeout(self.ttl)
    }

    /// Returns the pause after a renewal that failed: `pause`, which is that of other loops, or less. Together with the limit, a
    /// pause after no answer is 2/15 of the ttl; other errors are answers, which come at once.
    #[must_use]
    pub fn pause(&self, error: &Error, pause: Duration) -> Duration {
        pause.min(self.ttl / if error.is_transient() { 30 } else { 15 })
    }

    /// Returns the longest time from one renewal that fails to the next one: when a server is back after an outage, each client
    /// that lives has renewed what it holds within this time.
    #[must_use]
    pub fn retries_within(&self) -> Duration {
        self.limit() + self.ttl / 15
    }

    /// Renews until dropped, or until all [is over](Kept::Over). The first renewal is due a third of the ttl after `from`, the
    /// time of the request that granted the oldest right.
    ///
    /// Deadlines are watched beside the renewals: a request that hangs must not delay what has to be given up.
    pub async fn run(
        &self,
        from: Instant,
        rights: &dyn Rights,
        monitor: &LoopMonitor,
        observer: &dyn Observer,
    ) {
        tokio::select! {
            biased;
            () = self.watch(rights) => {}
            () = self.renew(from, rights, monitor, observer) => {}
        }
    }

    async fn renew(
        &self,
        from: Instant,
        rights: &dyn Rights,
        monitor: &LoopMonitor,
        observer: &dyn Observer,
    ) {
        let mut next = from + self.period();
        let mut has_failed = false;
        loop {
            monitor.begin_round(next.saturating_duration_since(self.clock.now()));
            // After a suspension of the machine the time is over, by this clock.
            let due = self.clock.sleep_until(next);
            if has_failed {
                due.await;
            } else {
                tokio::select! {
                    biased;
                    () = due => {}
                    () = rights.wanted() => {}
                }
            }
            // Taken before the request: the ttl cannot have started earlier. After a stall one renewal is enough.
            let asked = self.clock.now();
            let limit = self.limit();
            let kept = catch_panic(async {
                let late = |_| {
                    Error::new(ErrorKind::Unconfirmed, format!("no answer to a renewal within {limit:?}"))
                };
                timeout(limit, rights.renew(asked)).await.map_err(late)?
            });
            let kept = kept.await;
            has_failed = kept.is_err();
            next = match kept {
                Ok(Kept::Renewed) => {
                    monitor.succeeded(observer);
                    self.clock.aligned(asked + self.period(), self.period())
                }
                Ok(Kept::Nothing) => {
                    if !monitor.had_nothing_to_do(rights.witness(), observer) {
                        rights.held().await;
                    }
                    self.clock.now() + self.period()
                }
                Ok(Kept::Over) => {
                    // The server has answered.
                    monitor.succeeded(observer);
                    return;
                }
                Err(error) => {
                    let pause = monitor.failed(&error, observer);
                    self.clock.now() + self.pause(&error, pause)
                }
            };
        }
    }

    async fn watch(&self, rights: &dyn Rights) {
        loop {
            let next = rights.expire();
            let due = async {
                match next {
                    Some(next) => self.clock.sleep_until(next).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = rights.sooner(next) => {}
                () = due => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use millstream_core::event::Ignore;
    use millstream_core::leases::reliable;
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::monitor::Scope;

    const TTL: Duration = Duration::from_secs(30);

    /// What a server does with the n-th renewal.
    type Server = fn(usize) -> Answer;

    #[derive(Clone, Copy)]
    enum Answer {
        /// After this time.
        After(Duration),
        Error(ErrorKind),
        Panic,
        Never,
    }

    struct Recorded {
        server: Server,
        asked: Mutex<Vec<Instant>>,
        deadline: Mutex<Option<Instant>>,
        given_up: Mutex<Vec<Instant>>,
    }

    #[async_trait]
    impl Rights for Recorded {
        async fn renew(&self, asked: Instant) -> Result<Kept> {
            let n = {
                let mut all = self.asked.lock().expect("no panic");
                all.push(asked);
                all.len() - 1
            };
            match (self.server)(n) {
                Answer::After(time) => sleep(time).await,
                Answer::Error(kind) => return Err(Error::new(kind, "no")),
                Answer::Panic => panic!("a backend of somebody's"),
                Answer::Never => pending().await,
            }
            *self.deadline.lock().expect("no panic") = Some(asked + reliable(TTL));
            Ok(Kept::Renewed)
        }

        fn expire(&self) -> Option<Instant> {
            let mut deadline = self.deadline.lock().expect("no panic");
            let over = deadline.filter(|deadline| *deadline <= Instant::now());
            if over.is_some() {
                *deadline = None;
                self.given_up.lock().expect("no panic").push(Instant::now());
            }
            *deadline
        }
    }

    /// Returns when renewals were asked for during five ttls, and when the right was given up, both since the grant.
    async fn keep(server: Server) -> (Vec<Duration>, Vec<Duration>) {
        let start = Instant::now();
        let rights = Arc::new(Recorded {
            server,
            asked: Mutex::default(),
            deadline: Mutex::new(Some(start + reliable(TTL))),
            given_up: Mutex::default(),
        });
        let kept = rights.clone();
        let running = tokio::spawn(async move {
            let monitor = LoopMonitor::unlisted("renew", Scope::Queue);
            Keeper::new(TTL, LeaseClock::new(None)).run(start, &*kept, &monitor, &Ignore).await;
        });
        sleep(TTL * 5).await;
        assert!(!running.is_finished());
        running.abort();
        let since = |times: &Mutex<Vec<Instant>>| {
            let times = times.lock().expect("no panic");
            times.iter().map(|at| at.duration_since(start)).collect::<Vec<_>>()
        };
        (since(&rights.asked), since(&rights.given_up))
    }

    fn largest_gap(asked: &[Duration]) -> Duration {
        let gaps = asked.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().expect("two renewals")
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_is_asked_three_times_per_ttl() {
        let (asked, given_up) = keep(|_| Answer::After(Duration::from_millis(20))).await;
        assert_eq!(asked[..3], [TTL / 3, TTL / 3 * 2, TTL]);
        assert_eq!((largest_gap(&asked), given_up), (TTL / 3, Vec::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn after_no_answer_the_next_renewal_comes_within_a_sixth_of_the_ttl() {
        for server in [
            (|_| Answer::Never) as Server,
            |_| Answer::After(TTL / 9),
            |_| Answer::Error(ErrorKind::Unavailable),
            |_| Answer::Error(ErrorKind::WrongType),
            |_| Answer::Panic,
        ] {
            let (asked, given_up) = keep(server).await;
            assert!(largest_gap(&asked) <= TTL / 6, "{asked:?}");
            // Not before, and not after another request that hangs.
            assert_eq!(given_up, [reliable(TTL)]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_half_a_ttl_loses_nothing() {
        // Requests hang for 13 s of 30: the first one that is answered comes before the deadline.
        let (asked, given_up) =
            keep(|n| if (1..5).contains(&n) { Answer::Never } else { Answer::After(Duration::ZERO) }).await;
        assert!(asked[5] - asked[0] < reliable(TTL), "{asked:?}");
        assert_eq!(given_up, Vec::new());
    }

    struct Wanted(tokio::sync::Notify, Mutex<Vec<Kept>>);

    #[async_trait]
    impl Rights for Wanted {
        async fn renew(&self, _: Instant) -> Result<Kept> {
            Ok(self.1.lock().expect("no panic").pop().unwrap_or(Kept::Over))
        }

        async fn held(&self) {
            self.0.notified().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_sends_nothing_while_nothing_is_held_and_ends_when_all_is_over() {
        let rights = Arc::new(Wanted(tokio::sync::Notify::new(), Mutex::new(vec![Kept::Nothing])));
        let (kept, start) = (rights.clone(), Instant::now());
        let running = tokio::spawn(async move {
            let monitor = LoopMonitor::unlisted("renew", Scope::Queue);
            Keeper::new(TTL, LeaseClock::new(None)).run(start, &*kept, &monitor, &Ignore).await;
        });
        sleep(TTL * 100).await;
        assert!(!running.is_finished());
        rights.0.notify_one();
        advance(TTL / 3).await;
        running.await.expect("it ends");
    }
}
