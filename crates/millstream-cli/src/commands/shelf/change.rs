//! Changes of what failed: counted, confirmed, and made.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use millstream::ErrorKind;
use millstream::admin::{Failed, ShelfAction, ShelfFilter, Survey};
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
    /// The number of retries that are due already: they are read next, and left as they are.
    due_already: u64,
    /// The number of those that were selected and not changed: gone meanwhile, claimed by others, or their id is in use.
    skipped: u64,
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
            ("given up", format!("Give up {what} of {of}, without further attempts?"))
        }
        (_, ShelfAction::Retry) => ("replayed", format!("Replay {what} of {of}?")),
        (_, ShelfAction::Drop) => ("deleted", format!("Delete {what} of {of} permanently?")),
    };
    let due_already = survey.ready;
    if dry.dry_run {
        let skipped = match (kind, action) {
            (Kind::Tasks, ShelfAction::Retry) => opened.in_use(&filter, chosen.limit, &survey).await?,
            _ => 0,
        };
        let count = matched.saturating_sub(skipped);
        let sample = survey.sample.iter().map(Shown).collect();
        let changed = Changed { count, missing, due_already, skipped, sample, dry_run: true };
        let now = cx.now().await?;
        let what = human::of(count, one, many);
        cx.output.show(&changed, |_| format!("{what} would be {done}\n{}", table(&survey.sample, now)))?;
        return chosen.end(cx, kind, action, &changed, &survey);
    }
    // What is named needs no confirmation, unless it is lost.
    if matched > 0 && (action == ShelfAction::Drop || !chosen.is_named()) {
        cx.confirm(&question)?;
    }
    // Only what was counted, without what died while it was read.
    let mut acting = opened.shelf.act(&filter, chosen.limit, action, Some(survey.clone())).await?;
    let all = async {
        while !acting.is_done() {
            acting.run_once().await?;
        }
        Ok(())
    };
    let ended = to_the_end(all).await;
    let (count, sample) = (acting.changed(), Vec::new());
    let skipped = matched.saturating_sub(count);
    let changed = Changed::<Shown<'_>> { count, missing, due_already, skipped, sample, dry_run: false };
    cx.output.show(&changed, |_| format!("{} {done}", human::of(count, one, many)))?;
    match ended {
        Ok(()) => chosen.end(cx, kind, action, &changed, &survey),
        Err(error) => Err(left(error, skipped, kind, "")),
    }
}

/// Returns the error of a change that an outage has ended, with the number of items that it left.
pub(in crate::commands) fn left(error: anyhow::Error, count: u64, kind: Kind, when: &str) -> anyhow::Error {
    let Some(it) = error.downcast_ref::<millstream::Error>() else { return error };
    let Some(why) = in_short(it) else { return error };
    let ((one, many), one_stays) = (kind.noun(), count == 1);
    let stays = human::of(count, &format!("{one} stays where it is"), &format!("{many} stay where they are"));
    let unknown = if it.kind() == ErrorKind::Unconfirmed { ", unless the last request was done" } else { "" };
    let them = if one_stays { "it" } else { "them" };
    let text = format!("{why}; {stays}{unknown}: the same command goes on with {them}{when}");
    millstream::Error::new(it.kind(), text).into()
}

/// Returns a transient error in a few words, without the keys of the request.
pub(in crate::commands) fn in_short(error: &millstream::Error) -> Option<&'static str> {
    match error.kind() {
        ErrorKind::Backpressure => Some("the server is out of memory"),
        ErrorKind::Unavailable => Some("the server cannot be reached"),
        ErrorKind::Unconfirmed => Some("the server does not answer"),
        _ => None,
    }
}

impl Opened {
    /// Returns how many of the selected dead tasks cannot be scheduled, since their ids wait, or are those of tasks before them. One
    /// that is worked on has no entry that could be looked up.
    async fn in_use(&self, filter: &ShelfFilter, limit: Option<u64>, survey: &Survey) -> Result<u64> {
        let filter = ShelfFilter { up_to: Some(survey.ends.clone()), ..filter.clone() };
        let (mut walk, mut ids, mut used) = (self.shelf.walk(&filter, limit).await?, BTreeSet::new(), 0);
        while !walk.is_done() {
            for task in walk.run_once(SAMPLE).await?.into_iter().filter_map(Failed::task) {
                let is_free = if ids.insert(task.task.clone()) {
                    self.shelf.can_replay(&task).await?
                } else {
                    // Of those that are named, the newest alone is selected.
                    filter.tasks.is_some()
                };
                used += u64::from(!is_free);
            }
        }
        Ok(used)
    }
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
        if let Some(origin) = filter.origin.filter(|_| survey.partitions.len() > 1) {
            let why =
                format!("{many} of several partitions have the origin {origin}: --partition selects one");
            return Err(Usage(why).into());
        }
        Ok((survey, missing))
    }

    /// Notes what was left as it is, and returns the result. What was not found or was skipped is an error.
    fn end<V>(
        &self,
        cx: &Context,
        kind: Kind,
        action: ShelfAction,
        changed: &Changed<V>,
        survey: &Survey,
    ) -> Result<Exit> {
        for (id, count) in survey.named.iter().filter(|(_, count)| kind == Kind::Tasks && **count > 1) {
            let older = human::of(count - 1, "older dead task", "older dead tasks");
            let id = sanitize::line(id.as_bytes());
            cx.output.note(&format!("{id}: {older} with this id; the newest is meant"));
        }
        let (one, many) = kind.noun();
        let due = changed.due_already;
        if due > 0 {
            let due = human::of(due, "retry is", "retries are");
            cx.output.note(&format!("{due} due already: consumers of the group read them next"));
        }
        self.missing(cx, kind, &changed.missing)?;
        let skipped = changed.skipped + if action == ShelfAction::Drop { due } else { 0 };
        if skipped > 0 {
            let why = match (kind, action, changed.dry_run) {
                (Kind::Letters, ..) => "deleted meanwhile, or claimed by others",
                (Kind::Retries, ..) => "not waiting any more",
                (Kind::Tasks, ShelfAction::Retry, true) => "the id is in use",
                (Kind::Tasks, ShelfAction::Retry, false) => "deleted meanwhile, or the id is in use",
                (Kind::Tasks, ShelfAction::Drop, _) => "deleted meanwhile",
            };
            bail!("{} skipped: {why}", human::of(skipped, one, many));
        }
        Ok(Exit::Done)
    }

    /// Returns an error if there is none of some of the ids, after a note of each.
    pub(in crate::commands) fn missing(&self, cx: &Context, kind: Kind, missing: &[String]) -> Result<()> {
        let why = match kind {
            Kind::Letters => "no such dead letter matches",
            Kind::Retries => "no retry of it matches",
            Kind::Tasks => "no dead task of it matches",
        };
        for id in missing {
            cx.output.note(&format!("{}: {why}", sanitize::line(id.as_bytes())));
        }
        match missing.len() as u64 {
            0 => Ok(()),
            missing => {
                let all = human::of(self.ids.len() as u64, "id", "ids");
                Err(not_found(format!("{} of {all} not found", human::count(missing))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_says_what_it_left() {
        let told = |kind, count| {
            let error = millstream::Error::new(kind, "connection refused").into();
            left(error, count, Kind::Tasks, "").to_string()
        };
        assert_eq!(
            told(ErrorKind::Unavailable, 1),
            "the server cannot be reached; 1 dead task stays where it is: the same command goes on with it"
        );
        assert_eq!(
            told(ErrorKind::Unconfirmed, 2_000),
            "the server does not answer; 2,000 dead tasks stay where they are, unless the last request was done: \
             the same command goes on with them"
        );
        assert_eq!(told(ErrorKind::WrongType, 3), "connection refused");
    }
}
