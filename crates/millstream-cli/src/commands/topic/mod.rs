//! `millstream topic`: topics as a whole.

mod change;
mod delete;
mod inspect;
mod train;
mod trim;

use clap::{Args, Subcommand};

use crate::commands::Running;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::failures::Listed;
use crate::commands::shared::view::TopicView;
use crate::context::Context;

/// Lists, describes, creates, changes, trims and deletes topics, and trains dictionaries of packed ones
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic list
  millstream topic create orders --partitions 8 --retention consumed-after:7d
  millstream topic describe orders")]
pub(crate) struct TopicArgs {
    #[command(subcommand)]
    what: TopicCommand,
}

#[derive(Debug, Subcommand)]
enum TopicCommand {
    List(inspect::TopicList),
    Describe(inspect::TopicDescribe),
    Create(change::TopicCreate),
    Alter(change::TopicAlter),
    Expand(change::Expand),
    Trim(trim::Trim),
    Train(train::Train),
    Delete(delete::Delete),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("topic list", of::<Vec<Listed<TopicView>>>()),
    ("topic describe", of::<inspect::TopicInspectView>()),
    ("topic create", of::<change::Changed>()),
    ("topic alter", of::<change::Changed>()),
    ("topic expand", of::<change::Changed>()),
    ("topic trim", of::<trim::TopicTrimOutcome>()),
    ("topic train", of::<train::TopicOutcome>()),
    ("topic delete", of::<delete::TopicDeleteView>()),
];

impl TopicArgs {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            TopicCommand::List(it) => Box::pin(it.run(cx)),
            TopicCommand::Describe(it) => Box::pin(it.run(cx)),
            TopicCommand::Create(it) => Box::pin(it.run(cx)),
            TopicCommand::Alter(it) => Box::pin(it.run(cx)),
            TopicCommand::Expand(it) => Box::pin(it.run(cx)),
            TopicCommand::Trim(it) => Box::pin(it.run(cx)),
            TopicCommand::Train(it) => Box::pin(it.run(cx)),
            TopicCommand::Delete(it) => Box::pin(it.run(cx)),
        }
    }
}
