//! What failed, read: the first of them, their errors, and an export.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use millstream::admin::{Failed, FailedId, Shelf, ShelfFilter, ShelfQuery, to_line};
use millstream::crates::core::error_groups::{ErrorGroups, MAX_GROUPS};
use millstream::{ErrorKind, Partition};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::view::Shown;
use super::whole_file::WholeFile;
use super::{Kind, Opened};
use crate::commands::message::sanitize;
use crate::commands::shared::count_progress::CountProgress;
use crate::commands::shared::errors::ErrorsView;
use crate::commands::shared::failures::Failed as MissingPart;
use crate::context::Context;
use crate::exit::Exit;
use crate::human;

/// Number of items read at once.
const PAGE: usize = 200;

/// Returns the first `limit` matching items, and whether there may be more.
pub(in crate::commands) async fn first(
    opened: &Opened,
    filter: &ShelfFilter,
    limit: usize,
) -> Result<(Vec<Failed>, bool)> {
    let ((one, many), mut progress, mut items) = (opened.kind.noun(), CountProgress::new(), Vec::new());
    let query = ShelfQuery { filter: filter.clone(), limit, ..ShelfQuery::default() };
    let mut walk = opened.shelf.walk_from(&query);
    while !walk.is_done() {
        items.extend(walk.run_once(limit).await?);
        progress.set(walk.looked_at(), one, many);
    }
    Ok((items, walk.cursor().is_some()))
}

/// Shows the errors, grouped.
pub(in crate::commands) async fn errors<E: Serialize>(
    cx: &Context,
    opened: &Opened,
    filter: &ShelfFilter,
    limit: usize,
    example: fn(FailedId) -> E,
) -> Result<Exit> {
    let ((one, many), mut progress) = (opened.kind.noun(), CountProgress::new());
    let (groups, failed) = grouped(&opened.shelf, filter, |read| progress.set(read, one, many)).await?;
    drop(progress);
    let name = |id: &FailedId| id.task.clone().unwrap_or_else(|| id.id.to_string());
    let view = ErrorsView::of(groups, limit, |id| (name(&id), example(id)));
    view.show(cx, (one, many))?;
    let failed = failed.iter().map(|error| match opened.kind {
        Kind::Tasks => MissingPart::queue(&opened.of, error),
        _ => MissingPart::group(&opened.of, error),
    });
    MissingPart::end(cx, &Vec::from_iter(failed))
}

/// Groups the errors of all partitions that can be read, and returns why others cannot.
pub(in crate::commands) async fn grouped(
    shelf: &Shelf,
    filter: &ShelfFilter,
    mut progress: impl FnMut(u64),
) -> Result<(ErrorGroups<FailedId>, Vec<millstream::Error>)> {
    match shelf.errors(filter, MAX_GROUPS, &mut progress).await {
        Err(error) if error.kind() == ErrorKind::WrongType => {}
        all => return Ok((all?, Vec::new())),
    }
    let (mut groups, mut failed) = (ErrorGroups::new(MAX_GROUPS), Vec::new());
    for partition in (0..shelf.partitions()).map(Partition) {
        if filter.partitions.as_ref().is_some_and(|some| !some.contains(&partition)) {
            continue;
        }
        let here = ShelfFilter { partitions: Some(vec![partition]), ..filter.clone() };
        let before = groups.count();
        match shelf.errors(&here, MAX_GROUPS, |read| progress(before + read)).await {
            Ok(some) => groups.merge(some, |it| it),
            Err(error) if error.kind() == ErrorKind::WrongType => failed.push(error),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((groups, failed))
}

/// Where an export goes
#[derive(Args, Debug)]
pub(in crate::commands) struct ExportTo {
    /// Maximum number, oldest first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// File to write, which must not exist. Default: stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrites an existing file, which stays as it is if the export fails
    #[arg(long, requires = "output")]
    force: bool,
}

/// What an export prints with --json.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(in crate::commands) enum Exported<V> {
    /// The result, if it writes a file.
    File { exported: u64, file: String },
    /// A line.
    Line(V),
}

impl ExportTo {
    pub(in crate::commands) async fn run(
        &self,
        cx: &Context,
        opened: &Opened,
        filter: &ShelfFilter,
    ) -> Result<Exit> {
        let mut walk = opened.shelf.walk(filter, self.limit).await?;
        let mut file = match &self.output {
            Some(path) => Some((path, WholeFile::open(path, self.force)?)),
            None => None,
        };
        let ((one, many), mut exported, progress) = (opened.kind.noun(), 0, CountProgress::new());
        let mut progress = if file.is_some() { progress } else { progress.beside_output() };
        while !walk.is_done() {
            let mut lines = String::new();
            for item in walk.run_once(PAGE).await? {
                let line = match &item {
                    Failed::Letter(letter) => to_line(letter)?,
                    other => serde_json::to_string(&Shown(other))?,
                };
                if file.is_none() && cx.output.is_json() {
                    lines += &cx.output.line(&Exported::Line(RawValue::from_string(line)?))?;
                } else {
                    // The same when it is parsed, without control characters for a terminal.
                    lines += &sanitize::json(&line);
                    lines.push('\n');
                }
                exported += 1;
            }
            match &mut file {
                Some((_, file)) => file.write(&lines)?,
                None => cx.output.write(&lines)?,
            }
            progress.set(exported, one, many);
        }
        drop(progress);
        let what = human::of(exported, one, many);
        if let Some((path, file)) = file {
            file.finish()?;
            let file = path.display().to_string();
            let text = format!("{what} in {file}");
            cx.output.show(&Exported::<()>::File { exported, file }, |_| text)?;
        } else {
            cx.output.note(&what);
        }
        Ok(Exit::Done)
    }
}
