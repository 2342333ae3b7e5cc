//! `millstream retries`: failed messages of a group that wait for their next attempt.

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::admin::{Failed as Item, ShelfAction, ShelfFilter};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::group::GroupOf;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::errors::ErrorsView;
use crate::commands::shared::failures::Failed;
use crate::commands::shared::watch::WatchArgs;
use crate::commands::shelf::change::{Changed, change};
use crate::commands::shelf::read::{errors, first};
use crate::commands::shelf::view::RetryView;
use crate::commands::shelf::{Chosen, Kind, Opened, RetriesWanted};
use crate::commands::{DryRun, Running};
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, parse};

/// Lists messages that wait for a retry, makes them due now, or gives them up
///
/// A message that a group failed to handle waits until its retry is due, and then returns to this group only. Until
/// then it is neither pending nor dead.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries list orders billing
  millstream retries now orders billing --error 'connection refused'
  millstream retries kill orders billing 1700000000000-0")]
pub(crate) struct Retries {
    #[command(subcommand)]
    what: RetriesCommand,
}

#[derive(Debug, Subcommand)]
enum RetriesCommand {
    List(RetriesList),
    Errors(RetriesErrors),
    Now(Now),
    Kill(Kill),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("retries list", of::<RetriesView<RetryView<'static>>>()),
    ("retries errors", of::<ErrorsView<RetriesExample>>()),
    ("retries now", of::<Changed<RetryView<'static>>>()),
    ("retries kill", of::<Changed<RetryView<'static>>>()),
];

impl Retries {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            RetriesCommand::List(it) => Box::pin(it.run(cx)),
            RetriesCommand::Errors(it) => Box::pin(it.run(cx)),
            RetriesCommand::Now(it) => Box::pin(it.chosen.change(cx, ShelfAction::Retry)),
            RetriesCommand::Kill(it) => Box::pin(it.chosen.change(cx, ShelfAction::Drop)),
        }
    }
}

/// Retries of a group
#[derive(Args, Debug)]
struct RetriesOf {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    wanted: RetriesWanted,
}

impl RetriesOf {
    async fn open(&self, cx: &Context) -> Result<(Opened, ShelfFilter)> {
        let filter = self.wanted.filter(cx).await?;
        Ok((Opened::group(cx, Kind::Retries, &self.of, &filter).await?, filter))
    }
}

/// Lists waiting messages in the order of their due times
///
/// Shows the number of the next attempt and the error of the last one. Consumers of the group move due messages to
/// its retry log and read them from there; until then they are shown as `due`, and so are replayed letters. In JSON `state` is
/// `parked`, or `ready` in the retry log.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries list orders billing
  millstream retries list orders billing --error 'connection refused' --limit 20
  millstream retries list orders billing --json | jq -r '.data.retries[].id'")]
struct RetriesList {
    #[command(flatten)]
    of: RetriesOf,
    /// Maximum number of messages
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = parse::limit)]
    limit: usize,
    #[command(flatten)]
    watch: WatchArgs,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RetriesView<V> {
    topic: String,
    group: String,
    /// The number of waiting messages, including those that are due and not delivered yet, whatever the filter; `null` if it
    /// is unknown.
    total: Option<u64>,
    retries: Vec<V>,
    /// The parts that could not be read.
    errors: Vec<Failed>,
}

impl RetriesList {
    async fn run(self, cx: &Context) -> Result<Exit> {
        self.watch.run(cx, || Box::pin(self.show(cx))).await
    }

    async fn show(&self, cx: &Context) -> Result<Exit> {
        let (limit, GroupOf { topic, group }) = (self.limit, &self.of.of);
        let (opened, filter) = self.of.open(cx).await?;
        let is_filtered = !filter.is_empty();
        let waiting = cx.admin().waiting_retries(topic, group, if is_filtered { 0 } else { limit }).await?;
        let (mut due, mut some, mut more) = (Vec::new(), Vec::new(), false);
        if is_filtered {
            opened
                .shelf
                .ready_retries(&filter, |it| {
                    due.extend(it.retry());
                    due.len() < limit
                })
                .await?;
            (some, more) = first(&opened, &filter, limit - due.len()).await?;
            more |= due.len() == limit;
        }
        let waiting_now = waiting.retries.iter().map(|it| RetryView::of(&it.retry, it.ready));
        let due = due.iter().map(|it| RetryView::of(it, true));
        let retries = waiting_now.chain(due).chain(some.iter().filter_map(|it| match it {
            Item::Retry(it) => Some(RetryView::of(it, false)),
            _ => None,
        }));
        let (topic, group) = (topic.to_string(), group.to_string());
        let errors = waiting.errors.iter().map(|it| Failed::in_group(&topic, &group, &it.error));
        let (retries, errors) = (retries.collect(), errors.collect());
        let view = RetriesView { topic, group, total: waiting.total, retries, errors };
        let now = cx.now().await?;
        cx.output.show(&view, |view| RetryView::table(&view.retries, now))?;
        let shown = view.retries.len() as u64;
        if more {
            cx.output.note(&format!("the first {}; --limit shows more", human::count(shown)));
        } else if let Some(total) = view.total.filter(|total| !is_filtered && shown < *total) {
            let (shown, total) = (human::count(shown), human::count(total));
            cx.output.note(&format!("{shown} of {total}; --limit shows more"));
        }
        Failed::end(cx, &view.errors)
    }
}

/// Groups waiting messages by the errors of their last attempts, the most frequent first
///
/// Errors that differ only in numbers, ids, quoted strings, paths, addresses or times are one group, with one fingerprint:
/// `list`, `now` and `kill` select its messages with --fingerprint. `first` and `last` are due times. All retries are read.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries errors orders billing
  millstream retries now orders billing --fingerprint 8f3c0a51d27be694")]
struct RetriesErrors {
    #[command(flatten)]
    of: RetriesOf,
    /// Maximum number of groups to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse::limit)]
    limit: usize,
}

/// The message with an error that is due last.
#[derive(Debug, Serialize, JsonSchema)]
struct RetriesExample {
    partition: u32,
    id: String,
}

impl RetriesErrors {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (opened, filter) = self.of.open(cx).await?;
        errors(cx, &opened, &filter, self.limit, |it| RetriesExample {
            partition: it.partition.0,
            id: it.id.to_string(),
        })
        .await
    }
}

/// Makes waiting messages due now: the consumers of the group handle them behind the messages that they have read ahead
///
/// Those that are due already are left as they are, and counted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries now orders billing 1700000000000-0
  millstream retries now orders billing --error 'connection refused' --dry-run
  millstream retries now orders billing --all --yes")]
struct Now {
    #[command(flatten)]
    chosen: RetriesChosen,
}

/// Gives waiting messages up: they become dead letters with the reason `killed`
///
/// They keep the error of their last attempt, and can be replayed as other dead letters can. Those that are due already are read
/// next, and cannot be given up here: they are skipped, and the exit code is 1.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries kill orders billing 1700000000000-0
  millstream retries kill orders billing --fingerprint 8f3c0a51d27be694 --dry-run
  millstream retries kill orders billing --min-attempt 8")]
struct Kill {
    #[command(flatten)]
    chosen: RetriesChosen,
}

/// Selection of retries
#[derive(Args, Debug)]
struct RetriesChosen {
    #[command(flatten)]
    of: RetriesOf,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    dry: DryRun,
}

impl RetriesChosen {
    async fn change(self, cx: &Context, action: ShelfAction) -> Result<Exit> {
        let (opened, filter) = self.of.open(cx).await?;
        change(cx, &opened, (&self.chosen, filter), action, self.dry).await
    }
}
