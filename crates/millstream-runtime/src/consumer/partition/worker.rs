//! The worker: everything that runs for one owned partition, from the grant of its lease to its end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::{Lease, Start};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::consumer::context::{Context, Subscription};
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::group::membership::within;
use crate::consumer::group::restore::restore_group;
use crate::consumer::maintenance::{self, Triggers};
use crate::consumer::partition::claim_orphans::OrphanClaimer;
use crate::consumer::partition::dispatch::Dispatcher;
use crate::consumer::partition::fetch::Fetcher;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::server_clock::ServerClock;
use crate::consumer::partition::settle::Settler;
use crate::consumer::partition::settlement_buffer::Settlements;
use crate::consumer::status::{Seek, Seeks};
use crate::consumer::{Sharing, shared};
use crate::report::Counts;

/// How long giving a lease back may take; it ends by itself after its ttl.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is tried to withdraw an end. If that fails for so long, what the next owners meet is handled more
/// carefully than it need be.
const WITHDRAWALS: usize = 5;

/// What follows when a worker has ended.
pub(in crate::consumer) enum Ended {
    /// Nothing that it knows of.
    Over,
    /// The lease was given back, and the partition is to be taken anew at once, under another token.
    Anew(Option<Moved>),
}

/// A seek that was done. It is answered when the partition is worked on again, so that the next one finds it.
pub(in crate::consumer) struct Moved {
    pub(in crate::consumer) answer: oneshot::Sender<Result<()>>,
    /// Those that were asked for meanwhile.
    waiting: Vec<Seek>,
}

impl Moved {
    /// It is done, whoever works on the partition now. What waits behind it is not.
    pub(in crate::consumer) fn answer(self) {
        // Who asked may have gone.
        let _ = self.answer.send(Ok(()));
    }
}

/// Works on one partition until the consumer stops or the lease is lost, or given back to be taken anew.
pub(in crate::consumer) async fn run(
    context: Arc<Subscription>,
    guard: Arc<LeaseGuard>,
    moved: Option<Moved>,
) -> Ended {
    let Ok((topic_partition, _)) = guard.lease().partition() else { return Ended::Over };
    tell(&context, &guard, Change::Assigned);
    if context.config.sharing == Sharing::Shared {
        shared::tend(&context, &guard).await;
        if guard.lost().is_cancelled() {
            tell(&context, &guard, Change::LeaseLost);
            return Ended::Over;
        }
        release(&context, guard.lease()).await;
        tell(&context, &guard, Change::Revoked);
        return Ended::Over;
    }
    let mut in_flight = context.in_flight();
    let (entry, mut seeks) = context.status.works_on(topic_partition, guard.lease().epoch, in_flight.clone());
    let mut next: Seeks = VecDeque::new();
    if let Some(mut moved) = moved {
        next.extend(std::mem::take(&mut moved.waiting));
        moved.answer();
    }
    let mut triggers;
    loop {
        let session = Arc::new(guard.session());
        triggers = Arc::new(Triggers::new(&context.upkeep));
        let seek = if let Some(seek) = next.pop_front() {
            Some(seek)
        } else {
            let work = work(&context, &session, &in_flight, &triggers);
            tokio::pin!(work);
            let seek = tokio::select! {
                biased;
                () = &mut work => break,
                // Never `None`: the entry keeps the other end.
                seek = seeks.recv() => seek,
            };
            session.revoke();
            work.await;
            seek
        };
        if guard.revoked().is_cancelled() || guard.lost().is_cancelled() {
            break;
        }
        if let Some(Seek { start, answer }) = seek {
            match sought(&context, &guard, &in_flight, start).await {
                Ok(()) => {
                    seeks.close();
                    next.extend(std::iter::from_fn(|| seeks.try_recv().ok()));
                    drop(entry);
                    tell(&context, &guard, Change::Revoked);
                    return Ended::Anew(Some(Moved { answer, waiting: next.into() }));
                }
                // Who asked may have gone.
                Err(error) => drop(answer.send(Err(error))),
            }
        }
        in_flight = context.in_flight();
        entry.begins_anew(&in_flight);
    }
    drop(entry);
    Counts::add(&context.counts.handed_back, in_flight.unsettled());
    if !guard.is_dropped() {
        if guard.lost().is_cancelled() {
            return Ended::Over;
        }
        maintenance::finish(&context, &guard, &triggers).await;
        if guard.lost().is_cancelled() {
            tell(&context, &guard, Change::LeaseLost);
            withdraw_end(&context, guard.lease()).await;
            return Ended::Over;
        }
    }
    let lease = guard.lease();
    // What has not been tried again is inherited by the next owner, too.
    let ends = if in_flight.is_cleared() { Vec::new() } else { lease.ends.clone() };
    release(&context, &lease.clone().after_ends(ends)).await;
    tell(&context, &guard, Change::Revoked);
    if guard.is_dropped() { Ended::Anew(None) } else { Ended::Over }
}

/// Works on one partition until the session ends.
///
/// ```text
/// fetch ──entries──▶ dispatch ──settlements──▶ settle ──rings──▶ upkeep
///   ▲                                            │
///   └───────────── room in flight ◀──────────────┘
/// ```
///
/// Handlers run on a task of their own, so that one that blocks does not keep the rest from working.
async fn work(
    context: &Arc<Subscription>,
    guard: &Arc<LeaseGuard>,
    in_flight: &Arc<InFlight>,
    triggers: &Arc<Triggers>,
) {
    let clock = Arc::new(ServerClock::default());
    let (entries, to_dispatch) = mpsc::unbounded_channel();
    let (settlements, to_settle) = mpsc::unbounded_channel();
    let (written, notes) = mpsc::unbounded_channel();

    let dispatcher = Dispatcher {
        context: context.clone(),
        guard: guard.clone(),
        in_flight: in_flight.clone(),
        entries: to_dispatch,
        settlements: settlements.clone(),
        clock: clock.clone(),
        written: notes,
    };
    let fetcher = Fetcher {
        context: context.clone(),
        guard: guard.clone(),
        in_flight: in_flight.clone(),
        entries,
        settlements,
        triggers: triggers.clone(),
        reader: None,
        orphans: OrphanClaimer::new(context.clone(), guard.clone()),
        caught_up: false,
    };
    let settler = Settler {
        context: context.clone(),
        guard: guard.clone(),
        in_flight: in_flight.clone(),
        settlements: to_settle,
        triggers: triggers.clone(),
        written,
        waiting: Settlements::new(),
    };

    let handlers = AbortOnDropHandle::new(tokio::spawn(dispatcher.run()));
    let settled = CancellationToken::new();
    let settle = async {
        settler.run().await;
        settled.cancel();
    };
    let clock = clock.run(context, guard);
    tokio::join!(clock, fetcher.run(), settle, maintenance::run(context, guard, triggers, &settled));
    if guard.lost().is_cancelled() && !guard.is_dropped() {
        tell(context, guard, Change::LeaseLost);
        // Now, and not when slow handlers have ended: who takes the partition over next is not to be misled.
        withdraw_end(context, guard.lease()).await;
    }
    // On a shutdown this has ended already. After a loss the handler may end what it does (its say comes too late),
    // but it cannot keep this partition from being worked on again for ever.
    match tokio::time::timeout(context.shutdown_timeout(), handlers).await {
        Ok(Ok(())) => {}
        // Handlers' own panics are caught: this one is ours.
        Ok(Err(error)) => tracing::error!(%error, "the dispatch loop ended abnormally"),
        Err(_) if guard.lost().is_cancelled() => {
            tracing::warn!("a handler did not end after its lease was lost and is given up");
        }
        // Told already, by who gave them up.
        Err(_) => tracing::debug!("a handler is given up"),
    }
}

/// Lets the group go on elsewhere, which gives the lease back. Nobody works on the partition meanwhile.
async fn sought(
    context: &Subscription,
    guard: &LeaseGuard,
    in_flight: &InFlight,
    start: Start,
) -> Result<()> {
    let (lease, log) = (guard.lease(), &context.backend.log);
    let sought = match log.seek(lease, start).await {
        Err(error) if error.kind() == ErrorKind::GroupMissing => {
            restore_group(context, guard, in_flight, &error).await?;
            log.seek(lease, start).await
        }
        sought => sought,
    };
    match &sought {
        Ok(()) => tracing::info!(resource = %lease.resource, ?start, "sought"),
        Err(error) if error.kind() == ErrorKind::Fenced => guard.lose(),
        Err(_) => {}
    }
    sought
}

/// Gives a lease back.
pub(in crate::consumer) async fn release(context: &Context, lease: &Lease) {
    let (leases, released) = (context.backend.leases.clone(), lease.clone());
    let release = context.control.call(async move { leases.release(&released).await });
    match tokio::time::timeout(RELEASE_TIMEOUT, release).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the lease could not be given back, it will run out"),
        Err(_) => tracing::warn!("giving the lease back took too long, it will run out"),
    }
}

/// Takes back that this owner counts as ended: it lost its lease to a cut or a pause, and lives.
async fn withdraw_end(context: &Context, lease: &Lease) {
    for _ in 0..WITHDRAWALS {
        let (leases, lost) = (context.backend.leases.clone(), lease.clone());
        let request = context.control.call(async move { leases.withdraw_end(&lost).await });
        match within(context.patience(), request).await {
            Ok(()) => return,
            Err(error) if error.is_transient() => {
                tracing::debug!(%error, "the end of this owner is not withdrawn yet");
                tokio::time::sleep(context.patience()).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the end of this owner stays counted, although it lives");
                return;
            }
        }
    }
    tracing::warn!(resource = %lease.resource, "the end of this owner stays counted, although it lives");
}

#[derive(Clone, Copy)]
enum Change {
    Assigned,
    Revoked,
    LeaseLost,
}

fn tell(context: &Context, guard: &LeaseGuard, change: Change) {
    let lease = guard.lease();
    let epoch = lease.epoch;
    let Ok((topic_partition, group)) = lease.partition() else { return };
    let event = match change {
        Change::Assigned => {
            tracing::info!(%topic_partition, %group, epoch, "partition assigned");
            Event::Assigned { topic_partition, group, epoch }
        }
        Change::Revoked => {
            tracing::info!(%topic_partition, %group, epoch, "partition given back");
            Event::Revoked { topic_partition, group, epoch }
        }
        Change::LeaseLost => {
            tracing::warn!(%topic_partition, %group, epoch, "lease lost");
            Event::LeaseLost { topic_partition, group, epoch }
        }
    };
    context.observer.observe(&event);
}
