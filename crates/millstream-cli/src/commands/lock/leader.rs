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
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Show(Show),
}

/// Shows who leads an election, and how many candidates wait
///
/// The lock of the election is `leader:NAME`: `millstream lock release leader:NAME` ends the term of a leader that hangs.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream leader show scheduler
  millstream leader show scheduler --json | jq -r .data.leader")]
struct Show {
    /// The election
    election: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct View {
    election: String,
    /// `null` if nobody leads.
    leader: Option<String>,
    epoch: Option<u64>,
    #[serde(flatten)]
    lock: LockView,
}

impl Leader {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let What::Show(Show { election }) = self.what;
        let lock = LockView::of(&cx.admin().leader(&election).await?);
        let view = View { election, leader: lock.holder.clone(), epoch: lock.fence, lock };
        cx.output.show(&view, |view| {
            let lock = LockView { lock: view.election.clone(), ..view.lock.clone() };
            lock.text("election", "leader", "epoch", "candidates")
        })?;
        Ok(Exit::Done)
    }
}
