//! The worker: everything that runs for one owned partition, from the grant of its lease to its end.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::{Lease, Start};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::adopt::Adopter;
use super::board::Seek;
use super::clock::Clock;
use super::context::{Context, Subscription};
use super::dispatch::Dispatcher;
use super::fetch::Fetcher;
use super::guard::Guard;
use super::in_flight::InFlight;
use super::outbox::Settlements;
use super::restore::restore_group;
use super::settle::Settler;
use super::upkeep::{self, Bells};
use super::{Sharing, shared};
use crate::report::Counts;

/// How long giving a lease back may take; it ends by itself after its ttl.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Works on one partition until the consumer stops or the lease is lost.
pub(super) async fn run(context: Arc<Subscription>, guard: Arc<Guard>) {
    let Ok((topic_partition, _)) = guard.lease().partition() else { return };
    tell(&context, &guard, Change::Assigned);
    if context.config.sharing == Sharing::Shared {
        shared::tend(&context, &guard).await;
        if guard.lost().is_cancelled() {
            return tell(&context, &guard, Change::LeaseLost);
        }
        release(&context, guard.lease()).await;
        return tell(&context, &guard, Change::Revoked);
    }
    let mut in_flight = context.in_flight();
    let (entry, mut seeks) = context.board.works_on(topic_partition, guard.lease().epoch, in_flight.clone());
    let mut bells;
    loop {
        let session = Arc::new(guard.session());
        bells = Arc::new(Bells::new(&context.upkeep));
        let seek = {
            let work = work(&context, &session, &in_flight, &bells);
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
            let sought = sought(&context, &guard, &in_flight, start).await;
            // Who asked may have gone.
            let _ = answer.send(sought);
        }
        in_flight = context.in_flight();
        entry.begins_anew(&in_flight);
    }
    drop(entry);
    Counts::add(&context.counts.handed_back, in_flight.unsettled());
    if guard.lost().is_cancelled() {
        return;
    }
    upkeep::finish(&context, &guard, &bells).await;
    if guard.lost().is_cancelled() {
        return tell(&context, &guard, Change::LeaseLost);
    }
    let lease = guard.lease();
    // What was suspected and not tried is suspected by the next owner, too.
    let suspected = lease.abandoned && !in_flight.is_cleared();
    release(&context, &lease.clone().after_abandonment(suspected)).await;
    tell(&context, &guard, Change::Revoked);
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
    guard: &Arc<Guard>,
    in_flight: &Arc<InFlight>,
    bells: &Arc<Bells>,
) {
    let clock = Arc::new(Clock::default());
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
        bells: bells.clone(),
        reader: None,
        adopter: Adopter::new(context.clone(), guard.clone()),
        caught_up: false,
    };
    let settler = Settler {
        context: context.clone(),
        guard: guard.clone(),
        in_flight: in_flight.clone(),
        settlements: to_settle,
        bells: bells.clone(),
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
    tokio::join!(clock, fetcher.run(), settle, upkeep::run(context, guard, bells, &settled));
    if guard.lost().is_cancelled() {
        tell(context, guard, Change::LeaseLost);
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

/// Lets the group go on elsewhere. Nobody works on the partition meanwhile.
async fn sought(context: &Subscription, guard: &Guard, in_flight: &InFlight, start: Start) -> Result<()> {
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
pub(super) async fn release(context: &Context, lease: &Lease) {
    let (leases, released) = (context.backend.leases.clone(), lease.clone());
    let release = context.heart.call(async move { leases.release(&released).await });
    match tokio::time::timeout(RELEASE_TIMEOUT, release).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the lease could not be given back, it will run out"),
        Err(_) => tracing::warn!("giving the lease back took too long, it will run out"),
    }
}

#[derive(Clone, Copy)]
enum Change {
    Assigned,
    Revoked,
    LeaseLost,
}

fn tell(context: &Context, guard: &Guard, change: Change) {
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
