//! `millstream leader`.

use anyhow::Result;
use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::lock::view::LockView;
use crate::context::Context;
use crate::exit::Exit;

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
pub(super) struct LeaderView {
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
