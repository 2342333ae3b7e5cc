//! Renews claims while tasks are worked on, and cancels the tasks whose claims are no longer certain.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::Shard;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use tokio::time::Instant;

use crate::worker::claims::held::OfShard;
use crate::worker::context::Context;
use millstream_loops::{Scope, catch_panic};

/// Maximum number of claims in one request.
const MAX_BATCH: usize = 100;

/// Renews the claims of a worker three times per hold time, those of a shard in one request. It sends nothing while no
/// task is held.
pub(in crate::worker) async fn run(context: Arc<Context>) {
    let monitor = context.loops.monitor("extend", Scope::Queue);
    let every = context.config.hold / 3;
    loop {
        let changed = context.held.changed();
        if context.held.len() == 0 {
            changed.await;
            continue;
        }
        monitor.begin_round(every);
        // Measured by the lease clock: after a suspension of the machine the renewal is already late, and must not wait
        // any longer.
        let clock = &context.held.clock;
        clock.sleep_until(clock.now() + every).await;
        while let Err(error) = catch_panic(run_once(&context)).await {
            let pause = monitor.failed(&error, &*context.observer);
            tokio::time::sleep(pause.min(context.config.hold / 10)).await;
            monitor.begin_round(Duration::ZERO);
        }
        monitor.succeeded(&*context.observer);
    }
}

/// Renews all claims once. A shard that fails does not prevent the others from being renewed.
async fn run_once(context: &Context) -> Result<()> {
    let shards = context.shards.iter().map(|shard| renew(context, shard));
    join_all(shards).await.into_iter().collect()
}

async fn renew(context: &Context, shard: &Shard) -> Result<()> {
    let [adopted, others] = [true, false].map(|adopted| context.held.of_shard(shard.shard, adopted));
    extend(context, shard, &adopted, true).await?;
    extend(context, shard, &others, false).await
}

async fn extend(context: &Context, shard: &Shard, of_shard: &OfShard, begun: bool) -> Result<()> {
    let OfShard { jobs, claims } = of_shard;
    for (jobs, claims) in jobs.chunks(MAX_BATCH).zip(claims.chunks(MAX_BATCH)) {
        let (asked, sent) = (context.held.clock.now(), Instant::now());
        let extended = context.backend.tasks()?.extend(shard, claims, context.config.hold, begun).await?;
        // A worker without free capacity sends no claims: the answers to renewals are its evidence that the server was
        // reachable.
        context.answers.answered(shard.shard, sent, &extended.server, extended.now);
        let ours = extended.ours;
        if ours.len() != claims.len() {
            let why = format!("{} answers to {} renewals", ours.len(), claims.len());
            return Err(Error::new(ErrorKind::Protocol, why));
        }
        let mut lost = 0;
        for ((job, (_, token)), ours) in jobs.iter().zip(claims).zip(ours) {
            if ours {
                context.held.renewed(*job, token, asked);
            } else if context.held.lost(*job, token) {
                lost += 1;
            }
        }
        tell(context, shard, lost);
    }
    Ok(())
}

/// Cancels claims that were not renewed by their deadline, without a request to the server.
pub(in crate::worker) async fn expire(context: Arc<Context>) {
    let monitor = context.loops.monitor("expire", Scope::Queue);
    loop {
        match catch_panic(expire_once(&context)).await {
            Ok(()) => monitor.succeeded(&*context.observer),
            Err(error) => tokio::time::sleep(monitor.failed(&error, &*context.observer)).await,
        }
    }
}

async fn expire_once(context: &Context) -> Result<()> {
    let changed = context.held.changed();
    let earliest = context.held.earliest();
    let over = async {
        match earliest {
            Some(earliest) => context.held.clock.sleep_until(earliest).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = over => {
            for (shard, tasks) in context.held.expire() {
                if let Some(shard) = context.shards.get(shard as usize) {
                    tell(context, shard, tasks);
                }
            }
            // A renewed claim has a later deadline by now; the others are cancelled, and are not returned again.
        }
        // If a claim exists that can run out, later claims run out after it: a change matters only while there is none.
        () = changed, if earliest.is_none() => {}
    }
    Ok(())
}

/// Reports lost claims to the log and the observer.
pub(in crate::worker) fn tell(context: &Context, shard: &Shard, tasks: usize) {
    if tasks > 0 {
        tracing::warn!(%shard, tasks, "claims expired while tasks were handled: other workers may have them");
        context.observer.observe(&Event::ClaimsLost { shard, tasks });
    }
}
