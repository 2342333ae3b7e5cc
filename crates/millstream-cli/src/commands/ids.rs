//! What is done to things that are named by ids, one after the other.

use anyhow::{Result, bail};
use serde::Serialize;

use super::DryRun;
use super::message::sanitize;
use crate::context::Context;
use crate::exit::Exit;

/// What became of them.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    /// Those to which it was done; in a dry run, to which it would be.
    done: Vec<String>,
    /// Those that were not there.
    missing: Vec<String>,
    dry_run: bool,
}

/// A deed, in words: `cancelled`, and why there may be nothing to do: `it does not wait`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) done: &'static str,
    pub(crate) missing: &'static str,
}

/// Does it to each; in a dry run it is only asked whether each `is_there`. That some are not there is an error, in the
/// end.
pub(crate) async fn each(
    cx: &Context,
    dry: DryRun,
    words: Words,
    ids: &[String],
    is_there: impl AsyncFn(&str) -> Result<bool>,
    act: impl AsyncFn(&str) -> Result<bool>,
) -> Result<Exit> {
    let mut outcome = Outcome { dry_run: dry.dry_run, ..Outcome::default() };
    let mut failed = Ok(());
    for id in ids {
        match if dry.dry_run { is_there(id).await } else { act(id).await } {
            Ok(true) => outcome.done.push(id.clone()),
            Ok(false) => outcome.missing.push(id.clone()),
            Err(error) => {
                // What was done before is told all the same.
                failed = Err(error.context(format!("{id:?}")));
                break;
            }
        }
    }
    cx.output.show(&outcome, |outcome| {
        let verb = if outcome.dry_run { format!("would be {}", words.done) } else { words.done.to_owned() };
        let lines: Vec<_> =
            outcome.done.iter().map(|id| format!("{}: {verb}", sanitize::line(id.as_bytes()))).collect();
        lines.join("\n")
    })?;
    for id in &outcome.missing {
        cx.output.note(&format!("{}: {}", sanitize::line(id.as_bytes()), words.missing));
    }
    failed?;
    if !outcome.missing.is_empty() {
        bail!("{} of {} were not there", outcome.missing.len(), ids.len());
    }
    Ok(Exit::Done)
}
