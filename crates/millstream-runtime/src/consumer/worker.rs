//! The worker: everything that runs for one owned partition, from the grant of its lease to its end.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Lease;
use millstream_core::event::Event;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::context::{Context, Subscription};
use super::dispatch::Dispatcher;
use super::fetch::Fetcher;
use super::guard::Guard;
use super::in_flight::InFlight;
use super::settle::Settler;
use super::upkeep::{self, Bells};
use crate::report::Counts;

/// How long giving a lease back may take; it ends by itself after its ttl.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Works on one partition until the consumer stops or the lease is lost.
///
/// ```text
/// fetch ──entries──▶ dispatch ──settlements──▶ settle ──rings──▶ upkeep
///   ▲                                            │
///   └───────────── room in flight ◀──────────────┘
/// ```
///
/// Handlers run on a task of their own, so that one that blocks does not keep the rest from working.
pub(super) async fn run(context: Arc<Subscription>, guard: Arc<Guard>) {
    tell(&context, &guard, Change::Assigned);
    let in_flight = Arc::new(InFlight::new(context.config.prefetch, context.config.max_blocked));
    let bells = Arc::new(Bells::new(&context.upkeep));
    let (entries, to_dispatch) = mpsc::unbounded_channel();
    let (settlements, to_settle) = mpsc::unbounded_channel();
    let (written, notes) = mpsc::unbounded_channel();

    let dispatcher = Dispatcher {
        context: context.clone(),
        guard: guard.clone(),
        in_flight: in_flight.clone(),
        entries: to_dispatch,
        settlements: settlements.clone(),
        written: notes,
    };
    let fetcher = Fetcher {
        context: context.clone(),
        guard: guard.clone(),
        in_flight: in_flight.clone(),
        entries,
        settlements,
        reader: None,
        caught_up: false,
    };
    let settler = Settler {
        context: context.clone(),
        guard: guard.clone(),
        in_flight: in_flight.clone(),
        settlements: to_settle,
        bells: bells.clone(),
        written,
        waiting: Vec::new(),
    };

    let handlers = AbortOnDropHandle::new(tokio::spawn(dispatcher.run()));
    let settled = CancellationToken::new();
    let settle = async {
        settler.run().await;
        settled.cancel();
    };
    tokio::join!(fetcher.run(), settle, upkeep::run(&context, &guard, &bells, &settled));
    let lost = guard.lost().is_cancelled();
    if lost {
        tell(&context, &guard, Change::LeaseLost);
    }
    // On a shutdown this has ended already. After a loss the handler may end what it does (its say comes too late),
    // but it cannot keep this partition from being worked on again for ever.
    match tokio::time::timeout(context.config.shutdown_timeout, handlers).await {
        Ok(Ok(())) => {}
        // Handlers' own panics are caught: this one is ours.
        Ok(Err(error)) => tracing::error!(%error, "the dispatch loop ended abnormally"),
        Err(_) => tracing::warn!("a handler did not end after its lease was lost and is given up"),
    }
    Counts::add(&context.counts.handed_back, in_flight.held());
    if lost {
        return;
    }
    release(&context, guard.lease()).await;
    tell(&context, &guard, Change::Revoked);
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
