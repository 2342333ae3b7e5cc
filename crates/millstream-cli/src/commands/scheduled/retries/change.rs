//! `retries now` and `kill`.

use anyhow::Result;
use clap::Args;
use millstream::MessageId;
use millstream::admin::{RetryQueue, RetrySelection};
use millstream::crates::core::schedule::RetryAction;
use schemars::JsonSchema;
use serde::Serialize;

use super::list::RetryEntry;
use super::{RetriesWanted, open};
use crate::commands::DryRun;
use crate::commands::group::GroupOf;
use crate::commands::shared::count_progress::CountProgress;
use crate::context::{Context, to_the_end};
use crate::exit::{Exit, Usage, not_found};
use crate::human;

/// Maximum number of affected retries that are shown.
const SAMPLE: usize = 10;

/// Makes waiting messages due now: the consumers of the group handle them behind the messages that they have read ahead
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries now orders billing 1700000000000-0
  millstream retries now orders billing --error 'connection refused' --dry-run
  millstream retries now orders billing --all --yes")]
pub(super) struct Now {
    #[command(flatten)]
    chosen: RetriesChosen,
}

/// Gives waiting messages up: they become dead letters with the reason `killed`
///
/// They keep the error of their last attempt, and can be replayed as other dead letters can.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries kill orders billing 1700000000000-0
  millstream retries kill orders billing --fingerprint 8f3c0a51d27be694 --dry-run
  millstream retries kill orders billing --min-attempt 8")]
pub(super) struct Kill {
    #[command(flatten)]
    chosen: RetriesChosen,
}

/// Selection of retries
#[derive(Args, Debug)]
struct RetriesChosen {
    #[command(flatten)]
    of: GroupOf,
    /// Ids of messages
    #[arg(value_name = "ID", conflicts_with = "all")]
    ids: Vec<MessageId>,
    #[command(flatten)]
    wanted: RetriesWanted,
    /// All messages that wait for a retry now
    #[arg(long)]
    all: bool,
    /// Maximum number of messages
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RetriesOutcome {
    /// The number of messages; in a dry run, of those that would be changed.
    count: u64,
    /// The named messages that do not wait.
    missing: Vec<String>,
    /// The first messages of a dry run.
    sample: Vec<RetryEntry>,
    dry_run: bool,
}

impl Now {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        self.chosen.settle(cx, RetryAction::Release).await
    }
}

impl Kill {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        self.chosen.settle(cx, RetryAction::Kill).await
    }
}

impl RetriesChosen {
    async fn settle(self, cx: &Context, action: RetryAction) -> Result<Exit> {
        let filter = self.wanted.filter(cx, &self.ids).await?;
        if filter.is_empty() && !self.all {
            let message = "which retries? Ids, a filter (--error, --fingerprint, --key, …) or --all says it";
            return Err(Usage(message.into()).into());
        }
        let queue = open(cx, &self.of, &filter).await?;
        let mut progress = CountProgress::new();
        let selected = queue
            .select(&filter, self.limit, SAMPLE.max(self.ids.len()), |read| {
                progress.set(read, "retry", "retries");
            })
            .await?;
        drop(progress);
        let missing = self.missing(&queue, &selected)?;
        let count = selected.count();
        let what = human::of(count, "retry", "retries");
        let (done, group) = (done(action), &self.of.group);
        if self.dry.dry_run {
            let now = cx.now().await?;
            let sample = selected.sample.into_iter().map(RetryEntry::from).collect();
            let outcome = RetriesOutcome { count, missing, sample, dry_run: true };
            cx.output.show(&outcome, |it| {
                format!("{what} would be {done}\n{}", RetryEntry::table(&it.sample, now))
            })?;
            return self.end(cx, &outcome);
        }
        if count > 0 {
            match action {
                RetryAction::Kill => {
                    cx.confirm(&format!("Make {what} of {group} dead letters, without further attempts?"))?;
                }
                RetryAction::Release if self.ids.is_empty() => {
                    cx.confirm(&format!("Make {what} of {group} due now?"))?;
                }
                RetryAction::Release => {}
            }
        }
        let settled = to_the_end(queue.settle(&selected, action)).await?;
        let outcome = RetriesOutcome { count: settled, missing, sample: Vec::new(), dry_run: false };
        cx.output.show(&outcome, |it| format!("{} {done}", human::of(it.count, "retry", "retries")))?;
        if settled < count {
            let gone = human::of(count - settled, "retry", "retries");
            cx.output.note(&format!("{gone} did not wait any more"));
        }
        self.end(cx, &outcome)
    }

    /// Returns the named messages that do not wait.
    ///
    /// # Errors
    /// [`Usage`] if messages of several partitions have one of the ids.
    fn missing(&self, queue: &RetryQueue, selected: &RetrySelection) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        for id in &self.ids {
            match selected.ids.values().filter(|ids| ids.contains(id)).count() {
                0 if self.limit.is_none() => missing.push(id.to_string()),
                0 | 1 => {}
                _ => {
                    let topic = &queue.topic().name;
                    let message = format!(
                        "messages of several partitions of {topic} have the id {id}: --partition selects one"
                    );
                    return Err(Usage(message).into());
                }
            }
        }
        Ok(missing)
    }

    /// Returns the result after everything was shown.
    fn end(&self, cx: &Context, outcome: &RetriesOutcome) -> Result<Exit> {
        for id in &outcome.missing {
            cx.output.note(&format!("{id}: it does not wait for a retry"));
        }
        match outcome.missing.len() {
            0 => Ok(Exit::Done),
            missing => {
                let all = human::of(self.ids.len() as u64, "message", "messages");
                Err(not_found(format!("{} of {all} not found", human::count(missing as u64))))
            }
        }
    }
}

/// Returns what becomes of the retries, in words.
fn done(action: RetryAction) -> &'static str {
    match action {
        RetryAction::Release => "made due now",
        RetryAction::Kill => "made dead letters",
    }
}
