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
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    List(inspect::List),
    Show(inspect::Show),
    Count(inspect::Count),
    Errors(errors::Errors),
    Consume(consume::Consume),
    Export(file::Export),
    Import(file::Import),
    Replay(replay::Replay),
    Purge(purge::Purge),
    Trim(trim::Trim),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("dlq list", of::<inspect::Page<'static>>()),
    ("dlq show", of::<inspect::Shown<'static>>()),
    ("dlq count", of::<inspect::Counted>()),
    ("dlq errors", of::<ErrorsView<errors::Example>>()),
    ("dlq consume", of::<consume::handler::Line<'static>>()),
    ("dlq export", of::<file::Exported>()),
    ("dlq import", of::<file::Put>()),
    ("dlq replay", of::<replay::Outcome<'static>>()),
    ("dlq purge", of::<purge::Purged<'static>>()),
    ("dlq trim", of::<trim::Trimmed>()),
];

impl Dlq {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            What::List(it) => Box::pin(it.run(cx)),
            What::Show(it) => Box::pin(it.run(cx)),
            What::Count(it) => Box::pin(it.run(cx)),
            What::Errors(it) => Box::pin(it.run(cx)),
            What::Consume(it) => Box::pin(it.run(cx)),
            What::Export(it) => Box::pin(it.run(cx)),
            What::Import(it) => Box::pin(it.run(cx)),
            What::Replay(it) => Box::pin(it.run(cx)),
            What::Purge(it) => Box::pin(it.run(cx)),
            What::Trim(it) => Box::pin(it.run(cx)),
        }
    }
}
