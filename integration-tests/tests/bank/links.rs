//! Links between Redis and the bank, which lose replies and are cut.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use integration_tests::databases::bank::Transfer;
use integration_tests::proxy::Proxy;
use millstream::Millstream;

use super::Bank;

/// A part of each request that settles: the key of notes, which no other request of a worker has.
const SETTLEMENT: &str = "streaming:mq:held:";

/// A link for all workers, and one for the sender.
pub(crate) struct Links {
    pub(crate) of_workers: Proxy,
    of_sender: Proxy,
    random: Mutex<fastrand::Rng>,
    settlements: AtomicUsize,
    others: AtomicUsize,
    resets: AtomicUsize,
}

/// What was lost in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lost {
    /// Transfers of which the reply to an append was lost.
    pub(crate) appends: Vec<i64>,
    /// Replies to settlements.
    pub(crate) settlements: usize,
    /// Replies to other requests of workers.
    #[allow(dead_code, reason = "for people, with all the others")]
    pub(crate) others: usize,
    /// Times that all connections of workers were cut.
    #[allow(dead_code, reason = "for people, with all the others")]
    pub(crate) resets: usize,
}

impl Links {
    pub(crate) fn to(redis: u16, random: fastrand::Rng) -> Self {
        Self {
            of_workers: Proxy::to(redis),
            of_sender: Proxy::to(redis),
            random: Mutex::new(random),
            settlements: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            resets: AtomicUsize::new(0),
        }
    }

    /// Sends transfers. The reply to every eighth or so is lost, and it is sent again. Returns the numbers of those.
    pub(crate) async fn send(&self, bank: &Bank, transfers: &[Transfer]) -> Result<Vec<i64>> {
        let mq = Millstream::at(self.of_sender.url()).namespace(&bank.setup.namespace).await?;
        let (mut chosen, mut lost, mut seen) = (None, Vec::new(), 0);
        let mut note = |chosen: Option<i64>| {
            let swallowed = self.of_sender.swallowed();
            if let Some(number) = chosen.filter(|_| swallowed > seen) {
                lost.push(number);
            }
            seen = swallowed;
        };
        let sent = bank.send_over(&mq, transfers, |transfer| {
            note(chosen.take());
            // At least one, also of few.
            if transfer.number == 0 || self.chance(8) {
                self.of_sender.swallow("XADD", 1);
                chosen = Some(transfer.number);
            }
        });
        sent.await?;
        note(chosen);
        Ok(lost)
    }

    /// Loses replies of workers, and cuts their connections, until the work is done.
    pub(crate) async fn in_trouble<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            let pause = Duration::from_millis(self.below(150) + 10);
            let (part, lost) = match self.below(8) {
                // Reads, heartbeats, renewals, and the rest of all that goes up.
                0 => ("XREADGROUP", &self.others),
                1 => ("EVALSHA", &self.others),
                2 => {
                    self.of_workers.reset();
                    self.resets.fetch_add(1, Ordering::Relaxed);
                    ("", &self.others)
                }
                _ => (SETTLEMENT, &self.settlements),
            };
            let before = self.of_workers.swallowed();
            if !part.is_empty() {
                self.of_workers.swallow(part, 1);
            }
            let done = tokio::select! {
                biased;
                done = &mut work => Some(done),
                () = tokio::time::sleep(pause) => None,
            };
            self.of_workers.swallow("", 0);
            lost.fetch_add(self.of_workers.swallowed() - before, Ordering::Relaxed);
            if let Some(done) = done {
                return done;
            }
        }
    }

    pub(crate) fn lost(&self) -> Lost {
        let get = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Lost {
            appends: Vec::new(),
            settlements: get(&self.settlements),
            others: get(&self.others),
            resets: get(&self.resets),
        }
    }

    fn chance(&self, of: u64) -> bool {
        self.below(of) == 0
    }

    fn below(&self, limit: u64) -> u64 {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).u64(..limit)
    }
}
