//! The fetch loop: reads one partition as far as there is room.

use std::sync::Arc;

use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::log::{Entry, Fetched};
use millstream_core::{Reader, Settlement};
use tokio::sync::mpsc::UnboundedSender;

use super::adopt::Adopter;
use super::context::Subscription;
use super::guard::Guard;
use super::in_flight::InFlight;
use super::outbox::Settlements;
use super::restore::restore_group;
use super::upkeep::Bells;
use crate::trouble::Trouble;

/// Entries on their way to the dispatcher.
pub(super) struct Read {
    pub(super) entries: Vec<Entry>,
    /// The owner before ended without a word while it had these: one of them may be why.
    pub(super) suspects: bool,
}

/// Reads one partition. It is the only one who does.
pub(super) struct Fetcher {
    pub(super) context: Arc<Subscription>,
    pub(super) guard: Arc<Guard>,
    pub(super) in_flight: Arc<InFlight>,
    /// To the dispatcher. Bounded by the room in flight.
    pub(super) entries: UnboundedSender<Read>,
    /// To the settler: pending entries without a body are done.
    pub(super) settlements: UnboundedSender<Settlements>,
    /// Rung when something was scheduled that is due before all that waited.
    pub(super) bells: Arc<Bells>,
    pub(super) reader: Option<Box<dyn Reader>>,
    pub(super) adopter: Adopter,
    /// What was pending when the lease was granted has been read. What is pending later is our own.
    pub(super) caught_up: bool,
}

impl Fetcher {
    /// Reads until the consumer stops or the lease is lost. Errors are told and do not end it.
    pub(super) async fn run(mut self) {
        let context = self.context.clone();
        let guard = self.guard.clone();
        let observer = &*context.observer;
        let Ok((topic_partition, _)) = guard.lease().partition() else { return };
        let mut trouble = context.trouble_in("fetch", topic_partition);
        let mut pause = context.pauses.of(topic_partition);
        let work = async {
            loop {
                pause.until(false).await;
                let read = tokio::select! {
                    biased;
                    () = pause.until(true) => {
                        // A reply with entries in it may be lost: the reader starts over with what is pending.
                        self.in_flight.begin_rewind();
                        trouble.waits();
                        continue;
                    }
                    read = self.run_once(&trouble) => read,
                };
                match read {
                    Ok(()) => trouble.over(observer),
                    Err(error) if error.kind() == ErrorKind::Fenced => return guard.lose(),
                    Err(error) => {
                        let pause = trouble.met(&error, observer);
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = guard.revoked().cancelled() => {}
            () = guard.lost().cancelled() => {}
            () = work => {}
        }
    }

    /// Waits for room, reads once, and hands on what was read.
    async fn run_once(&mut self, trouble: &Trouble) -> Result<()> {
        let room = self.in_flight.room().await;
        trouble.begins(self.context.config.max_wait);
        self.in_flight.begin_read();
        let in_flight = self.in_flight.clone();
        let fetched = tokio::select! {
            biased;
            () = in_flight.let_go() => {
                // A new reader sees it again at once; this one may wait for what comes after it.
                self.reader = None;
                return Ok(());
            }
            fetched = self.fetch(room) => fetched,
        };
        let fetched = match fetched {
            Ok(fetched) => fetched,
            Err(error) => {
                // A reply may have been lost with entries in it: the reader starts over with what is pending.
                self.in_flight.begin_rewind();
                if error.kind() == ErrorKind::GroupMissing {
                    return restore_group(&self.context, &self.guard, &self.in_flight, &error).await;
                }
                return Err(error);
            }
        };
        self.in_flight.brought(room, fetched.entries.len());
        if !fetched.pending {
            self.in_flight.end_rewind();
            self.caught_up = true;
        }
        self.hand_on(fetched)
    }

    async fn fetch(&mut self, room: usize) -> Result<Fetched> {
        if self.adopter.run_once().await? {
            self.reader = None;
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                self.in_flight.begin_rewind();
                none.insert(self.context.backend.log.reader(self.guard.lease()).await?)
            }
        };
        // No longer than until it is time to look at other names again.
        reader.fetch(room, self.context.config.max_wait.min(self.adopter.due_in())).await
    }

    fn hand_on(&self, fetched: Fetched) -> Result<()> {
        let (topic_partition, group) = self.guard.lease().partition()?;
        let observer = &self.context.observer;
        if fetched.woken {
            self.bells.parked();
        }
        if let Some((from, to)) = fetched.rewound {
            tracing::warn!(%topic_partition, %group, %from, %to, "the server lost what it had told");
            observer.observe(&Event::TailLost { topic_partition, group, from, to });
        }
        if !fetched.ghosts.is_empty() {
            let messages = fetched.ghosts.len();
            tracing::warn!(%topic_partition, %group, messages, "pending entries were deleted by somebody");
            observer.observe(&Event::Ghosts { topic_partition, group, messages });
            let done = fetched.ghosts.into_iter().map(|receipt| (receipt, Settlement::Ack));
            // A closed channel means that the worker ends; the next owner meets the same ghosts.
            let _ = self.settlements.send(done.collect());
        }
        let pending = fetched.pending;
        let entries = self.in_flight.admit(fetched.entries);
        if !entries.is_empty() {
            let messages = entries.len();
            observer.observe(&Event::Fetched { topic_partition, group, messages, pending });
            let suspects = pending && !self.caught_up && self.guard.lease().abandoned;
            if suspects {
                self.in_flight.suspect(&entries);
            }
            let _ = self.entries.send(Read { entries, suspects });
        }
        Ok(())
    }
}
