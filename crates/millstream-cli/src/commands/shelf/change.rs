//! Changes of what failed: counted, confirmed, and made.

use anyhow::{Result, bail};
use millstream::admin::{ShelfAction, ShelfFilter, Survey};
use schemars::JsonSchema;
use serde::Serialize;

use super::view::{Shown, table};
use super::{Chosen, Kind, Opened};
use crate::commands::DryRun;
use crate::commands::message::sanitize;
use crate::commands::shared::count_progress::CountProgress;
use crate::context::{Context, to_the_end};
use crate::exit::{Exit, Usage, not_found};
use crate::human;

/// Maximum number of items that are shown of a dry run.
const SAMPLE: usize = 10;

/// The results.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct Changed<V> {
    /// The number of those that were changed; in a dry run, of those that would be.
    count: u64,
    /// The ids of which there is none, or that have ended meanwhile.
    missing: Vec<String>,
    /// The first ones of a dry run.
    sample: Vec<V>,
    dry_run: bool,
}

/// Changes what the filter and the ids select, after a confirmation.
pub(in crate::commands) async fn change(
    cx: &Context,
    opened: &Opened,
    (chosen, mut filter): (&Chosen, ShelfFilter),
    action: ShelfAction,
    dry: DryRun,
) -> Result<Exit> {
    let (kind, of) = (opened.kind, &opened.of);
    chosen.add(kind, &mut filter)?;
    let (survey, missing) = chosen.survey(opened, &filter).await?;
    let (matched, (one, many)) = (survey.matched, kind.noun());
    let what = human::of(matched, one, many);
    let (done, question) = match (kind, action) {
        (Kind::Retries, ShelfAction::Retry) => ("made due now", format!("Make {what} of {of} due now?")),
        (Kind::Retries, ShelfAction::Drop) => {
            ("made dead letters", format!("Make {what} of {of} dead letters, without further attempts?"))
        }
        (_, ShelfAction::Retry) => ("replayed", format!("Replay {what} of {of}?")),
        (_, ShelfAction::Drop) => ("deleted", format!("Delete {what} of {of} permanently?")),
    };
    if dry.dry_run {
        let sample = survey.sample.iter().map(Shown).collect();
        let changed = Changed { count: matched, missing, sample, dry_run: true };
        let now = cx.now().await?;
        cx.output.show(&changed, |_| format!("{what} would be {done}\n{}", table(&survey.sample, now)))?;
        return chosen.end(cx, kind, &changed.missing);
    }
    // What is named needs no confirmation, unless it is lost.
    if matched > 0 && (action == ShelfAction::Drop || !chosen.is_named()) {
        cx.confirm(&question)?;
    }
    // Only what was counted, without what died while it was read.
    let acting = opened.shelf.act(&filter, chosen.limit, action, Some(survey)).await?;
    let count = to_the_end(acting.run()).await?;
    let changed = Changed::<Shown<'_>> { count, missing, sample: Vec::new(), dry_run: false };
    cx.output.show(&changed, |_| format!("{} {done}", human::of(count, one, many)))?;
    let ended = chosen.end(cx, kind, &changed.missing);
    if count < matched {
        let rest = human::of(matched - count, one, many);
        match kind {
            Kind::Retries => cx.output.note(&format!("{rest} did not wait any more")),
            // Somebody else deletes them, too.
            Kind::Tasks if chosen.all && action == ShelfAction::Drop => {
                cx.output.note(&format!("{rest} were not there any more"));
            }
            Kind::Tasks => bail!("{rest} could not be {done}: deleted meanwhile, or the id is in use"),
            Kind::Letters => bail!("{rest} skipped: deleted meanwhile, or claimed by others"),
        }
    }
    ended
}

impl Chosen {
    /// Counts what was selected, and returns the ids of which there is none.
    ///
    /// # Errors
    /// [`Usage`] if messages of several partitions have one of the ids.
    pub(in crate::commands) async fn survey(
        &self,
        opened: &Opened,
        filter: &ShelfFilter,
    ) -> Result<(Survey, Vec<String>)> {
        let ((one, many), mut progress) = (opened.kind.noun(), CountProgress::new());
        let sample = SAMPLE.max(self.ids.len());
        let survey = opened.shelf.survey(filter, self.limit, sample, |read| progress.set(read, one, many));
        let survey = survey.await?;
        let mut missing = Vec::new();
        for id in filter.names() {
            match survey.named.get(&id) {
                // With a limit, ids behind it are not looked up.
                None if self.limit.is_none() => missing.push(id),
                Some(2..) if opened.kind != Kind::Tasks => {
                    let why =
                        format!("{many} of several partitions have the id {id}: --partition selects one");
                    return Err(Usage(why).into());
                }
                _ => {}
            }
        }
        Ok((survey, missing))
    }

    /// Returns the result after everything was shown.
    pub(in crate::commands) fn end(&self, cx: &Context, kind: Kind, missing: &[String]) -> Result<Exit> {
        let why = match kind {
            Kind::Letters => "no such dead letter matches",
            Kind::Retries => "no retry of it matches",
            Kind::Tasks => "no dead task of it matches",
        };
        for id in missing {
            cx.output.note(&format!("{}: {why}", sanitize::line(id.as_bytes())));
        }
        match missing.len() as u64 {
            0 => Ok(Exit::Done),
            missing => {
                let all = human::of(self.ids.len() as u64, "id", "ids");
                Err(not_found(format!("{} of {all} not found", human::count(missing))))
            }
        }
    }
}
