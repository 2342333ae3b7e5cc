//! `millstream dlq purge`.

use anyhow::{Result, bail};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::dlq::inspect::{DlqShown, table};
use crate::commands::dlq::select::DlqChosen;
use crate::context::Context;
use crate::exit::Exit;
use crate::human;

/// Deletes dead letters permanently
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq purge orders billing 1700000000000-0
  millstream dlq purge orders billing --until '30d ago' --dry-run
  millstream dlq purge orders billing --all --yes")]
pub(super) struct Purge {
    #[command(flatten)]
    chosen: DlqChosen,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Purged<'a> {
    /// The number of purged letters; in a dry run, of those that would be.
    purged: u64,
    /// The first letters of a dry run.
    sample: Vec<DlqShown<'a>>,
    dry_run: bool,
}

impl Purge {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (queue, mut filter) = self.chosen.open(cx).await?;
        let limit = self.chosen.limit;
        let (survey, missing) = self.chosen.survey(&queue, &filter).await?;
        let letters = human::of(survey.matched, "dead letter", "dead letters");
        if self.dry.dry_run {
            let sample = survey.sample.iter().map(DlqShown).collect();
            let purged = Purged { purged: survey.matched, sample, dry_run: true };
            cx.output.show(&purged, |_| format!("{letters} would be deleted\n{}", table(&survey.sample)))?;
            missing.check()?;
            return Ok(Exit::Done);
        }
        // Limits the purge to the letters in the prompt, without those that died while it was read.
        filter.up_to = Some(survey.ends.clone());
        if survey.matched > 0 {
            let group = &self.chosen.of.group;
            cx.confirm(&format!("Delete {letters} of {group} permanently?"))?;
        }
        let purged = queue.purge_where(&filter, limit).await?;
        cx.output.show(&Purged { purged, sample: Vec::new(), dry_run: false }, |it| {
            format!("{} deleted", human::of(it.purged, "dead letter", "dead letters"))
        })?;
        missing.check()?;
        if purged < survey.matched {
            let left = human::of(survey.matched - purged, "letter was", "letters were");
            bail!("{left} skipped: deleted meanwhile, or claimed by others");
        }
        Ok(Exit::Done)
    }
}
