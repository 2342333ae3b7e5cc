//! Fetching: reads one partition while there is room.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::log::Fetched;
use millstream_core::{Reader, Settlement};
use millstream_engine::LoopMonitor;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::group::restore::restore_group;
use crate::consumer::maintenance::Triggers;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::leases::entry_lease::{Admitted, NO_LEASE};
use crate::consumer::partition::poison::is_candidate;
use crate::consumer::partition::settle::Settler;
use crate::consumer::partition::slot::Slot;
use crate::consumer::partition::source::claim_orphans::OrphanClaimer;
use crate::consumer::partition::source::{Candidates, Progress, Read};

/// Reads one partition. It is the partition's only reader, and has at most one request under way.
pub(in crate::consumer) struct Fetcher {
    context: Arc<Subscription>,
    guard: Arc<LeaseGuard>,
    /// Triggered when a message was scheduled that is due before all others that wait.
    triggers: Arc<Triggers>,
    monitor: LoopMonitor,
    /// What requests use. `None` while one is under way.
    tools: Option<Tools>,
    request: Slot<(Tools, FetchEnded)>,
    /// Makes the request under way end at once.
    cancel: CancellationToken,
    /// When the next request may be sent, after one that failed.
    not_before: Option<Instant>,
    /// Error for which the group is created again before anything else is read.
    gone: Option<Error>,
    /// Whether everything that was pending when the lease was granted has been read. Whatever is pending later is our
    /// own.
    caught_up: bool,
}

struct Tools {
    /// `None` until it is opened.
    reader: Option<Box<dyn Reader>>,
    orphans: OrphanClaimer,
}

/// How a request ended.
pub(in crate::consumer) enum FetchEnded {
    /// Orphans were looked for. True if a new read will find more pending entries.
    Claimed(Result<bool>),
    /// A page was requested for so much room.
    Fetched(usize, Result<Fetched>),
    /// The group was created again.
    Restored(Result<()>),
    /// It was cancelled.
    Cancelled,
}

impl Fetcher {
    pub(in crate::consumer) fn new(
        context: Arc<Subscription>,
        guard: Arc<LeaseGuard>,
        triggers: Arc<Triggers>,
        monitor: LoopMonitor,
    ) -> Self {
        let orphans = OrphanClaimer::new(context.clone(), guard.clone());
        Self {
            context,
            guard,
            triggers,
            monitor,
            tools: Some(Tools { reader: None, orphans }),
            request: Slot::default(),
            cancel: CancellationToken::new(),
            not_before: None,
            gone: None,
            caught_up: false,
        }
    }

    /// Sends the next request if there is room and it is time, or ends the one under way if it is to be another one.
    pub(in crate::consumer) fn advance(&mut self, paused: bool, now: Instant, in_flight: &mut InFlight) {
        // What is over must not wake the worker again, even if there is no room yet.
        self.not_before = self.not_before.filter(|not_before| now < *not_before);
        let Some(tools) = &mut self.tools else {
            // The pending list is wanted, which a wait for new entries would not read. Or nothing is wanted.
            if paused || in_flight.is_to_look_again() {
                self.cancel.cancel();
            }
            return;
        };
        if paused || self.not_before.is_some() {
            return;
        }
        let Some(room) = in_flight.room() else { return };
        self.monitor.begin_round(self.context.max_wait());
        if in_flight.take_look_again() {
            start_over(tools, in_flight);
        }
        let Some(mut tools) = self.tools.take() else { return };
        let (context, guard) = (self.context.clone(), self.guard.clone());
        self.cancel = CancellationToken::new();
        let cancel = self.cancel.clone();
        if let Some(error) = self.gone.take() {
            let after = in_flight.frontier();
            self.request.start(Box::pin(async move {
                let restored = restore_group(&context, &guard, after, &error).await;
                (tools, FetchEnded::Restored(restored))
            }));
            return;
        }
        if tools.orphans.due_in().is_zero() {
            self.request.start(Box::pin(async move {
                let claimed = tokio::select! {
                    biased;
                    () = cancel.cancelled() => FetchEnded::Cancelled,
                    claimed = tools.orphans.run_once() => FetchEnded::Claimed(claimed),
                };
                (tools, claimed)
            }));
            return;
        }
        if tools.reader.is_none() {
            // A new reader begins with the pending list, which may show entries that are settled meanwhile.
            in_flight.begin_rewind();
        }
        in_flight.begin_read();
        // Wait no longer than until the next check for orphans, and not at all before everything pending is known.
        let wait = if self.caught_up { self.context.max_wait() } else { Duration::ZERO };
        let wait = wait.min(tools.orphans.due_in());
        self.request.start(Box::pin(async move {
            let fetched = tokio::select! {
                biased;
                () = cancel.cancelled() => FetchEnded::Cancelled,
                fetched = fetch(&mut tools.reader, &context, &guard, room, wait) => FetchEnded::Fetched(room, fetched),
            };
            (tools, fetched)
        }));
    }

    /// Returns when the next request is to be sent although nothing else happens.
    pub(in crate::consumer) fn wakes(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.request.is_empty())
    }

    /// Drops the request under way.
    pub(in crate::consumer) fn stop(&mut self) {
        self.request.clear();
    }

    /// Waits until the request has ended. Waits for ever if there is none. Cancel safe.
    pub(in crate::consumer) async fn ended(&mut self) -> FetchEnded {
        let (tools, ended) = self.request.ended().await;
        self.tools = Some(tools);
        ended
    }

    /// Takes in the result of a request.
    pub(in crate::consumer) fn take_in(
        &mut self,
        ended: FetchEnded,
        in_flight: &mut InFlight,
        settler: &mut Settler,
    ) -> Progress {
        let mut restoring = false;
        let taken = match ended {
            FetchEnded::Cancelled => {
                // The request is dropped, and with it perhaps a reply with entries: the reader starts over with the pending
                // list. Of a claim the reader knows nothing: what it claimed would stay unread.
                if let Some(tools) = &mut self.tools {
                    start_over(tools, in_flight);
                }
                self.monitor.idle();
                return Progress::Nothing;
            }
            FetchEnded::Restored(restored) => {
                restored.map(|()| Progress::Nothing).inspect_err(|_| restoring = true)
            }
            FetchEnded::Claimed(Ok(more)) => {
                if more && let Some(tools) = &mut self.tools {
                    start_over(tools, in_flight);
                }
                // It has errors of its own, and says nothing of reading: a fetch that fails goes on failing.
                self.monitor.idle();
                return Progress::Nothing;
            }
            FetchEnded::Claimed(Err(error)) => Err(error),
            FetchEnded::Fetched(room, fetched) => {
                fetched.and_then(|fetched| self.fetched(fetched, room, in_flight, settler))
            }
        };
        match taken {
            Ok(progress) => {
                self.monitor.succeeded(&*self.context.observer);
                progress
            }
            Err(error) if error.kind() == ErrorKind::Fenced => Progress::Fenced,
            Err(error) => {
                // A reply with entries may have been lost: the reader starts over with the pending list.
                in_flight.begin_rewind();
                settler.reader_starts_over();
                if error.kind() == ErrorKind::GroupMissing && !restoring {
                    self.gone = Some(error);
                } else {
                    let pause = self.monitor.failed(&error, &*self.context.observer);
                    self.not_before = Some(Instant::now() + pause);
                }
                Progress::Nothing
            }
        }
    }

    fn fetched(
        &mut self,
        mut fetched: Fetched,
        room: usize,
        in_flight: &mut InFlight,
        settler: &mut Settler,
    ) -> Result<Progress> {
        if fetched.pending && !in_flight.is_rewinding() {
            // The reader has started over by itself. What was settled while it read was not recorded, so some of these
            // entries may be done. Read again from the start and record settlements. The other reports of this reply come
            // only once, so they are used now.
            if let Some(tools) = &mut self.tools {
                start_over(tools, in_flight);
            }
            settler.reader_starts_over();
            fetched.entries.clear();
            fetched.ghosts.clear();
            return self.hand_on(fetched, in_flight, settler);
        }
        in_flight.brought(room, fetched.entries.len());
        if !fetched.pending {
            in_flight.end_rewind();
            // The first reply without pending entries: everything that was pending at the grant has been read.
            if !std::mem::replace(&mut self.caught_up, true) {
                self.taken_over(in_flight);
            }
        }
        self.hand_on(fetched, in_flight, settler)
    }

    /// Reports the takeover: everything that was pending when the lease was granted has been read.
    fn taken_over(&self, in_flight: &InFlight) {
        let (topic_partition, group) = (self.guard.topic_partition(), self.guard.group());
        let (ends, (messages, candidates)) = (self.guard.lease().ends.len(), in_flight.taken_over());
        if ends > 0 {
            tracing::warn!(%topic_partition, %group, ends, messages, candidates, "taken over from an owner that ended");
            let observer = &self.context.observer;
            observer.observe(&Event::TakenOver { topic_partition, group, ends, messages, candidates });
        }
    }

    /// Reports what a reply says beside the entries, and admits the entries.
    fn hand_on(&self, fetched: Fetched, in_flight: &mut InFlight, settler: &mut Settler) -> Result<Progress> {
        let (topic_partition, group) = (self.guard.topic_partition(), self.guard.group());
        let observer = &self.context.observer;
        if fetched.woken {
            self.triggers.parked();
        }
        if let Some((from, to)) = fetched.rewound {
            tracing::warn!(%topic_partition, %group, %from, %to, "the server lost entries that had been read");
            observer.observe(&Event::TailLost { topic_partition, group, from, to });
        }
        if fetched.tail_lost {
            // Messages in flight may share their ids with entries that come next.
            tracing::warn!(%topic_partition, %group, "the log lost entries that were handed out: those in flight are dropped");
            self.guard.drop_all();
            // Nothing more is read under this lease.
            return Err(self.guard.lease().fenced());
        }
        if !fetched.ghosts.is_empty() {
            let entries = fetched.ghosts.len();
            tracing::warn!(%topic_partition, %group, entries, "pending entries were deleted by another client");
            observer.observe(&Event::Ghosts { topic_partition, group, entries });
            for receipt in fetched.ghosts {
                settler.add(receipt, NO_LEASE, Settlement::Ack);
            }
        }
        let pending = fetched.pending;
        let entries = in_flight.admit(fetched.entries);
        if entries.is_empty() {
            return Ok(Progress::Nothing);
        }
        let messages = entries.len();
        observer.observe(&Event::Fetched { topic_partition, group, messages, pending });
        let ends = &self.guard.lease().ends;
        let mut candidates = Candidates::None;
        if pending && !self.caught_up && !ends.is_empty() {
            in_flight.inherit(&entries, |entry| is_candidate(entry, ends.len()));
            candidates = Candidates::Pending(ends.clone());
        }
        let entries = entries.into_iter().map(|entry| Admitted { entry, serial: NO_LEASE }).collect();
        Ok(Progress::Read(Read { entries, candidates }))
    }
}

/// Makes the next read begin with the pending list, which may show entries that are settled meanwhile.
///
/// The reader is kept: it knows the newest entries that were handed out, and so notices a fail-over that has lost them
/// and gives their ids to others.
fn start_over(tools: &mut Tools, in_flight: &mut InFlight) {
    in_flight.begin_rewind();
    if let Some(reader) = &mut tools.reader {
        reader.start_over();
    }
}

async fn fetch(
    reader: &mut Option<Box<dyn Reader>>,
    context: &Subscription,
    guard: &LeaseGuard,
    room: usize,
    wait: Duration,
) -> Result<Fetched> {
    let reader = match reader {
        Some(reader) => reader,
        none => none.insert(context.backend.log().reader(guard.lease()).await?),
    };
    reader.fetch(room, wait).await
}
