//! The fetch loop: reads one partition as far as there is room.

use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::log::{Entry, Fetched, Receipt};
use millstream_core::{Reader, Settlement};
use tokio::sync::mpsc::UnboundedSender;

use super::context::Subscription;
use super::guard::Guard;
use super::in_flight::InFlight;
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
    pub(super) settlements: UnboundedSender<(Receipt, Settlement)>,
    pub(super) reader: Option<Box<dyn Reader>>,
    /// What was pending when the lease was granted has been read. What is pending later is our own.
    pub(super) caught_up: bool,
}

impl Fetcher {
    /// Reads until the consumer stops or the lease is lost. Errors are told and do not end it.
    pub(super) async fn run(mut self) {
        let mut trouble = Trouble::new("fetch");
        let context = self.context.clone();
        let guard = self.guard.clone();
        let observer = &*context.observer;
        let partition = guard.lease().partition().ok().map(|(topic_partition, _)| topic_partition);
        let work = async {
            loop {
                match self.run_once().await {
                    Ok(()) => trouble.over(observer, partition),
                    Err(error) if error.kind() == ErrorKind::Fenced => return guard.lose(),
                    Err(error) => {
                        let pause = trouble.met(&error, observer, partition);
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
    async fn run_once(&mut self) -> Result<()> {
        let room = self.in_flight.room().await;
        self.in_flight.begin_read();
        let fetched = match self.fetch(room).await {
            Ok(fetched) => fetched,
            Err(error) => {
                // A reply may have been lost with entries in it: the reader starts over with what is pending.
                self.in_flight.begin_rewind();
                if error.kind() == ErrorKind::GroupMissing {
                    return self.restore_group(&error).await;
                }
                return Err(error);
            }
        };
        if !fetched.pending {
            self.in_flight.end_rewind();
            self.caught_up = true;
        }
        self.hand_on(fetched)
    }

    async fn fetch(&mut self, room: usize) -> Result<Fetched> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                self.in_flight.begin_rewind();
                none.insert(self.context.backend.log.reader(self.guard.lease()).await?)
            }
        };
        reader.fetch(room, self.context.config.max_wait).await
    }

    fn hand_on(&self, fetched: Fetched) -> Result<()> {
        let (topic_partition, group) = self.guard.lease().partition()?;
        let observer = &self.context.observer;
        if !fetched.ghosts.is_empty() {
            let messages = fetched.ghosts.len();
            tracing::warn!(%topic_partition, %group, messages, "pending entries were deleted by somebody");
            observer.observe(&Event::Ghosts { topic_partition, group, messages });
            for receipt in fetched.ghosts {
                // A closed channel means that the worker ends; the next owner meets the same ghosts.
                let _ = self.settlements.send((receipt, Settlement::Ack));
            }
        }
        let pending = fetched.pending;
        let entries = self.in_flight.admit(fetched.entries);
        if !entries.is_empty() {
            let messages = entries.len();
            observer.observe(&Event::Fetched { topic_partition, group, messages, pending });
            let suspects = pending && !self.caught_up && self.guard.lease().abandoned;
            let _ = self.entries.send(Read { entries, suspects });
        }
        Ok(())
    }

    /// Somebody destroyed the group or deleted the stream. Reading goes on above what is settled: everything
    /// above that is handled (again) rather than lost.
    async fn restore_group(&mut self, error: &Error) -> Result<()> {
        let (topic_partition, group) = self.guard.lease().partition()?;
        let after = self.in_flight.frontier();
        let catalog = &self.context.backend.catalog;
        // If everything was deleted, the registry is gone as well.
        catalog.create_topic(&self.context.topic).await?;
        catalog.restore_group(topic_partition, group, after).await?;
        tracing::warn!(%topic_partition, %group, %after, %error, "the group was gone and has been created again");
        self.context.observer.observe(&Event::GroupRestored { topic_partition, group, after });
        Ok(())
    }
}
