//! `millstream dlq export` and `import`: letters as lines of JSON, byte for byte.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use millstream::DeadLetter;
use millstream::admin::{Imported, from_line};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::group::GroupOf;
use crate::commands::shelf::read::ExportTo;
use crate::commands::shelf::{DlqWanted, Kind, Opened};
use crate::context::Context;
use crate::exit::Exit;
use crate::human;

/// Number of letters put at once.
const PAGE: usize = 200;

/// Writes dead letters as lines of JSON, which `import` reads; the letters stay stored
///
/// With --json each letter on stdout is in the envelope of JSON output, which `import` does not read. A file has the lines
/// of the letters alone, also with --json.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq export orders billing > letters.jsonl
  millstream dlq export orders billing --reason undecodable --output letters.jsonl")]
pub(super) struct DlqExport {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    wanted: DlqWanted,
    #[command(flatten)]
    to: ExportTo,
}

/// Imports exported letters as dead letters
///
/// Each gets a new id. A letter that still exists is skipped, and so is one that was imported in the last 7 days. So
/// importing a file twice is the same as importing it once.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq import orders billing letters.jsonl
  millstream dlq export orders billing | jq -c 'select(.attempts > 3)' | millstream dlq import orders billing -")]
pub(super) struct Import {
    #[command(flatten)]
    of: GroupOf,
    /// File to read; `-` for stdin
    file: PathBuf,
    /// Also imports letters that were imported before
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// A letter as a line, which the library writes and reads.
#[derive(JsonSchema)]
// It is a schema, and never made.
#[expect(dead_code)]
pub(super) struct DlqLine {
    /// Version of this form.
    format: u32,
    topic: String,
    partition: u32,
    group: String,
    id: String,
    reason: String,
    attempts: u32,
    error: String,
    origin: String,
    /// The failed attempts, as they are stored.
    history: String,
    /// Names and values of the fields of the entry, in base64.
    body: Vec<(String, String)>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Put {
    /// The number of letters that were imported; in a dry run, of those that do not exist.
    put: u64,
    /// The number of letters that exist, or were imported in the last 7 days; in a dry run, of those that exist.
    passed_over: u64,
    dry_run: bool,
}

impl DlqExport {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx).await?;
        self.to.run(cx, &Opened::group(cx, Kind::Letters, &self.of, &filter).await?, &filter).await
    }
}

impl Import {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        self.of.known(cx).await?;
        let queue = cx.admin().dead_letters(&self.of.topic, &self.of.group).await?;
        let name = self.file.display().to_string();
        let mut reader: Box<dyn BufRead> = if self.file == Path::new("-") {
            Box::new(BufReader::new(io::stdin()))
        } else {
            let file = File::open(&self.file).with_context(|| format!("cannot read {name}"))?;
            Box::new(BufReader::new(file))
        };
        let (mut number, mut put) = (0, Put { put: 0, passed_over: 0, dry_run: self.dry.dry_run });
        // In a dry run: what is twice in the file would be imported once.
        let (mut failed, mut seen) = (Ok(()), BTreeSet::new());
        loop {
            // Letters imported before an invalid line stay; importing the same file again completes the rest.
            let (mut letters, problem) = page(&mut *reader, &mut number, &name);
            let end = letters.is_empty();
            let imported = if self.dry.dry_run {
                let all = letters.len();
                letters.retain(|it| self.again || seen.insert((it.topic_partition.partition, it.id)));
                put.passed_over += (all - letters.len()) as u64;
                queue.import_preview(&letters).await
            } else {
                queue.import(&letters, self.again).await
            };
            match imported {
                Ok(Imported { put: more, passed_over }) => {
                    put.put += more;
                    put.passed_over += passed_over;
                }
                Err(error) => {
                    failed = Err(anyhow::Error::from(error).context(format!("{name}, up to line {number}")));
                    break;
                }
            }
            if let Some(problem) = problem {
                failed = Err(problem);
                break;
            }
            if end {
                break;
            }
        }
        cx.output.show(&put, |put| {
            let (letters, skipped) = (human::of(put.put, "letter", "letters"), human::count(put.passed_over));
            let also = if self.again { "" } else { ", and those that were imported in the last 7 days" };
            match put.dry_run {
                true => format!("{letters} would be imported, {skipped} skipped{also}"),
                false => format!("{letters} imported, {skipped} skipped"),
            }
        })?;
        failed.map(|()| Exit::Done)
    }
}

/// Returns the letters of the next lines, and the error of the line after them.
fn page(reader: &mut dyn BufRead, number: &mut u64, name: &str) -> (Vec<DeadLetter>, Option<anyhow::Error>) {
    let mut letters = Vec::new();
    while letters.len() < PAGE {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(0) => break,
            Ok(_) => *number += 1,
            Err(error) => {
                let error = anyhow::Error::from(error).context(format!("cannot read {name}"));
                return (letters, Some(error));
            }
        }
        if line.trim().is_empty() {
            continue;
        }
        match from_line(&line) {
            Ok(letter) => letters.push(letter),
            Err(error) => {
                let error = anyhow::Error::from(error).context(format!("{name}, line {number}"));
                return (letters, Some(error));
            }
        }
    }
    (letters, None)
}
