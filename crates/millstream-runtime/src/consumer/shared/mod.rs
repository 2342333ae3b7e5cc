//! Shared mode: for more consumers than partitions. Each entry is claimed by one consumer; there is no order.
//!
//! ```text
//! fetch ──items──▶ dispatch ──outcomes──▶ settle
//!   ▲       ▲                                │
//!   │     claim                              │
//!   └────────────── room in flight ◀─────────┘      extend: all that is in flight, on the control thread
//! ```
//!
//! All consumers read all partitions, each under a name of its own. A consumer extends its entries, whether in a handler
//! or ready for one, three times per ttl. If there is no reply by its own deadline, it starts nothing and cancels the
//! tokens of its handlers. Partitions are assigned and leased as usual, but only for their upkeep.

mod claim;
mod dispatch;
mod extend;
mod fetch;
mod in_flight;
mod settle;
mod upkeep;
mod work;

use std::sync::Arc;
use std::time::Duration;

use millstream_core::members::Member;
use millstream_core::shared::{SharedMember, consumer_of};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

pub(in crate::consumer) use in_flight::EntryLease;
pub(in crate::consumer) use upkeep::run as tend;

use crate::consumer::Concurrency;
use crate::consumer::context::Subscription;
use crate::report::Counts;
use claim::Claimer;
use dispatch::Dispatcher;
use extend::Extender;
use fetch::Fetcher;
use in_flight::SharedInFlight;
use settle::Settler;

/// How long handlers may take to be dropped after the shutdown timeout, and settlements to be sent.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// State shared by the loops of this mode.
struct Sharer {
    context: Arc<Subscription>,
    member: Arc<SharedMember>,
    in_flight: Arc<SharedInFlight>,
    /// Number of handlers that run at once.
    at_once: usize,
}

/// Works until the consumer stops; then waits for the handlers that have started.
pub(in crate::consumer) async fn run(context: Arc<Subscription>) {
    let group_member =
        Member::new(context.member.clone(), context.incarnation.clone(), context.config.lease_ttl);
    let (topic, group) = (context.topic.name.clone(), context.group.clone());
    let member = Arc::new(SharedMember::new(topic, group, consumer_of(&group_member)));
    let at_once = match context.config.concurrency {
        Concurrency::Unordered(at_once) => at_once,
        _ => 1,
    };
    let (ttl, clock) = (context.config.lease_ttl, context.lease_clock.clone());
    let in_flight = Arc::new(SharedInFlight::new(context.config.prefetch, at_once, ttl, clock));
    let in_hand = in_flight.clone();
    context.status.shares(&context.topic.name, Box::new(move || in_hand.len()));
    let sharer = Arc::new(Sharer { context: context.clone(), member, in_flight: in_flight.clone(), at_once });

    let (items, to_dispatch) = mpsc::unbounded_channel();
    let (settlements, to_settle) = mpsc::unbounded_channel();
    let (grown, partitions) = watch::channel(context.topic.partitions);
    let _extends = context.control.spawn(Extender::new(sharer.clone()).run());
    let fetcher = Fetcher::new(sharer.clone(), partitions, items.clone(), settlements.clone());
    let claimer = Claimer::new(sharer.clone(), grown, items, settlements.clone());
    let dispatcher = Dispatcher::new(sharer.clone(), to_dispatch, settlements);
    // On tasks of their own, so that a handler that blocks does not stop the other loops.
    let settler = AbortOnDropHandle::new(tokio::spawn(Settler::new(sharer, to_settle).run()));
    let handlers = AbortOnDropHandle::new(tokio::spawn(dispatcher.run()));
    let kill = async {
        context.stop.cancelled().await;
        sleep(context.shutdown_timeout()).await;
        context.give_up(context.shutdown_timeout());
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        _ = async { tokio::join!(fetcher.run(), claimer.run(), ended(handlers), ended(settler)) } => {}
        () = kill => {}
        () = killed(&context) => {}
    }
    Counts::add(&context.counts.handed_back, in_flight.len());
}

/// Returns some time after handlers were given up.
async fn killed(context: &Subscription) {
    context.kill.cancelled().await;
    sleep(KILL_TIMEOUT).await;
    tracing::error!("a handler blocks its thread and cannot be aborted: it keeps running");
}

async fn ended(task: AbortOnDropHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!(%error, "a loop of a shared consumer ended abnormally");
    }
}
