//! `millstream verify`: checks that every message is in exactly one place.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Result, bail};
use clap::Args;
use futures_util::stream::{self, StreamExt};
use millstream::admin::{Fault, Loss, Repaired, Verdict, Verified, VerifyOptions, advice};
use millstream::crates::core::QueueName;
use millstream::{ErrorKind, Timestamp, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::message::sanitize;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::count_progress::CountProgress;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Output, Tone};
use crate::{human, output};

/// Checks that every message of topics and delay queues is in exactly one place
///
/// It checks pending, parked, noted and scheduled messages while consumers run; unread messages are not read. The exit
/// code is 3 if a fault was found and not repaired. A repair loses no message; some may be handled twice.
///
/// Entries that were lost before, for example with a log that somebody deleted, are recorded by the repair. From then on
/// they are reported by every check, which never says `sound` of them again.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream verify
  millstream verify orders payments --queue mails
  millstream verify orders --repair --yes
  millstream verify orders --all | less
  millstream verify --queue mails --json | jq '.data.findings[].fault'")]
pub(crate) struct Verify {
    /// The topics. Default: all topics and all delay queues
    #[arg(value_name = "TOPIC")]
    topics: Vec<TopicName>,
    /// A delay queue; can be repeated
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<QueueName>,
    /// Repairs the faults that can be repaired
    #[arg(long)]
    repair: bool,
    /// Maximum number of findings in total; the check ends at the next one, which is not repaired
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// Shows every finding. Default: the first 10 of each kind of fault; with --json always every one
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// Maximum number of subjects that are checked at the same time: what all of them ask for in a moment is one request.
const AT_ONCE: usize = 32;
/// Number of findings of each kind of fault that are shown unless all are requested.
const SHOWN: usize = 10;

/// The subject of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Topic(TopicName),
    Queue(QueueName),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => write!(f, "topic {topic}"),
            Self::Queue(queue) => write!(f, "delay queue {queue}"),
        }
    }
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct VerifyView {
    /// Whether no fault is left, and nothing was ever lost.
    sound: bool,
    /// Whether no fault is left.
    repaired: bool,
    /// Entries whose loss is recorded.
    lost: Option<LossView>,
    looked_at: u64,
    /// Whether it ended before everything was checked.
    cut: bool,
    checked: Vec<Checked>,
    findings: Vec<FindingView>,
}

/// Entries that were lost.
#[derive(Debug, Serialize, JsonSchema)]
struct LossView {
    unread: u64,
    pending: u64,
    /// Whole logs: what was in them is not known, so the other numbers are then lower bounds.
    logs: u64,
    /// The time at which the last part of it was found.
    #[schemars(with = "Option<u64>")]
    last_found_ms: Option<Timestamp>,
    #[serde(skip)]
    text: String,
}

impl LossView {
    fn of(loss: Loss) -> Option<Self> {
        let Loss { unread, pending, logs, at, .. } = loss;
        let known = Self { unread, pending, logs, last_found_ms: at, text: loss.to_string() };
        Some(known).filter(|_| !loss.is_nothing())
    }
}

/// A checked subject.
#[derive(Debug, Serialize, JsonSchema)]
struct Checked {
    topic: Option<String>,
    queue: Option<String>,
    sound: bool,
    /// Whether no fault is left.
    repaired: bool,
    looked_at: u64,
    findings: u64,
    /// The reason why it could not be checked.
    error: Option<String>,
}

impl Checked {
    fn of(subject: &Subject, verified: &Verified) -> Self {
        let (topic, queue) = match subject {
            Subject::Topic(topic) => (Some(topic.to_string()), None),
            Subject::Queue(queue) => (None, Some(queue.to_string())),
        };
        Self {
            topic,
            queue,
            sound: verified.is_sound(),
            repaired: verified.is_repaired(),
            looked_at: verified.looked_at,
            findings: verified.verdicts.len() as u64,
            error: None,
        }
    }

    fn failed(subject: &Subject, error: &millstream::Error) -> Self {
        let error = Some(error.to_string());
        Self { sound: false, repaired: false, error, ..Self::of(subject, &Verified::default()) }
    }

    fn row(&self) -> Vec<String> {
        let (kind, name) = match (&self.topic, &self.queue) {
            (Some(topic), _) => ("topic", topic.as_str()),
            (None, queue) => ("queue", queue.as_deref().unwrap_or_default()),
        };
        let how = match (&self.error, self.sound) {
            (Some(_), _) => "not checked",
            (None, true) => "sound",
            (None, false) if self.repaired => "entries were lost",
            (None, false) => "not sound",
        };
        let numbers = [self.findings, self.looked_at].map(human::count);
        [kind.to_owned(), name.to_owned()].into_iter().chain(numbers).chain([how.to_owned()]).collect()
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct FindingView {
    fault: &'static str,
    /// The place of the finding.
    scope: String,
    /// The subject of the finding: an id, a name, a key.
    id: String,
    detail: String,
    /// `not_asked`, `yes`, `gone` (the fault was gone), `still` (the fault is still there) or `person` (a person has
    /// to decide), or `record` (of a loss).
    #[schemars(extend("enum" = ["not_asked", "yes", "gone", "still", "person", "record"]))]
    repaired: &'static str,
    /// The loss that it proves, or the record of it.
    loss: Option<LossView>,
    advice: &'static str,
    #[serde(skip)]
    of: Fault,
}

impl FindingView {
    fn of(Verdict { finding, repaired }: Verdict) -> Self {
        Self {
            fault: finding.fault.as_str(),
            scope: finding.scope.to_string(),
            loss: finding.loss.and_then(LossView::of),
            id: finding.id,
            detail: finding.detail,
            repaired: match repaired {
                Repaired::NotAsked => "not_asked",
                Repaired::Yes => "yes",
                Repaired::Gone => "gone",
                Repaired::Still => "still",
                Repaired::Person => "person",
                Repaired::Record => "record",
            },
            advice: finding.fault.advice(),
            of: finding.fault,
        }
    }

    fn line(&self, output: Output) -> String {
        let (tone, word) = match self.repaired {
            "yes" => (Tone::Good, "repaired"),
            "gone" => (Tone::Good, "gone"),
            "person" => (Tone::Bad, "by hand"),
            "still" => (Tone::Bad, "still"),
            "record" => (Tone::Bad, "lost"),
            _ => (Tone::Bad, "wrong"),
        };
        let word = output.paint(tone, &format!("{word:8}"));
        let Self { fault, scope, id, detail, .. } = self;
        let (id, detail) = (sanitize::line(id.as_bytes()), sanitize::line(detail.as_bytes()));
        format!("{word}  {fault}  {scope}  {id}  {detail}\n")
    }
}

impl VerifyView {
    fn text(&self, output: Output, most: usize) -> String {
        let mut by_fault: BTreeMap<Fault, Vec<&FindingView>> = BTreeMap::new();
        for finding in &self.findings {
            by_fault.entry(finding.of).or_default().push(finding);
        }
        let mut text = String::new();
        if !by_fault.is_empty() {
            let row = |(fault, found): (&Fault, &Vec<_>)| {
                [fault.to_string(), human::count(found.len() as u64), advice(*fault)]
            };
            text += &output::table(&["fault", ">found", "what to do"], by_fault.iter().map(row));
            text += "\n\n";
            for found in by_fault.values() {
                text.extend(found.iter().take(most).map(|finding| finding.line(output)));
                if let Some(more @ 1..) = found.len().checked_sub(most) {
                    let more = human::count(more as u64);
                    text += &format!("          {}  … {more} more; --all shows them\n", found[0].fault);
                }
            }
            text.push('\n');
        }
        if self.checked.len() > 1 {
            text += &self.table();
            text += "\n\n";
        }
        let found = human::of(self.findings.len() as u64, "finding", "findings");
        text += &format!("{found} in {}: ", human::of(self.looked_at, "item", "items"));
        let lost = self.lost.as_ref().map(|lost| format!("{} were lost", lost.text));
        text += &match (self.repaired, self.cut, lost) {
            // That says nothing of another namespace, or of another database.
            (true, _, None) if self.looked_at == 0 => {
                "there is nothing here; check --url and --namespace".to_owned()
            }
            (true, _, None) => "sound".to_owned(),
            (true, _, Some(lost)) => format!("repaired; {lost}"),
            (false, true, _) => "not everything was looked at, there are too many".to_owned(),
            (false, false, None) => "not sound".to_owned(),
            (false, false, Some(lost)) => format!("not sound; {lost}"),
        };
        text
    }

    fn table(&self) -> String {
        let mut rows: Vec<_> = self.checked.iter().map(Checked::row).collect();
        let sum = [self.findings.len() as u64, self.looked_at].map(human::count);
        rows.push(["all".to_owned(), String::new()].into_iter().chain(sum).chain([String::new()]).collect());
        output::table(&["", "name", ">findings", ">items", ""], rows)
    }
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("verify", of::<VerifyView>())];

impl Verify {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let repair = self.repair && !self.dry.dry_run;
        let subjects = self.subjects(cx).await?;
        if self.repair && self.dry.dry_run {
            cx.output.note("dry run: nothing is repaired");
        } else if repair && !subjects.is_empty() {
            cx.confirm(&format!("Repair what is found in {}?", listed(&subjects)))?;
        }
        let named = self.names_some();
        let mut view = VerifyView::default();
        let (mut failed, mut lost) = (Vec::new(), Loss::default());
        let (looked_at, mut progress) = (Arc::new(AtomicU64::new(0)), CountProgress::new());
        let (limit, found) = (self.limit as usize, Cell::new(0));
        let verified = stream::iter(&subjects).map(|subject| {
            let limit = limit - found.get();
            let options = VerifyOptions { repair, limit, progress: Some(looked_at.clone()) };
            async move { (subject, verify(cx, subject, options).await) }
        });
        // A repair ends at the limit, and no other one is half done then.
        let mut verified = verified.buffered(if repair { 1 } else { AT_ONCE });
        while let Some((subject, verified)) =
            progress.during(verified.next(), &looked_at, "item", "items").await
        {
            match verified {
                // One of all subjects was deleted in the meantime.
                Err(error) if error.kind() == ErrorKind::NotFound && !named => {}
                Err(error) => {
                    view.checked.push(Checked::failed(subject, &error));
                    failed.push((subject, error));
                }
                Ok(verified) => {
                    view.checked.push(Checked::of(subject, &verified));
                    view.looked_at += verified.looked_at;
                    view.cut = verified.cut;
                    lost = lost.and(verified.lost());
                    view.findings.extend(verified.verdicts.into_iter().map(FindingView::of));
                    // Those that are checked at once find more together than each may.
                    view.cut |= view.findings.len() > limit;
                    view.findings.truncate(limit);
                    found.set(view.findings.len());
                }
            }
            if view.cut {
                break;
            }
        }
        drop(verified);
        drop(progress);
        view.sound = !view.cut && view.checked.iter().all(|it| it.sound);
        view.repaired = !view.cut && view.checked.iter().all(|it| it.repaired);
        view.lost = LossView::of(lost);
        // A subject that cannot be checked does not prevent the others from being reported.
        if failed.len() == 1 && view.checked.len() == 1 {
            let Some((_, error)) = failed.pop() else { return Ok(Exit::Wrong) };
            return Err(error.into());
        }
        let most = if self.all { usize::MAX } else { SHOWN };
        cx.output.show(&view, |view| view.text(cx.output, most))?;
        for (subject, error) in &failed {
            cx.output.note(&format!("{subject}: {error}"));
        }
        if !failed.is_empty() {
            bail!("{} of {} could not be checked", failed.len(), view.checked.len());
        }
        Ok(if view.repaired { Exit::Done } else { Exit::Wrong })
    }

    fn names_some(&self) -> bool {
        !self.topics.is_empty() || !self.queues.is_empty()
    }

    /// Returns the named subjects, each once; or all that exist.
    async fn subjects(&self, cx: &Context) -> Result<Vec<Subject>> {
        let (mut topics, mut queues) = if self.names_some() {
            (self.topics.clone(), self.queues.clone())
        } else {
            (cx.admin().topics().await?, cx.mq.backend().tasks()?.queues().await?)
        };
        topics.sort_unstable();
        topics.dedup();
        queues.sort_unstable();
        queues.dedup();
        Ok(topics.into_iter().map(Subject::Topic).chain(queues.into_iter().map(Subject::Queue)).collect())
    }
}

async fn verify(cx: &Context, subject: &Subject, options: VerifyOptions) -> millstream::Result<Verified> {
    match subject {
        Subject::Topic(topic) => cx.admin().verify(topic, options).await,
        Subject::Queue(queue) => cx.admin().verify_queue(queue, options).await,
    }
}

/// Formats the first ones by name, and the number of the rest.
fn listed(subjects: &[Subject]) -> String {
    const NAMED: usize = 5;
    let names: Vec<_> = subjects.iter().take(NAMED).map(ToString::to_string).collect();
    match subjects.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {} more", names.join(", "), human::count(more as u64)),
    }
}
