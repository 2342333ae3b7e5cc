//! `millstream topic`: topics as a whole.

mod change;
mod delete;
mod inspect;
mod train;
mod trim;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::commands::schemas::{Table, of};
use crate::commands::shared::failures::Listed;
use crate::commands::shared::view::TopicView;
use crate::context::Context;
use crate::exit::Exit;

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
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        match self.what {
            What::List(it) => it.run(cx).await,
            What::Describe(it) => it.run(cx).await,
            What::Create(it) => it.run(cx).await,
            What::Alter(it) => it.run(cx).await,
            What::Expand(it) => it.run(cx).await,
            What::Trim(it) => it.run(cx).await,
            What::Train(it) => it.run(cx).await,
            What::Delete(it) => it.run(cx).await,
        }
    }
}
