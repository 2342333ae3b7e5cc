//! `millstream dlq export` and `import`: letters as lines of JSON, byte for byte.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use millstream::DeadLetter;
use millstream::admin::{Imported, from_line};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::commands::DryRun;
use crate::commands::dlq::select::{DlqWanted, open};
use crate::commands::group::GroupOf;
use crate::commands::message::sanitize;
use crate::commands::shared::count_progress::CountProgress;
use crate::context::Context;
use crate::exit::Exit;
use crate::human;

/// Number of letters read or put at once.
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
    /// Maximum number of letters, oldest first
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// File to write, which must not exist. Default: stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrites an existing file
    #[arg(long, requires = "output")]
    force: bool,
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

/// What `export` prints with --json.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Exported {
    /// The result, if it writes a file.
    File { exported: u64, file: String },
    /// A letter.
    Letter(#[schemars(with = "DlqLine")] Box<RawValue>),
}

/// A letter as a line, which the library writes and reads.
#[derive(JsonSchema)]
// It is a schema, and never made.
#[expect(dead_code)]
struct DlqLine {
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
    /// The number of letters that were imported; in a dry run, the number of lines.
    put: u64,
    passed_over: u64,
    dry_run: bool,
}

impl DlqExport {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx).await?;
        let queue = open(cx, &self.of, &filter).await?;
        let mut walk = queue.walk(&filter, self.limit).await?;
        let mut file = match &self.output {
            Some(path) => {
                let mut options = File::options();
                options.write(true);
                let file = match self.force {
                    true => options.create(true).truncate(true).open(path),
                    false => options.create_new(true).open(path),
                };
                if file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
                    bail!("{} already exists: --force overwrites it", path.display());
                }
                Some((
                    path,
                    BufWriter::new(file.with_context(|| format!("cannot write {}", path.display()))?),
                ))
            }
            None => None,
        };
        let (mut exported, progress) = (0, CountProgress::new());
        let mut progress = if file.is_some() { progress } else { progress.beside_output() };
        while !walk.is_done() {
            let mut lines = String::new();
            for line in queue.export(&mut walk, PAGE).await? {
                if file.is_none() && cx.output.is_json() {
                    lines += &cx.output.line(&Exported::Letter(RawValue::from_string(line)?))?;
                } else {
                    // The same letter when it is parsed, without control characters for a terminal.
                    lines += &sanitize::json(&line);
                    lines.push('\n');
                }
                exported += 1;
            }
            match &mut file {
                Some((path, file)) => {
                    let written = file.write_all(lines.as_bytes());
                    written.with_context(|| format!("cannot write {}", path.display()))?;
                }
                None => cx.output.write(&lines)?,
            }
            progress.set(exported, "letter", "letters");
        }
        drop(progress);
        if let Some((path, file)) = file {
            let file = file.into_inner().map_err(io::IntoInnerError::into_error);
            let written = file.and_then(|file| file.sync_all());
            written.with_context(|| format!("cannot write {}", path.display()))?;
            let file = path.display().to_string();
            let text = format!("{} in {file}", human::of(exported, "letter", "letters"));
            cx.output.show(&Exported::File { exported, file }, |_| text)?;
        } else {
            cx.output.note(&human::of(exported, "letter", "letters"));
        }
        Ok(Exit::Done)
    }
}

impl Import {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let queue = open(cx, &self.of, &millstream::admin::DeadLetterFilter::default()).await?;
        let name = self.file.display().to_string();
        let mut reader: Box<dyn BufRead> = if self.file == Path::new("-") {
            Box::new(BufReader::new(io::stdin()))
        } else {
            let file = File::open(&self.file).with_context(|| format!("cannot read {name}"))?;
            Box::new(BufReader::new(file))
        };
        let (mut number, mut put) = (0, Put { put: 0, passed_over: 0, dry_run: self.dry.dry_run });
        let mut failed = Ok(());
        loop {
            // Letters imported before an invalid line stay; importing the same file again completes the rest.
            let (letters, problem) = page(&mut *reader, &mut number, &name);
            let end = letters.is_empty();
            if self.dry.dry_run {
                // Checked as far as an import would get with them.
                if let Err(error) = queue.check(&letters) {
                    failed = Err(anyhow::Error::from(error).context(format!("{name}, up to line {number}")));
                    break;
                }
                put.put += letters.len() as u64;
            } else {
                match queue.import(&letters, self.again).await {
                    Ok(Imported { put: more, passed_over }) => {
                        put.put += more;
                        put.passed_over += passed_over;
                    }
                    Err(error) => {
                        failed =
                            Err(anyhow::Error::from(error).context(format!("{name}, up to line {number}")));
                        break;
                    }
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
            let letters = human::of(put.put, "letter", "letters");
            match put.dry_run {
                true => format!("{letters} would be imported, except those that exist"),
                false => format!("{letters} imported, {} skipped", human::count(put.passed_over)),
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
