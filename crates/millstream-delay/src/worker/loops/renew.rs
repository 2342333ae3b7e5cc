//! The claims of a worker, as its [`Keeper`] renews them: those of a shard in one request, nothing while no task is held.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use millstream_core::Shard;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use tokio::time::Instant;

use crate::worker::claims::held::OfShard;
use crate::worker::context::Context;
use millstream_engine::{Keeper, Kept, Rights, Scope};

/// Maximum number of claims in one request.
const MAX_BATCH: usize = 100;

/// Renews the claims of a worker, and cancels the tasks whose claims are no longer certain, until dropped.
pub(in crate::worker) async fn run(context: Arc<Context>) {
    let monitor = context.loops.monitor("extend", Scope::Queue);
    let keeper = Keeper::new(context.config.hold, context.held.clock.clone());
    keeper.run(keeper.clock().now(), &*context, &monitor, &*context.observer).await;
}

#[async_trait]
impl Rights for Context {
    /// A shard that fails does not prevent the others from being renewed.
    async fn renew(&self, asked: Instant) -> Result<Kept> {
        if self.held.len() == 0 {
            return Ok(Kept::Nothing);
        }
        let mut requests = Vec::new();
        for shard in &self.shards {
            for adopted in [true, false] {
                let OfShard { jobs, claims } = self.held.of_shard(shard.shard, adopted);
                for (jobs, claims) in jobs.chunks(MAX_BATCH).zip(claims.chunks(MAX_BATCH)) {
                    let of_shard = OfShard { jobs: jobs.to_vec(), claims: claims.to_vec() };
                    requests.push(extend(self, shard, of_shard, adopted, asked));
                }
            }
        }
        let failed = join_all(requests).await.into_iter().find_map(Result::err);
        failed.map_or(Ok(Kept::Renewed), Err)
    }

    fn witness(&self) -> &'static str {
        "claim"
    }

    async fn held(&self) {
        loop {
            let changed = self.held.changed();
            if self.held.len() > 0 {
                return;
            }
            changed.await;
        }
    }

    fn expire(&self) -> Option<Instant> {
        for (shard, tasks) in self.held.expire() {
            if let Some(shard) = self.shards.get(shard as usize) {
                tell(self, shard, tasks);
            }
        }
        // A renewed claim has a later deadline by then; those that were cancelled are not returned again.
        self.held.earliest()
    }

    /// If a claim exists that can run out, later claims run out after it, since all hold for one time: a change matters only
    /// while there is none.
    async fn sooner(&self, known: Option<Instant>) {
        if known.is_some() {
            std::future::pending::<()>().await;
        }
        loop {
            let changed = self.held.changed();
            // Claims that were given up are held, and have no deadline.
            if self.held.earliest().is_some() {
                return;
            }
            changed.await;
        }
    }
}

/// Renews claims of a shard, by a request of the time `asked`. Those that were `adopted` are reported as begun.
async fn extend(
    context: &Context,
    shard: &Shard,
    of_shard: OfShard,
    adopted: bool,
    asked: Instant,
) -> Result<()> {
    let (OfShard { jobs, claims }, sent) = (of_shard, Instant::now());
    let extended = context.backend.tasks()?.extend(shard, &claims, context.config.hold, adopted).await?;
    // A worker without free capacity sends no claims: the answers to renewals are its evidence that the server was
    // reachable.
    context.answers.answered(shard.shard, sent, &extended.server, extended.now);
    let ours = extended.ours;
    if ours.len() != claims.len() {
        let why = format!("{} answers to {} renewals", ours.len(), claims.len());
        return Err(Error::new(ErrorKind::Protocol, why));
    }
    let mut lost = 0;
    for ((job, (_, token)), ours) in jobs.into_iter().zip(&claims).zip(ours) {
        if ours {
            context.held.renewed(job, token, asked);
        } else if context.held.lost(job, token) {
            lost += 1;
        }
    }
    tell(context, shard, lost);
    Ok(())
}

/// Reports lost claims to the log and the observer.
pub(in crate::worker) fn tell(context: &Context, shard: &Shard, tasks: usize) {
    if tasks > 0 {
        tracing::warn!(%shard, tasks, "claims expired while tasks were handled: other workers may have them");
        context.observer.observe(&Event::ClaimsLost { shard, tasks });
    }
}
