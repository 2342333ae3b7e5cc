//! `millstream dlq replay`.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use clap::Args;
use millstream::admin::{Failed, Replay as Settings, ReplayTo, Replayed, Replayer, Survey};
use millstream::{Partition, Timestamp, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::dlq::edit::{EditArgs, Editor};
use crate::commands::group::GroupOf;
use crate::commands::shared::count_progress::CountProgress;
use crate::commands::shelf::change::{in_short, left};
use crate::commands::shelf::view::{Shown, table};
use crate::commands::shelf::{Chosen, DlqWanted, Kind, Opened};
use crate::context::{self, Context};
use crate::exit::{self, Exit, Usage};
use crate::human;

/// Sends dead letters back to their group, or to a topic
///
/// Consumers of the group handle them behind the messages that they have read ahead (`consume --prefetch`, a consumer's `prefetch`).
/// In their group (and in no other) they are first attempts, each sent once even if several processes replay it. With
/// --to-topic they become new messages for all groups of that topic, with headers that contain their origin. If the
/// process dies meanwhile, its letters can be replayed again after 30 s. If they are sent unchanged within 10 minutes, none of them
/// is there twice.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq replay orders billing 1700000000000-0
  millstream dlq replay orders billing --error timeout --rate 50 --dry-run
  millstream dlq replay orders billing --all --to-topic orders-repair --set-header mended=yes
  millstream dlq replay orders billing 1700000000000-0 --edit")]
pub(super) struct Replay {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    wanted: DlqWanted,
    #[command(flatten)]
    chosen: Chosen,
    /// Sends them to this topic, for all its groups
    #[arg(long, value_name = "TOPIC")]
    to_topic: Option<TopicName>,
    /// Partition of that topic. Default: by the key
    #[arg(long, value_name = "N", requires = "to_topic")]
    to_partition: Option<u32>,
    #[command(flatten)]
    edit: EditArgs,
    /// Maximum number of letters per second
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Refused {
    partition: u32,
    id: String,
    why: String,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DlqOutcome<V> {
    /// The number of replayed letters; in a dry run, of those that would be, if no other process has them.
    replayed: u64,
    /// Letters that were gone, or claimed by another process.
    passed_over: u64,
    /// Letters that were gone after a request that was not answered: most likely it has replayed them.
    unconfirmed: u64,
    /// Letters that stay, since they cannot be sent in this form.
    refused: u64,
    /// The first of the refused letters.
    refusals: Vec<Refused>,
    /// The first letters of a dry run.
    sample: Vec<V>,
    dry_run: bool,
}

impl DlqOutcome<Shown<'_>> {
    fn of(replayed: &Replayed) -> Self {
        let refusals = replayed.refusals.iter().map(|it| Refused {
            partition: it.topic_partition.partition.0,
            id: it.id.to_string(),
            why: it.why.clone(),
        });
        Self {
            replayed: replayed.replayed,
            passed_over: replayed.passed_over,
            unconfirmed: replayed.unconfirmed,
            refused: replayed.refused,
            refusals: refusals.collect(),
            sample: Vec::new(),
            dry_run: false,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{} replayed", human::of(self.replayed, "dead letter", "dead letters"));
        if self.passed_over > 0 {
            text += &format!(", {} skipped: deleted, or claimed by others", human::count(self.passed_over));
        }
        if self.unconfirmed > 0 {
            let gone = human::of(self.unconfirmed, "letter is", "letters are");
            text += &format!(
                "\n{gone} gone after a request without an answer, which has most likely replayed them"
            );
        }
        text + &self.refusals_text()
    }

    fn refusals_text(&self) -> String {
        let line = |Refused { partition, id, why }: &Refused| {
            format!("\n{id} of partition {partition} stays: {why}")
        };
        self.refusals.iter().map(line).collect()
    }
}

/// Time for which transient errors are retried: less than the hold of a claim.
const OUTAGE_LIMIT: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(250);

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    let makes_sense = rate.is_finite() && rate >= 1.0 / 86_400.0;
    if makes_sense { Ok(rate) } else { Err("the minimum is one per day, 0.0000116".to_owned()) }
}

impl Replay {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let mut filter = self.wanted.filter(cx).await?;
        self.chosen.add(Kind::Letters, &mut filter)?;
        let opened = Opened::group(cx, Kind::Letters, &self.of, &filter).await?;
        let queue = cx.admin().dead_letters(&self.of.topic, &self.of.group).await?;
        let (survey, missing) = self.chosen.survey(&opened, &filter).await?;
        let letters = human::of(survey.matched, "dead letter", "dead letters");
        let to = match &self.to_topic {
            None => format!("group {}", self.of.group),
            Some(topic) => format!("topic {topic}"),
        };
        let mut settings = Settings {
            to: match &self.to_topic {
                None => ReplayTo::Group,
                Some(topic) => {
                    ReplayTo::Topic { topic: topic.clone(), partition: self.to_partition.map(Partition) }
                }
            },
            rate: self.rate,
            limit: self.chosen.limit,
            ..Settings::default()
        };
        let by_hand_of = self.changes(&mut settings, &survey)?;
        // Limits the replay to the letters in the prompt, without those that died while it was read or during an
        // edit.
        filter.up_to = Some(survey.ends.clone());
        // Checks whether the replay is possible, without an effect.
        let preview = queue.replayer(&filter, settings.clone()).await?;
        if self.dry.dry_run {
            let mut outcome = DlqOutcome::of(&preview.preview().await?);
            (outcome.dry_run, outcome.sample) = (true, survey.sample.iter().map(Shown).collect());
            cx.output.show(&outcome, |it| {
                let letters = human::of(it.replayed, "dead letter", "dead letters");
                let table = table(&survey.sample, Timestamp::default());
                format!("{letters} would be replayed to {to}{}\n{table}", it.refusals_text())
            })?;
            return self.end(cx, &outcome, &missing);
        }
        if let Some((editor, letter)) = by_hand_of {
            settings.edit.payload = Some(editor.open(letter.facts().body)?);
        }
        if survey.matched > 0 && !self.chosen.is_named() {
            cx.confirm(&format!("Replay {letters} to {to}?"))?;
        }
        let mut replayer = queue.replayer(&filter, settings).await?;
        let ended = steps(cx, &mut replayer).await;
        let outcome = DlqOutcome::of(replayer.replayed());
        cx.output.show(&outcome, DlqOutcome::text)?;
        let ended = ended.map_err(|error| {
            let done = outcome.replayed + outcome.passed_over + outcome.unconfirmed + outcome.refused;
            let rest = survey.matched.saturating_sub(done);
            // What was claimed for another topic is free again when the claim has run out.
            left(error, rest, Kind::Letters, if self.to_topic.is_some() { " in 30 s" } else { "" })
        });
        if !ended? {
            return Err(exit::Interrupted.into());
        }
        self.end(cx, &outcome, &missing)
    }

    /// Returns the result after everything was shown: what was selected and is not replayed is an error.
    fn end(&self, cx: &Context, outcome: &DlqOutcome<Shown<'_>>, missing: &[String]) -> Result<Exit> {
        self.chosen.missing(cx, Kind::Letters, missing)?;
        if outcome.refused > 0 {
            let letters = human::of(outcome.refused, "letter stays: it", "letters stay: they");
            bail!("{letters} cannot be sent unchanged");
        }
        if outcome.passed_over > 0 {
            let skipped = human::of(outcome.passed_over, "dead letter", "dead letters");
            bail!("{skipped} skipped: deleted meanwhile, or claimed by others");
        }
        Ok(Exit::Done)
    }

    /// Sets the edit of the options. Returns what is to be edited by hand, and with what.
    fn changes<'a>(
        &self,
        settings: &mut Settings,
        survey: &'a Survey,
    ) -> Result<Option<(Editor, &'a Failed)>> {
        (settings.edit, settings.limits) = (self.edit.edit()?, self.edit.max_payload.limits());
        match survey.sample.as_slice() {
            _ if !self.edit.edit => Ok(None),
            [letter] if survey.matched == 1 => {
                let editor = Editor::find()?;
                // Another one is to come: whether it can be is known before it is written.
                settings.edit.payload = Some(Bytes::new());
                settings.edit.apply_within(letter.facts().body, &settings.limits)?;
                Ok(Some((editor, letter)))
            }
            _ => {
                let many = human::of(survey.matched, "is", "are");
                Err(Usage(format!("--edit is for one letter, and {many} selected")).into())
            }
        }
    }
}

/// Runs all steps; returns `false` if a signal interrupted them. They end between two steps, so that none is half
/// done.
async fn steps(cx: &Context, replayer: &mut Replayer) -> Result<bool> {
    let stopped = context::stopped();
    tokio::pin!(stopped);
    // From now on signals are handled and do not end the process.
    if context::is_ready(&mut stopped).await? {
        return Ok(false);
    }
    let mut progress = CountProgress::new();
    // The start of an outage. One line says that it has begun: each attempt has the same error.
    let mut since: Option<Instant> = None;
    while !replayer.is_done() {
        match replayer.run_once().await {
            // A letter that was sent and not deleted is deleted by the next step, if that runs before its claim
            // expires.
            Err(error) if error.is_transient() && since.is_none_or(|at| at.elapsed() < OUTAGE_LIMIT) => {
                if let (None, Some(why)) = (since, in_short(&error)) {
                    let limit = human::duration(OUTAGE_LIMIT);
                    cx.output.note(&format!("{why}; it is tried again for {limit}"));
                }
                since.get_or_insert_with(Instant::now);
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            other => other?,
        }
        since = None;
        progress.set_as(replayer.replayed().replayed, "dead letter", "dead letters", "replayed");
        let pause = if replayer.is_done() { Duration::ZERO } else { replayer.wait() };
        tokio::select! {
            biased;
            stopped = &mut stopped => {
                stopped?;
                return Ok(replayer.is_done());
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
    Ok(true)
}
