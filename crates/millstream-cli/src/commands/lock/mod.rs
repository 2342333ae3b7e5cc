//! `millstream lock` and `millstream leader`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use millstream::admin::{LockName, LockState};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::schemas::{Table, of};
use crate::commands::{DryRun, Running};
use crate::context::{Context, to_the_end};
use crate::exit::{Exit, not_found};
use crate::human::ms;
use crate::{human, output, parse};

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
    Release(Release),
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
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = parse::limit)]
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
    ("lock release", of::<Released>()),
    ("leader show", of::<LeaderView>()),
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

/// Releases a lock by force, whoever holds it
///
/// The next client in its queue is called. The holder is not stopped: it learns of it with its next renewal, within a third
/// of its ttl. Until then two clients may work under the lock, and a store that compares fences refuses the first one. A
/// holder that died needs no release: its lock ends by its ttl.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream lock release invoice:42 --dry-run
  millstream lock release invoice:42 --fence 1767225600000 --yes")]
struct Release {
    /// The lock
    lock: LockName,
    /// Releases it only if it has this fence; otherwise the one that it has now
    #[arg(long, value_name = "N")]
    fence: Option<u64>,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Released {
    released: bool,
    dry_run: bool,
    #[serde(flatten)]
    lock: LockView,
}

impl Release {
    async fn run(self, cx: &Context) -> Result<Exit> {
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

/// Shows the leaders of elections
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream leader show scheduler")]
pub(crate) struct Leader {
    #[command(subcommand)]
    what: LeaderCommand,
}

#[derive(Debug, Subcommand)]
enum LeaderCommand {
    Show(LeaderShow),
}

/// Shows who leads an election, and how many candidates wait
///
/// The lock of the election is `leader:NAME`: `millstream lock release leader:NAME` ends the term of a leader that hangs.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream leader show scheduler
  millstream leader show scheduler --json | jq -r .data.leader")]
struct LeaderShow {
    /// The election
    election: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LeaderView {
    election: String,
    /// `null` if nobody leads.
    leader: Option<String>,
    epoch: Option<u64>,
    #[serde(flatten)]
    lock: LockView,
}

impl Leader {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let LeaderCommand::Show(LeaderShow { election }) = self.what;
        let lock = LockView::of(&cx.admin().leader(&election).await?);
        let view = LeaderView { election, leader: lock.holder.clone(), epoch: lock.fence, lock };
        cx.output.show(&view, |view| {
            let lock = LockView { lock: view.election.clone(), ..view.lock.clone() };
            lock.text("election", "leader", "epoch", "candidates")
        })?;
        Ok(Exit::Done)
    }
}

/// State of a lock.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct LockView {
    lock: String,
    /// `null` if nobody holds it.
    holder: Option<String>,
    /// The fence, or epoch, of the grant.
    fence: Option<u64>,
    /// The time until the lock ends unless it is renewed; 0 if it was not renewed in time and nobody has taken it over.
    expires_in_ms: Option<u64>,
    ttl_ms: Option<u64>,
    /// The number of clients that wait for it.
    waiting: u64,
    /// The time since the arrival of the first of them.
    first_waits_ms: Option<u64>,
}

impl LockView {
    fn of(state: &LockState) -> Self {
        let holder = state.holder.as_ref();
        Self {
            lock: state.name.to_string(),
            holder: holder.map(|it| it.owner.clone()),
            fence: holder.map(|it| it.epoch),
            expires_in_ms: holder.map(|it| ms(it.expires_in)),
            ttl_ms: holder.map(|_| ms(state.ttl)),
            waiting: state.waiting,
            first_waits_ms: state.first_waits.map(ms),
        }
    }

    fn table(locks: &[Self]) -> String {
        let rows = locks.iter().map(|lock| {
            [
                lock.lock.clone(),
                human::or_none(lock.holder.as_deref(), str::to_owned),
                human::or_none(lock.fence, |fence| fence.to_string()),
                human::or_none(lock.expires_in_ms, time),
                human::count(lock.waiting),
                human::or_none(lock.first_waits_ms, time),
            ]
        });
        output::table(&["lock", "holder", ">fence", ">ends in", ">waiting", ">longest"], rows)
    }

    /// Formats it with these names for the lock, its holder, its fence, and the clients that wait.
    fn text(&self, lock: &str, holder: &str, fence: &str, waiting: &str) -> String {
        let longest = self.first_waits_ms.map(|ms| format!(", the first for {}", time(ms)));
        output::list([
            (lock, self.lock.clone()),
            (holder, human::or_none(self.holder.as_deref(), str::to_owned)),
            (fence, human::or_none(self.fence, |fence| fence.to_string())),
            ("ends in", human::or_none(self.expires_in_ms, time)),
            ("ttl", human::or_none(self.ttl_ms, time)),
            (waiting, human::count(self.waiting) + &longest.unwrap_or_default()),
        ])
    }
}

fn time(ms: u64) -> String {
    human::duration(Duration::from_millis(ms))
}
