//! The shared mode: more consumers than partitions, each entry in the hands of one, no order.
//!
//! ```text
//! fetch ──items──▶ dispatch ──says──▶ settle
//!   ▲       ▲                           │
//!   │     claim                         │
//!   └──────────── room in flight ◀────────┘      extend: all that is in flight, on the control thread
//! ```
//!
//! Everybody reads all partitions, under a name of its own. What a consumer has, in a handler or ready for one, it
//! extends three times per ttl; past its own deadline without an answer it starts nothing and tells its handlers.
//! Partitions are assigned and leased as usual, but for their upkeep only.

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

/// What handlers get to be dropped in when the time for ending is over, and settlements to be sent.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// What the loops of this mode share.
struct Sharer {
    context: Arc<Subscription>,
    seat: Arc<SharedMember>,
    in_flight: Arc<SharedInFlight>,
    /// How many handlers run at once.
    at_once: usize,
}

/// Works until the consumer stops, and lets the handlers that have started end.
pub(in crate::consumer) async fn run(context: Arc<Subscription>) {
    let member = Member::new(context.member.clone(), context.incarnation.clone(), context.config.lease_ttl);
    let seat = Arc::new(SharedMember {
        topic: context.topic.name.clone(),
        group: context.group.clone(),
        consumer: consumer_of(&member),
    });
    let at_once = match context.config.concurrency {
        Concurrency::Unordered(at_once) => at_once,
        _ => 1,
    };
    let (ttl, clock) = (context.config.lease_ttl, context.lease_clock.clone());
    let in_flight = Arc::new(SharedInFlight::new(context.config.prefetch, at_once, ttl, clock));
    let in_hand = in_flight.clone();
    context.status.shares(&context.topic.name, Box::new(move || in_hand.len()));
    let sharer = Arc::new(Sharer { context: context.clone(), seat, in_flight: in_flight.clone(), at_once });

    let (items, to_dispatch) = mpsc::unbounded_channel();
    let (says, to_settle) = mpsc::unbounded_channel();
    let (grown, partitions) = watch::channel(context.topic.partitions);
    let _extends = context.control.spawn(Extender::new(sharer.clone()).run());
    let fetcher = Fetcher::new(sharer.clone(), partitions, items.clone(), says.clone());
    let claimer = Claimer::new(sharer.clone(), grown, items, says.clone());
    let dispatcher = Dispatcher::new(sharer.clone(), to_dispatch, says);
    // On a task of its own, so that a handler that blocks does not keep the rest from working.
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

/// Some time after handlers were given up.
async fn killed(context: &Subscription) {
    context.kill.cancelled().await;
    sleep(KILL_TIMEOUT).await;
    tracing::error!("a handler blocks its thread and cannot be given up: left behind");
}

async fn ended(task: AbortOnDropHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!(%error, "a loop of a shared consumer ended abnormally");
    }
}
