//! Mistakes of reading.

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::envelope::Limits;
use millstream_core::log::{Entry, Fetched, Reader, Receipt, Source};
use millstream_core::wire::{self, REDELIVERY_FIELDS};
use millstream_core::{ErrorKind, Lease, Result};
use tokio::time::{Instant, sleep};

use super::{Broken, Mutant};

pub(super) struct BrokenReader {
    broken: Broken,
    lease: Lease,
    inner: Box<dyn Reader>,
    held: VecDeque<Entry>,
}

impl BrokenReader {
    pub(super) fn new(broken: Broken, lease: Lease, inner: Box<dyn Reader>) -> Self {
        Self { broken, lease, inner, held: VecDeque::new() }
    }
}

#[async_trait]
impl Reader for BrokenReader {
    fn start_over(&mut self) {
        if self.broken.sabotage != Mutant::StartOverIgnored {
            self.inner.start_over();
        }
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        self.broken.refuse_missing(&self.lease)?;
        let mut fetched = match self.broken.sabotage {
            Mutant::MaxIgnored => self.inner.fetch(max * 3, wait).await?,
            Mutant::WaitIgnored => self.inner.fetch(max, Duration::ZERO).await?,
            Mutant::WakesLate => {
                let fetched = self.inner.fetch(max, Duration::ZERO).await?;
                if is_empty(&fetched) {
                    sleep(wait).await;
                    self.inner.fetch(max, Duration::ZERO).await?
                } else {
                    fetched
                }
            }
            Mutant::PendingSkipped => loop {
                let fetched = self.inner.fetch(max, wait).await?;
                if !fetched.pending {
                    break fetched;
                }
            },
            Mutant::DropLosesReply => {
                let fetched = self.inner.fetch(max, wait).await?;
                sleep(Duration::from_millis(3)).await;
                fetched
            }
            Mutant::LostGroupHidden => match self.inner.fetch(max, wait).await {
                Err(error) if error.kind() == ErrorKind::GroupMissing => {
                    sleep(wait).await;
                    Fetched::default()
                }
                other => other?,
            },
            Mutant::FenceIgnoredOnFetch => {
                self.follow_the_owner().await?;
                self.inner.fetch(max, wait).await?
            }
            Mutant::FenceCheckedBeforeTheWait => self.fetch_unfenced_after_waiting(max, wait).await?,
            Mutant::ExpiryFences => {
                self.broken.fence_expired(&self.lease).await?;
                self.inner.fetch(max, wait).await?
            }
            _ => self.inner.fetch(max, wait).await?,
        };
        self.spoil(max, &mut fetched)?;
        Ok(fetched)
    }
}

impl BrokenReader {
    async fn follow_the_owner(&mut self) -> Result<()> {
        let current = self.broken.unfenced(self.broken.sabotage, &self.lease);
        if current != self.lease {
            self.inner = self.broken.inner.log().reader(&current).await?;
            self.lease = current;
        }
        Ok(())
    }

    async fn fetch_unfenced_after_waiting(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        let until = Instant::now() + wait;
        let mut fetched = self.inner.fetch(max, Duration::ZERO).await?;
        let mut reader = None;
        while is_empty(&fetched) && Instant::now() < until {
            sleep(Duration::from_millis(2)).await;
            let current = self.broken.unfenced(self.broken.sabotage, &self.lease);
            if current == self.lease {
                fetched = self.inner.fetch(max, Duration::ZERO).await?;
                continue;
            }
            if reader.is_none() {
                reader = Some(self.broken.inner.log().reader(&current).await?);
            }
            if let Some(reader) = &mut reader {
                fetched = reader.fetch(max, Duration::ZERO).await?;
            }
        }
        Ok(fetched)
    }

    /// Spoils the result of a fetch.
    fn spoil(&mut self, max: usize, fetched: &mut Fetched) -> Result<()> {
        let (tp, group) = self.lease.partition()?;
        let mut memo = self.broken.memo();
        let key = (tp.clone(), group.clone());
        match self.broken.sabotage {
            Mutant::PendingReversed if fetched.pending => fetched.entries.reverse(),
            Mutant::DeliveriesStuckAtOne => {
                fetched.entries.iter_mut().for_each(|entry| entry.deliveries = 1);
            }
            Mutant::LargePagesCut => cut_large(&mut fetched.entries),
            Mutant::GhostsHidden => fetched.ghosts.clear(),
            Mutant::WokenHidden => fetched.woken = false,
            Mutant::WokenAlways => fetched.woken = true,
            Mutant::GroupsCompete => fetched.entries.retain(|entry| {
                let first = memo.taken.entry((tp.clone(), entry.receipt.id)).or_insert_with(|| group.clone());
                first == group
            }),
            Mutant::TrimsForOneGroup => {
                for entry in fetched.entries.iter().filter(|entry| entry.receipt.source == Source::Log) {
                    memo.taken.insert((tp.clone(), entry.receipt.id), group.clone());
                }
            }
            Mutant::RetriesLast => {
                let (log, retry) = std::mem::take(&mut fetched.entries)
                    .into_iter()
                    .partition(|e| e.receipt.source == Source::Log);
                fetched.entries = log;
                self.held.extend::<Vec<_>>(retry);
                if fetched.entries.is_empty() {
                    fetched.entries = self.held.drain(..self.held.len().min(max)).collect();
                }
            }
            Mutant::RetryLosesBody => redeliveries(fetched, |entry| {
                entry.fields.truncate(REDELIVERY_FIELDS.len());
            }),
            Mutant::RetryLosesStory => redeliveries(fetched, |entry| {
                entry.fields.drain(..REDELIVERY_FIELDS.len());
            }),
            Mutant::RetryWrapsRetry => redeliveries(fetched, |entry| {
                if wire::decode(entry.receipt, &entry.fields, &Limits::default()).attempt > 2 {
                    let lead = entry.fields[..REDELIVERY_FIELDS.len()].to_vec();
                    entry.fields.splice(..0, lead);
                }
            }),
            Mutant::PromotedTwice => {
                let seen = memo.promoted.entry(key).or_default();
                let redelivered = |e: &&Entry| e.receipt.source == Source::Retry && seen.insert(e.receipt);
                let again: Vec<_> = fetched.entries.iter().filter(redelivered).cloned().collect();
                let room = max.saturating_sub(fetched.entries.len());
                fetched.entries.extend(self.held.drain(..self.held.len().min(room)));
                self.held.extend(again);
            }
            Mutant::GroupStartsAgain | Mutant::RestoreRewinds => {
                if let Some(after) = memo.rewound.remove(&key) {
                    let entries = memo.appended.get(tp).into_iter().flatten().filter(|(id, _)| *id > after);
                    let again = entries
                        .take(max)
                        .map(|(id, fields)| Entry::new(Receipt::new(Source::Log, *id), 1, fields.clone()));
                    fetched.entries = again.collect();
                }
            }
            _ => {}
        }
        memo.spoil_notes(self.broken.sabotage, &self.lease, fetched)?;
        let trimmed = memo.trimmed.get(tp).copied().unwrap_or_default();
        fetched.entries.retain(|e| e.receipt.source == Source::Retry || e.receipt.id > trimmed);
        Ok(())
    }
}

/// Drops entries beyond 4 MiB.
pub(super) fn cut_large(entries: &mut Vec<Entry>) {
    let mut left = 4usize << 20;
    entries.retain(|entry| {
        let size: usize = entry.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        let fits = size <= left;
        left = left.saturating_sub(size);
        fits
    });
}

fn is_empty(fetched: &Fetched) -> bool {
    fetched.entries.is_empty() && fetched.ghosts.is_empty()
}

fn redeliveries(fetched: &mut Fetched, spoil: impl FnMut(&mut Entry)) {
    fetched.entries.iter_mut().filter(|entry| entry.receipt.source == Source::Retry).for_each(spoil);
}
