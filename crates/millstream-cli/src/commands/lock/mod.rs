//! `millstream lock` and `millstream leader`.

pub(super) mod leader;
mod release;
mod view;

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::admin::LockName;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::Running;
use crate::commands::lock::view::LockView;
use crate::commands::schemas::{Table, of};
use crate::context::Context;
use crate::exit::Exit;
use crate::human;

/// Locks that are read in one request.
const PAGE: usize = 1_000;

/// Lists, shows and releases locks
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream lock list --prefix invoice:
  millstream lock show invoice:42
  millstream lock release invoice:42 --dry-run")]
pub(crate) struct Lock {
    #[command(subcommand)]
    what: LockCommand,
}

#[derive(Debug, Subcommand)]
enum LockCommand {
    List(LockList),
    Show(LockShow),
    Release(release::Release),
}

/// Lists the locks that are held or waited for, and their holders
///
/// The lock of the election `NAME` is `leader:NAME`. A lock whose holder has not renewed it in time ends in `0s`: it is
/// kept until another client takes it over.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream lock list
  millstream lock list --json | jq '.data.locks[] | select(.waiting > 10)'")]
struct LockList {
    /// Shows only locks whose names begin so
    #[arg(long, default_value = "", value_name = "TEXT")]
    prefix: String,
    /// Maximum number of locks
    #[arg(long, default_value_t = 100, value_name = "N")]
    limit: usize,
}

/// Shows who holds a lock, and how many wait for it
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream lock show invoice:42
  millstream lock show invoice:42 --json | jq .data.fence")]
struct LockShow {
    /// The lock
    lock: LockName,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LockListed {
    locks: Vec<LockView>,
    /// Whether there are more locks than the limit.
    cut: bool,
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("lock list", of::<LockListed>()),
    ("lock show", of::<LockView>()),
    ("lock release", of::<release::Released>()),
    ("leader show", of::<leader::LeaderView>()),
];

impl Lock {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            LockCommand::List(it) => Box::pin(it.run(cx)),
            LockCommand::Show(it) => Box::pin(it.run(cx)),
            LockCommand::Release(it) => Box::pin(it.run(cx)),
        }
    }
}

impl LockList {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, mut from) = (cx.admin(), None);
        let (mut locks, mut cut) = (Vec::new(), false);
        loop {
            let page = admin.locks(from.as_ref(), PAGE).await?;
            let wanted = page.locks.iter().filter(|lock| lock.name.as_str().starts_with(&self.prefix));
            locks.extend(wanted.map(LockView::of));
            // One that is in two parts of the list is shown once.
            locks.sort_by(|one: &LockView, other| one.lock.cmp(&other.lock));
            locks.dedup_by(|one, other| one.lock == other.lock);
            from = page.next;
            if locks.len() > self.limit {
                cut = true;
                locks.truncate(self.limit);
            }
            if from.is_none() || cut {
                break;
            }
        }
        let listed = LockListed { locks, cut };
        cx.output.show(&listed, |listed| match listed.locks.is_empty() {
            true => "no locks are held or waited for".to_owned(),
            false => LockView::table(&listed.locks),
        })?;
        if cut {
            let shown = human::of(listed.locks.len() as u64, "lock", "locks");
            cx.output.note(&format!("{shown} of more; --limit shows more, --prefix fewer"));
        }
        Ok(Exit::Done)
    }
}

impl LockShow {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let view = LockView::of(&cx.admin().lock(&self.lock).await?);
        cx.output.show(&view, |view| view.text("lock", "holder", "fence", "waiting"))?;
        Ok(Exit::Done)
    }
}
