//! `millstream dlq`: the dead letters of a group.

mod consume;
pub(in crate::commands) mod edit;
mod errors;
mod file;
mod inspect;
mod replay;

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::admin::{ShelfAction, ShelfFilter};

use crate::commands::group::GroupOf;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::errors::ErrorsView;
use crate::commands::shelf::change::{Changed, change};
use crate::commands::shelf::read::Exported;
use crate::commands::shelf::trim::{Trim, TrimView};
use crate::commands::shelf::view::LetterView;
use crate::commands::shelf::{Chosen, DlqWanted, Kind, Opened};
use crate::commands::{DryRun, Running};
use crate::context::Context;
use crate::exit::Exit;

/// Lists, shows, counts, groups by error, consumes, exports, imports, replays, purges and trims dead letters
///
/// A message that a group has given up is stored as a dead letter until it is replayed or purged, or dropped by the
/// retention of dead letters of its topic. All commands can run
/// beside consumers, and several times at once: each letter is replayed once.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq list orders billing --reason exhausted
  millstream dlq errors orders billing
  millstream dlq replay orders billing --fingerprint 8f3c0a51d27be694 --rate 50
  millstream dlq consume orders billing --then ask
  millstream dlq export orders billing > letters.jsonl")]
pub(crate) struct Dlq {
    #[command(subcommand)]
    what: DlqCommand,
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    List(inspect::DlqList),
    Show(inspect::DlqShow),
    Count(inspect::Count),
    Errors(errors::Errors),
    Consume(consume::DlqConsume),
    Export(file::DlqExport),
    Import(file::Import),
    Replay(replay::Replay),
    Purge(Purge),
    Trim(DlqTrim),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("dlq list", of::<inspect::DlqPage<LetterView<'static>>>()),
    ("dlq show", of::<LetterView<'static>>()),
    ("dlq count", of::<inspect::DlqCounted>()),
    ("dlq errors", of::<ErrorsView<errors::DlqExample>>()),
    ("dlq consume", of::<consume::handler::ConsumeLine<'static>>()),
    ("dlq export", of::<Exported<file::DlqLine>>()),
    ("dlq import", of::<file::Put>()),
    ("dlq replay", of::<replay::DlqOutcome<LetterView<'static>>>()),
    ("dlq purge", of::<Changed<LetterView<'static>>>()),
    ("dlq trim", of::<TrimView>()),
];

impl Dlq {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            DlqCommand::List(it) => Box::pin(it.run(cx)),
            DlqCommand::Show(it) => Box::pin(it.run(cx)),
            DlqCommand::Count(it) => Box::pin(it.run(cx)),
            DlqCommand::Errors(it) => Box::pin(it.run(cx)),
            DlqCommand::Consume(it) => Box::pin(it.run(cx)),
            DlqCommand::Export(it) => Box::pin(it.run(cx)),
            DlqCommand::Import(it) => Box::pin(it.run(cx)),
            DlqCommand::Replay(it) => Box::pin(it.run(cx)),
            DlqCommand::Purge(it) => Box::pin(it.run(cx)),
            DlqCommand::Trim(it) => Box::pin(it.run(cx)),
        }
    }
}

/// Deletes dead letters permanently
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq purge orders billing 1700000000000-0
  millstream dlq purge orders billing --until '30d ago' --dry-run
  millstream dlq purge orders billing --all --yes")]
struct Purge {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    wanted: DlqWanted,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    dry: DryRun,
}

impl Purge {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx).await?;
        let opened = Opened::group(cx, Kind::Letters, &self.of, &filter).await?;
        change(cx, &opened, (&self.chosen, filter), ShelfAction::Drop, self.dry).await
    }
}

/// Drops dead letters by age and number
///
/// The running consumers of a group apply the retention of dead letters of their topic by themselves. This command applies
/// it at once, also to a group without consumers, or applies another one. Letters that are claimed, by a consumer of dead
/// letters or a replay, are not dropped.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq trim orders billing --dry-run
  millstream dlq trim orders billing --retention age:30d,length:100000")]
struct DlqTrim {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    trim: Trim,
}

impl DlqTrim {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let opened = Opened::group(cx, Kind::Letters, &self.of, &ShelfFilter::default()).await?;
        self.trim.run(cx, &opened).await
    }
}
