//! The fetch loop: reads one partition while there is room.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::log::{Entry, Fetched};
use millstream_core::{Reader, Settlement};
use tokio::sync::mpsc::UnboundedSender;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::group::restore::restore_group;
use crate::consumer::maintenance::Triggers;
use crate::consumer::partition::claim_orphans::OrphanClaimer;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::poison::is_candidate;
use crate::consumer::partition::settlement_buffer::Settlements;
use millstream_loops::LoopMonitor;

/// Entries on their way to the dispatcher.
pub(in crate::consumer) struct Read {
    pub(in crate::consumer) entries: Vec<Entry>,
    /// Number of consecutive owner ends, if the entries were pending when the lease was granted; else 0.
    pub(in crate::consumer) ends: usize,
}

/// Reads one partition. It is the partition's only reader.
pub(in crate::consumer) struct Fetcher {
    pub(in crate::consumer) context: Arc<Subscription>,
    pub(in crate::consumer) guard: Arc<LeaseGuard>,
    pub(in crate::consumer) in_flight: Arc<InFlight>,
    /// To the dispatcher. Bounded by the room in flight.
    pub(in crate::consumer) entries: UnboundedSender<Read>,
    /// To the settler: pending entries without a body are acknowledged.
    pub(in crate::consumer) settlements: UnboundedSender<Settlements>,
    /// Triggered when a message was scheduled that is due before all others that wait.
    pub(in crate::consumer) triggers: Arc<Triggers>,
    pub(in crate::consumer) reader: Option<Box<dyn Reader>>,
    pub(in crate::consumer) orphans: OrphanClaimer,
    /// Whether everything that was pending when the lease was granted has been read. Whatever is pending later is our
    /// own.
    pub(in crate::consumer) caught_up: bool,
}

impl Fetcher {
    /// Reads until the consumer stops or the lease is lost. Errors are reported and do not end the loop.
    pub(in crate::consumer) async fn run(mut self) {
        let context = self.context.clone();
        let guard = self.guard.clone();
        let observer = &*context.observer;
        let Ok((topic_partition, _)) = guard.lease().partition() else { return };
        let monitor = context.monitor_of("fetch", topic_partition);
        let mut pause = context.pauses.of(topic_partition);
        let work = async {
            loop {
                pause.until(false).await;
                let read = tokio::select! {
                    biased;
                    () = pause.until(true) => {
                        // The request is dropped, and with it perhaps a reply with entries: the reader starts over with
                        // the pending list.
                        self.in_flight.begin_rewind();
                        monitor.idle();
                        continue;
                    }
                    read = self.run_once(&monitor) => read,
                };
                match read {
                    Ok(()) => monitor.succeeded(observer),
                    Err(error) if error.kind() == ErrorKind::Fenced => return guard.lose(),
                    Err(error) => {
                        let pause = monitor.failed(&error, observer);
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

    /// Waits for room, reads once, and forwards what was read.
    async fn run_once(&mut self, monitor: &LoopMonitor) -> Result<()> {
        let room = self.in_flight.room().await;
        monitor.begin_round(self.context.config.max_wait);
        self.in_flight.begin_read();
        let in_flight = self.in_flight.clone();
        let fetched = tokio::select! {
            biased;
            () = in_flight.let_go() => {
                // A reader that starts over sees the entry at once; a wait for new ones would not.
                self.start_over();
                return Ok(());
            }
            fetched = self.fetch(room) => fetched,
        };
        let mut fetched = match fetched {
            Ok(fetched) => fetched,
            Err(error) => {
                // A reply with entries may have been lost: the reader starts over with the pending list.
                self.in_flight.begin_rewind();
                if error.kind() == ErrorKind::GroupMissing {
                    return restore_group(&self.context, &self.guard, &self.in_flight, &error).await;
                }
                return Err(error);
            }
        };
        if fetched.pending && !self.in_flight.is_rewinding() {
            // The reader has started over by itself. What was settled while it read was not recorded, so some of these
            // entries may be done. Read again from the start and record settlements. The other reports of this reply come
            // only once, so they are forwarded now.
            self.start_over();
            fetched.entries.clear();
            fetched.ghosts.clear();
            return self.hand_on(fetched);
        }
        self.in_flight.brought(room, fetched.entries.len());
        if !fetched.pending {
            self.in_flight.end_rewind();
            // The first reply without pending entries: everything that was pending at the grant has been read.
            if !std::mem::replace(&mut self.caught_up, true) {
                self.taken_over();
            }
        }
        self.hand_on(fetched)
    }

    async fn fetch(&mut self, room: usize) -> Result<Fetched> {
        if self.orphans.run_once().await? {
            self.start_over();
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                // A new reader begins with the pending list, which may show entries that are settled meanwhile.
                self.in_flight.begin_rewind();
                none.insert(self.context.backend.log().reader(self.guard.lease()).await?)
            }
        };
        // Wait no longer than until the next check for orphans, and not at all before everything pending is known.
        let wait = if self.caught_up { self.context.config.max_wait } else { Duration::ZERO };
        reader.fetch(room, wait.min(self.orphans.due_in())).await
    }

    /// Makes the next read begin with the pending list, which may show entries that are settled meanwhile.
    ///
    /// The reader is kept: it knows the newest entries that were handed out, and so notices a fail-over that has lost them
    /// and gives their ids to others.
    fn start_over(&mut self) {
        self.in_flight.begin_rewind();
        if let Some(reader) = &mut self.reader {
            reader.start_over();
        }
    }

    /// Reports the takeover: everything that was pending when the lease was granted has been read.
    fn taken_over(&self) {
        let (lease, (messages, candidates)) = (self.guard.lease(), self.in_flight.inherited());
        let Ok((topic_partition, group)) = lease.partition() else { return };
        let ends = lease.ends.len();
        if ends > 0 {
            tracing::warn!(%topic_partition, %group, ends, messages, candidates, "taken over from an owner that ended");
            let observer = &self.context.observer;
            observer.observe(&Event::TakenOver { topic_partition, group, ends, messages, candidates });
        }
    }

    fn hand_on(&self, fetched: Fetched) -> Result<()> {
        let (topic_partition, group) = self.guard.lease().partition()?;
        let observer = &self.context.observer;
        if fetched.woken {
            self.triggers.parked();
        }
        if let Some((from, to)) = fetched.rewound {
            tracing::warn!(%topic_partition, %group, %from, %to, "the server lost what it had told");
            observer.observe(&Event::TailLost { topic_partition, group, from, to });
        }
        if fetched.tail_lost {
            // Messages in flight may share their ids with entries that come next.
            tracing::warn!(%topic_partition, %group, "the log lost entries that were handed out: those in flight are dropped");
            self.guard.drop_all();
            // Stops the loop: nothing more is read under this lease.
            return Err(self.guard.lease().fenced());
        }
        if !fetched.ghosts.is_empty() {
            let messages = fetched.ghosts.len();
            tracing::warn!(%topic_partition, %group, messages, "pending entries were deleted by somebody");
            observer.observe(&Event::Ghosts { topic_partition, group, messages });
            let done = fetched.ghosts.into_iter().map(|receipt| (receipt, Settlement::Ack));
            // A closed channel means that the worker ends; the next owner reads the same ghosts.
            let _ = self.settlements.send(done.collect());
        }
        let pending = fetched.pending;
        let entries = self.in_flight.admit(fetched.entries);
        if !entries.is_empty() {
            let messages = entries.len();
            observer.observe(&Event::Fetched { topic_partition, group, messages, pending });
            let ends = if pending && !self.caught_up { self.guard.lease().ends.len() } else { 0 };
            if ends > 0 {
                self.in_flight.inherit(&entries, |entry| is_candidate(entry, ends));
            }
            let _ = self.entries.send(Read { entries, ends });
        }
        Ok(())
    }
}
