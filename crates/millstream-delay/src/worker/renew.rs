//! Renewing claims while tasks are worked on, and telling those whose claims cannot be relied on any more.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::Shard;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use tokio::time::Instant;

use super::context::Context;
use super::held::OfShard;
use millstream_loops::{Scope, catch_panic};

/// The most claims in one request.
const MAX_BATCH: usize = 100;

/// Renews the claims of a worker, all of a shard in one request, three times per hold. It asks for nothing while nothing
/// is held.
pub(super) async fn run(context: Arc<Context>) {
    let monitor = context.loops.monitor("extend", Scope::Queue);
    let every = context.config.hold / 3;
    loop {
        let changed = context.held.changed();
        if context.held.len() == 0 {
            changed.await;
            continue;
        }
        monitor.begin_round(every);
        // By this clock: after a suspension it is late already, and does not wait any longer.
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

/// Renews all claims once. One shard that fails does not keep the others from it.
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
        let extended = context.backend.tasks.extend(shard, claims, context.config.hold, begun).await?;
        // A worker without room claims nothing: this is how it knows that the server was not away.
        context.heard.answered(shard.shard, sent, &extended.server, extended.now);
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

/// Cancels what could not be renewed by its deadline, without asking anybody.
pub(super) async fn expire(context: Arc<Context>) {
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
            // What was renewed meanwhile has a later deadline; what was not is cancelled, and not looked at again.
        }
        // While there is something that can run out, what comes later runs out later.
        () = changed, if earliest.is_none() => {}
    }
    Ok(())
}

/// Tells observers of claims that are not ours any more.
pub(super) fn tell(context: &Context, shard: &Shard, tasks: usize) {
    if tasks > 0 {
        tracing::warn!(%shard, tasks, "claims ran out while tasks were worked on: others may have them");
        context.observer.observe(&Event::ClaimsLost { shard, tasks });
    }
}
