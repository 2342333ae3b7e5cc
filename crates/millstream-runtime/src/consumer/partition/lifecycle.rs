//! The life of one owned partition, from the grant of its lease to its end: sessions of a worker, and seeks between them.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::panics::text_of;
use millstream_core::{Lease, Start};
use tokio::sync::oneshot;

use crate::consumer::Sharing;
use crate::consumer::context::{Context, Subscription};
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::group::membership::within;
use crate::consumer::group::restore::restore_group;
use crate::consumer::maintenance::{self, Triggers};
use crate::consumer::partition::hooks::{Moment, tell};
use crate::consumer::partition::in_flight::{InFlight, InFlightGauge};
use crate::consumer::partition::upkeep;
use crate::consumer::partition::worker::PartitionWorker;
use crate::consumer::status::{Seek, Seeks};

/// Maximum time for releasing a lease; an unreleased lease ends by itself after its ttl.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of attempts to withdraw an end. If all fail, the next owners handle the pending messages more carefully than
/// necessary.
const WITHDRAWALS: usize = 5;

/// What the ownership loop does after a worker has ended.
pub(in crate::consumer) enum SessionEnded {
    /// Nothing further.
    Over,
    /// The lease was released, and the partition is to be acquired again at once, with a new token.
    Anew(Option<CompletedSeek>),
}

/// A completed seek. It is answered only when a worker runs on the partition again, so that a following seek finds it.
pub(in crate::consumer) struct CompletedSeek {
    pub(in crate::consumer) answer: oneshot::Sender<Result<()>>,
    /// Seeks that were requested meanwhile.
    waiting: Vec<Seek>,
}

impl CompletedSeek {
    /// Reports success, whichever instance owns the partition now. Drops the seeks that wait behind it without an answer.
    pub(in crate::consumer) fn answer(self) {
        // The caller may have stopped waiting.
        let _ = self.answer.send(Ok(()));
    }
}

/// Works on one partition until the consumer stops, the lease is lost, or it is released to be acquired again.
pub(in crate::consumer) async fn run(
    context: Arc<Subscription>,
    guard: Arc<LeaseGuard>,
    moved: Option<CompletedSeek>,
) -> SessionEnded {
    emit(&context, &guard, Change::Assigned);
    if context.config.sharing == Sharing::Shared {
        upkeep::run(&context, &guard).await;
        if guard.lost().is_cancelled() {
            lost(&context, &guard).await;
            return SessionEnded::Over;
        }
        release(&context, guard.lease()).await;
        emit(&context, &guard, Change::Revoked);
        return SessionEnded::Over;
    }
    let mut worked = Worked::nothing(&context);
    let gauge = Arc::<InFlightGauge>::default();
    let (entry, mut seeks) =
        context.status.works_on(guard.topic_partition(), guard.lease().epoch, gauge.clone());
    let mut next: Seeks = VecDeque::new();
    if let Some(mut moved) = moved {
        next.extend(std::mem::take(&mut moved.waiting));
        moved.answer();
    }
    tell(&context, &guard, Moment::Acquired).await;
    let mut triggers;
    loop {
        // A session can be ended for a seek while the lease goes on.
        let session = Arc::new(guard.session());
        triggers = Arc::new(Triggers::new(&context.upkeep));
        let seek = if let Some(seek) = next.pop_front() {
            Some(seek)
        } else {
            let work = work(&context, &session, &gauge, &triggers);
            tokio::pin!(work);
            let seek = tokio::select! {
                biased;
                ended = &mut work => {
                    worked = ended;
                    break;
                }
                // Never `None`: the entry keeps the sender.
                seek = seeks.recv() => seek,
            };
            session.revoke();
            worked = work.await;
            seek
        };
        if guard.revoked().is_cancelled() || guard.lost().is_cancelled() {
            break;
        }
        if let Some(Seek { start, answer }) = seek {
            tell(&context, &guard, Moment::BeforeRelease).await;
            match run_seek(&context, &guard, &worked.in_flight, start).await {
                Ok(()) => {
                    // The lease ends here, so requests that arrived meanwhile are passed on to the next worker of the
                    // partition.
                    seeks.close();
                    next.extend(std::iter::from_fn(|| seeks.try_recv().ok()));
                    drop(entry);
                    emit(&context, &guard, Change::Revoked);
                    return SessionEnded::Anew(Some(CompletedSeek { answer, waiting: next.into() }));
                }
                // The caller may have stopped waiting.
                Err(error) => {
                    drop(answer.send(Err(error)));
                    tell(&context, &guard, Moment::Acquired).await;
                }
            }
        }
        worked = Worked::nothing(&context);
    }
    drop(entry);
    let Worked { in_flight, is_loss_reported } = worked;
    context.hand_back(in_flight.unsettled());
    if !guard.is_dropped() {
        if !guard.lost().is_cancelled() {
            maintenance::finish(&context, &guard, &triggers).await;
            tell(&context, &guard, Moment::BeforeRelease).await;
        }
        if guard.lost().is_cancelled() {
            // It may have been lost behind the session: while seeks were done, or in the last upkeep.
            if !is_loss_reported {
                lost(&context, &guard).await;
            }
            return SessionEnded::Over;
        }
    } else {
        tell(&context, &guard, Moment::AfterLoss).await;
    }
    let lease = guard.lease();
    // The ends before ours stay recorded for the next owner unless every message that was pending then is settled.
    let ends = if in_flight.is_cleared() { Vec::new() } else { lease.ends.clone() };
    release(&context, &lease.clone().after_ends(ends)).await;
    emit(&context, &guard, Change::Revoked);
    if guard.is_dropped() { SessionEnded::Anew(None) } else { SessionEnded::Over }
}

/// Result of a session.
struct Worked {
    /// What is known of messages in flight.
    in_flight: InFlight,
    /// Whether the session has [reported](lost) that the lease is lost.
    is_loss_reported: bool,
}

impl Worked {
    fn nothing(context: &Subscription) -> Self {
        Self { in_flight: context.in_flight(), is_loss_reported: false }
    }
}

/// Works on one partition until the session ends.
async fn work(
    context: &Arc<Subscription>,
    guard: &Arc<LeaseGuard>,
    gauge: &Arc<InFlightGauge>,
    triggers: &Arc<Triggers>,
) -> Worked {
    let mut worker = PartitionWorker::of_lease(context, guard, gauge, triggers);
    let mut is_loss_reported = false;
    // Panics of user code are caught where it is called, so this one is a defect of ours. The partition must not hang then,
    // but be released and acquired again.
    if let Err(panic) = AssertUnwindSafe(worker.run()).catch_unwind().await {
        tracing::error!(panic = text_of(panic), "the worker of a partition ended abnormally");
        guard.revoke();
    } else if guard.lost().is_cancelled() {
        if !guard.is_dropped() {
            // Before waiting for slow handlers: the next owner must not count an end of an owner that is alive.
            lost(context, guard).await;
            is_loss_reported = true;
        }
        // A handler may finish, but it must not prevent this instance from working on the partition again.
        worker.wait_for_handlers(context.handlers_timeout()).await;
    }
    Worked { in_flight: worker.in_flight(), is_loss_reported }
}

/// Moves the group's position, which releases the lease. Nobody works on the partition meanwhile.
async fn run_seek(
    context: &Subscription,
    guard: &LeaseGuard,
    in_flight: &InFlight,
    start: Start,
) -> Result<()> {
    let (lease, log) = (guard.lease(), context.backend.log());
    let sought = match log.seek(lease, start).await {
        Err(error) if error.kind() == ErrorKind::GroupMissing => {
            restore_group(context, guard, in_flight.frontier(), &error).await?;
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

/// Releases a lease.
pub(in crate::consumer) async fn release(context: &Context, lease: &Lease) {
    let (leases, released) = (context.backend.leases().clone(), lease.clone());
    let release = context.control.call(async move { leases.release(&released).await });
    match tokio::time::timeout(RELEASE_TIMEOUT, release).await {
        Ok(Ok(())) => {}
        // Somebody else was granted the lease meanwhile, and may have counted an end of an owner that is alive.
        Ok(Err(error)) if error.kind() == ErrorKind::Fenced => withdraw_end(context, lease).await,
        Ok(Err(error)) => tracing::warn!(%error, "the lease could not be released; it expires by itself"),
        Err(_) => tracing::warn!("releasing the lease took too long; it expires by itself"),
    }
}

/// Reports that the lease is lost, and withdraws the end of this owner.
async fn lost(context: &Context, guard: &LeaseGuard) {
    emit(context, guard, Change::LeaseLost);
    withdraw_end(context, guard.lease()).await;
    tell(context, guard, Moment::AfterLoss).await;
}

/// Withdraws the recorded end of this owner: it lost its lease to a network cut or a pause, and is alive.
async fn withdraw_end(context: &Context, lease: &Lease) {
    for _ in 0..WITHDRAWALS {
        let (leases, lost) = (context.backend.leases().clone(), lease.clone());
        let request = context.control.call(async move { leases.withdraw_end(&lost).await });
        match within(context.request_timeout(), request).await {
            Ok(()) => return,
            Err(error) if error.is_transient() => {
                tracing::debug!(%error, "the end of this owner is not withdrawn yet");
                tokio::time::sleep(context.request_timeout()).await;
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

fn emit(context: &Context, guard: &LeaseGuard, change: Change) {
    let (topic_partition, group, epoch) = (guard.topic_partition(), guard.group(), guard.lease().epoch);
    let event = match change {
        Change::Assigned => {
            tracing::info!(%topic_partition, %group, epoch, "partition assigned");
            Event::Assigned { topic_partition, group, epoch }
        }
        Change::Revoked => {
            tracing::info!(%topic_partition, %group, epoch, "partition released");
            Event::Revoked { topic_partition, group, epoch }
        }
        Change::LeaseLost => {
            tracing::warn!(%topic_partition, %group, epoch, "lease lost");
            Event::LeaseLost { topic_partition, group, epoch }
        }
    };
    context.observer.observe(&event);
}
