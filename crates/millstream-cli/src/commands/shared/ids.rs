//! Operations on items that are named by ids, one after the other.

use anyhow::{Error, Result};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::message::sanitize;
use crate::context::Context;
use crate::exit::{Exit, not_found};
use crate::human;

/// The results.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in crate::commands) struct Outcome {
    /// The items that were changed; in a dry run, those that would be.
    done: Vec<String>,
    /// The items that do not exist.
    missing: Vec<String>,
    dry_run: bool,
}

/// An operation in words: `cancelled`, and the reason why it may not apply: `it does not wait`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) done: &'static str,
    pub(crate) missing: &'static str,
}

/// Applies the operation to each item; a dry run only checks with `is_there` whether it exists. Missing items are an
/// error at the end.
pub(crate) async fn each(
    cx: &Context,
    dry: DryRun,
    words: Words,
    ids: &[String],
    is_there: impl AsyncFn(&str) -> Result<bool>,
    act: impl AsyncFn(&str) -> Result<bool>,
) -> Result<Exit> {
    let mut outcome = Outcome { dry_run: dry.dry_run, ..Outcome::default() };
    let mut failed = Vec::new();
    for id in ids {
        match if dry.dry_run { is_there(id).await } else { act(id).await } {
            Ok(true) => outcome.done.push(id.clone()),
            Ok(false) => outcome.missing.push(id.clone()),
            Err(error) => {
                let lasts = error.downcast_ref::<millstream::Error>().is_some_and(|it| !it.is_transient());
                failed.push(error.context(format!("{id:?}")));
                // What is wrong with one place says nothing about the others; an outage does.
                if !lasts {
                    break;
                }
            }
        }
    }
    outcome.end(cx, words, failed, ids.len())
}

impl Outcome {
    /// Shows the results, and returns how the command ends.
    fn end(&self, cx: &Context, words: Words, mut failed: Vec<Error>, all: usize) -> Result<Exit> {
        cx.output.show(self, |outcome| {
            let verb =
                if outcome.dry_run { format!("would be {}", words.done) } else { words.done.to_owned() };
            let lines: Vec<_> =
                outcome.done.iter().map(|id| format!("{}: {verb}", sanitize::line(id.as_bytes()))).collect();
            lines.join("\n")
        })?;
        for id in &self.missing {
            cx.output.note(&format!("{}: {}", sanitize::line(id.as_bytes()), words.missing));
        }
        let left = all - self.done.len() - self.missing.len() - failed.len();
        if left > 0 {
            cx.output.note(&format!("{} not tried", human::of(left as u64, "id", "ids")));
        }
        if let Some(last) = failed.pop() {
            failed.iter().for_each(|error| cx.output.note(&sanitize::text(format!("{error:#}").as_bytes())));
            return Err(last);
        }
        if !self.missing.is_empty() {
            let missing = human::count(self.missing.len() as u64);
            let all = human::of((self.done.len() + self.missing.len()) as u64, "id", "ids");
            return Err(not_found(format!("{missing} of {all} not found")));
        }
        Ok(Exit::Done)
    }
}
