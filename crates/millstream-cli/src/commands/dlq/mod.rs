//! `millstream dlq`: the dead letters of a group.

mod consume;
pub(in crate::commands) mod edit;
mod errors;
mod file;
mod inspect;
mod purge;
mod replay;
mod select;
mod trim;

use clap::{Args, Subcommand};

use crate::commands::Running;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::errors::ErrorsView;
use crate::context::Context;

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
    Purge(purge::Purge),
    Trim(trim::DlqTrim),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("dlq list", of::<inspect::DlqPage<'static>>()),
    ("dlq show", of::<inspect::DlqShown<'static>>()),
    ("dlq count", of::<inspect::DlqCounted>()),
    ("dlq errors", of::<ErrorsView<errors::DlqExample>>()),
    ("dlq consume", of::<consume::handler::ConsumeLine<'static>>()),
    ("dlq export", of::<file::Exported>()),
    ("dlq import", of::<file::Put>()),
    ("dlq replay", of::<replay::DlqOutcome<'static>>()),
    ("dlq purge", of::<purge::Purged<'static>>()),
    ("dlq trim", of::<trim::DlqTrimmed>()),
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
