//! `millstream verify`: is every message in exactly one place?

use anyhow::Result;
use clap::{ArgGroup, Args};
use millstream::TopicName;
use millstream::admin::{Fault, Repaired, Verdict, Verified, VerifyOptions, advice};
use millstream::layers::core::QueueName;
use serde::Serialize;

use super::DryRun;
use super::message::plain;
use crate::context::Context;
use crate::exit::Exit;
use crate::human;
use crate::output::{Output, Tone};

/// Checks a topic or a delay queue: is every message in exactly one place?
///
/// It looks at what is pending, parked, noted and scheduled, while everything runs; what is unread is not read. Exit code 3 if
/// something is wrong that was not put right. No message is lost by a repair; some may be handled twice.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").args(["topic", "queue"]).required(true))]
#[command(after_help = "Examples:
  millstream verify orders
  millstream verify orders --repair --yes
  millstream verify --queue mails --json | jq '.findings[].fault'")]
pub(crate) struct Verify {
    /// The topic
    topic: Option<TopicName>,
    /// A delay queue instead
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,
    /// Puts right what can be
    #[arg(long)]
    repair: bool,
    /// Ends behind so many findings
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize)]
struct View {
    topic: Option<String>,
    queue: Option<String>,
    sound: bool,
    looked_at: u64,
    /// It ended before everything was looked at.
    cut: bool,
    findings: Vec<FindingView>,
}

#[derive(Debug, Serialize)]
struct FindingView {
    fault: &'static str,
    /// Where.
    scope: String,
    /// Of what: an id, a name, a key.
    id: String,
    detail: String,
    /// `not_asked`, `yes`, `gone` (it was not so any more) or `person` (has to decide).
    repaired: &'static str,
    advice: &'static str,
    #[serde(skip)]
    of: Fault,
}

impl FindingView {
    fn of(Verdict { finding, repaired }: Verdict) -> Self {
        Self {
            fault: finding.fault.as_str(),
            scope: finding.scope.to_string(),
            id: finding.id,
            detail: finding.detail,
            repaired: match repaired {
                Repaired::NotAsked => "not_asked",
                Repaired::Yes => "yes",
                Repaired::Gone => "gone",
                Repaired::Person => "person",
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
            _ => (Tone::Bad, "wrong"),
        };
        let word = output.paint(tone, &format!("{word:8}"));
        let Self { fault, scope, id, detail, .. } = self;
        let (id, detail) = (plain::line(id.as_bytes()), plain::line(detail.as_bytes()));
        format!("{word}  {fault}  {scope}  {id}  {detail}\n")
    }
}

impl View {
    fn text(&self, output: Output) -> String {
        let mut text: String = self.findings.iter().map(|finding| finding.line(output)).collect();
        let mut faults: Vec<_> = self.findings.iter().map(|finding| finding.of).collect();
        faults.sort_unstable();
        faults.dedup();
        if !faults.is_empty() {
            text.push('\n');
            text.extend(faults.into_iter().map(|fault| advice(fault) + "\n"));
            text.push('\n');
        }
        let found = human::of(self.findings.len() as u64, "finding", "findings");
        text += &format!("{found} in {}: ", human::of(self.looked_at, "item", "items"));
        text += match (self.sound, self.cut) {
            (true, _) => "sound",
            (false, true) => "not everything was looked at, there are too many",
            (false, false) => "not sound",
        };
        text
    }
}

impl Verify {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let repair = self.repair && !self.dry.dry_run;
        let options = VerifyOptions { repair, limit: self.limit as usize };
        let (admin, topic, queue) = (cx.admin(), &self.topic, &self.queue);
        let name =
            || topic.as_ref().map(ToString::to_string).or_else(|| queue.as_ref().map(ToString::to_string));
        if repair {
            cx.confirm(&format!("Repair what is found in {}?", name().unwrap_or_default()))?;
        } else if self.repair {
            cx.output.note("dry run: nothing is repaired");
        }
        let verified = match (topic, queue) {
            (Some(topic), _) => admin.verify(topic, options).await?,
            (None, Some(queue)) => admin.verify_queue(queue, options).await?,
            (None, None) => Verified::default(),
        };
        let view = View {
            topic: topic.as_ref().map(ToString::to_string),
            queue: queue.as_ref().map(ToString::to_string),
            sound: verified.is_sound(),
            looked_at: verified.looked_at,
            cut: verified.cut,
            findings: verified.verdicts.into_iter().map(FindingView::of).collect(),
        };
        cx.output.show(&view, |view| view.text(cx.output))?;
        Ok(if view.sound { Exit::Done } else { Exit::Wrong })
    }
}
