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
pub(crate) struct Topic {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    List(inspect::List),
    Describe(inspect::Describe),
    Create(change::Create),
    Alter(change::Alter),
    Expand(change::Expand),
    Trim(trim::Trim),
    Train(train::Train),
    Delete(delete::Delete),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("topic list", of::<Vec<Listed<TopicView>>>()),
    ("topic describe", of::<inspect::View>()),
    ("topic create", of::<change::Changed>()),
    ("topic alter", of::<change::Changed>()),
    ("topic expand", of::<change::Changed>()),
    ("topic trim", of::<trim::Outcome>()),
    ("topic train", of::<train::Outcome>()),
    ("topic delete", of::<delete::View>()),
];

impl Topic {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            What::List(it) => Box::pin(it.run(cx)),
            What::Describe(it) => Box::pin(it.run(cx)),
            What::Create(it) => Box::pin(it.run(cx)),
            What::Alter(it) => Box::pin(it.run(cx)),
            What::Expand(it) => Box::pin(it.run(cx)),
            What::Trim(it) => Box::pin(it.run(cx)),
            What::Train(it) => Box::pin(it.run(cx)),
            What::Delete(it) => Box::pin(it.run(cx)),
        }
    }
}
