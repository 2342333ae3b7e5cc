//! `lock release`.

use anyhow::{Result, bail};
use clap::Args;
use millstream::admin::LockName;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::lock::view::LockView;
use crate::context::{Context, to_the_end};
use crate::exit::{Exit, not_found};

/// Releases a lock by force, whoever holds it
///
/// The next client in its queue is called. The holder is not stopped: it learns of it with its next renewal, within a third
/// of its ttl. Until then two clients may work under the lock, and a store that compares fences refuses the first one. A
/// holder that died needs no release: its lock ends by its ttl.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream lock release invoice:42 --dry-run
  millstream lock release invoice:42 --fence 1767225600000 --yes")]
pub(super) struct Release {
    /// The lock
    lock: LockName,
    /// Releases it only if it has this fence; otherwise the one that it has now
    #[arg(long, value_name = "N")]
    fence: Option<u64>,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Released {
    released: bool,
    dry_run: bool,
    #[serde(flatten)]
    lock: LockView,
}

impl Release {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, dry_run, name) = (cx.admin(), self.dry.dry_run, &self.lock);
        let lock = LockView::of(&admin.lock(name).await?);
        let (Some(holder), Some(fence)) = (lock.holder.clone(), lock.fence) else {
            return Err(not_found(format!("lock {name} has no holder")));
        };
        if self.fence.is_some_and(|wanted| wanted != fence) {
            bail!("nothing was done: lock {name} has the fence {fence}");
        }
        let mut view = Released { released: false, dry_run, lock };
        if dry_run {
            cx.output.note("dry run: nothing was done. What would be released:");
        } else {
            if !cx.output.is_json() {
                cx.output.note(&view.lock.text("lock", "holder", "fence", "waiting"));
            }
            cx.confirm(&format!("Release lock {name}, which {holder} holds?"))?;
            view.released = to_the_end(admin.release_lock(name, fence)).await?;
            if !view.released {
                bail!("nothing was done: lock {name} has not the fence {fence} any more");
            }
        }
        cx.output.show(&view, |view| match view.released {
            true => format!("lock {name} is released; {holder} held it with the fence {fence}"),
            false => view.lock.text("lock", "holder", "fence", "waiting"),
        })?;
        Ok(Exit::Done)
    }
}
