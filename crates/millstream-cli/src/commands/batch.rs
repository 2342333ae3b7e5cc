//! `millstream batch`.

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::admin::MemberRanges;
use millstream::batch::{BatchParent, BatchState, MemberState};
use millstream::crates::core::steps::OF_MEMBERS;
use millstream::{BatchId, Timestamp, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::schemas::{Table, of};
use crate::commands::{DryRun, Running};
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output};

/// Ranges of members that are shown unless all are asked for.
const SHOWN: usize = 20;

/// Lists, shows, seals, cancels and closes batches of messages
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream batch list reports
  millstream batch show reports/3/0af7651916cd43dd8448eb211c80319c
  millstream batch cancel reports/3/0af7651916cd43dd8448eb211c80319c")]
pub(crate) struct Batches {
    #[command(subcommand)]
    what: BatchCommand,
}

#[derive(Debug, Subcommand)]
enum BatchCommand {
    List(BatchList),
    Show(BatchShow),
    Seal(BatchSeal),
    Cancel(BatchCancel),
    Close(BatchClose),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("batch list", of::<BatchesListed>()),
    ("batch show", of::<BatchShown>()),
    ("batch seal", of::<BatchEnded>()),
    ("batch cancel", of::<BatchEnded>()),
    ("batch close", of::<BatchEnded>()),
];

impl Batches {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            BatchCommand::List(it) => Box::pin(it.run(cx)),
            BatchCommand::Show(it) => Box::pin(it.run(cx)),
            BatchCommand::Seal(it) => Box::pin(it.run(cx)),
            BatchCommand::Cancel(it) => Box::pin(it.run(cx)),
            BatchCommand::Close(it) => Box::pin(it.run(cx)),
        }
    }
}

/// A batch, and how far it is.
#[derive(Debug, Serialize, JsonSchema)]
struct BatchView {
    id: String,
    #[schemars(extend("enum" = ["open", "running", "complete", "succeeded"]))]
    state: &'static str,
    members: u32,
    done: u32,
    dead: u32,
    missing: u32,
    /// Numbers that were reserved, and whose messages nobody confirmed: no members.
    left_out: u32,
    /// When it was created, by the server's clock.
    #[schemars(with = "u64")]
    created_ms: Timestamp,
    /// When it was sealed; `null` if it is open.
    #[schemars(with = "Option<u64>")]
    sealed_ms: Option<Timestamp>,
    /// When all members had ended; `null` before.
    #[schemars(with = "Option<u64>")]
    ended_ms: Option<Timestamp>,
    /// The batch of which it is a member, and its number there; or `step NAME of ID`, the step that waits for it.
    parent: Option<String>,
}

impl BatchView {
    fn of(id: &BatchId, state: &BatchState) -> Self {
        let word = match (state.sealed, state.ended, state.succeeded) {
            (None, ..) => "open",
            (_, _, true) => "succeeded",
            (_, Some(_), _) => "complete",
            _ => "running",
        };
        Self {
            id: id.to_string(),
            state: word,
            members: state.members,
            done: state.done,
            dead: state.dead,
            missing: state.missing(),
            left_out: state.left_out,
            created_ms: state.created,
            sealed_ms: state.sealed,
            ended_ms: state.ended,
            parent: state.parent.as_ref().map(|parent| match parent {
                BatchParent::Step(id, name) => format!("step {} of {id}", name.trim_end_matches(OF_MEMBERS)),
                BatchParent::Batch(member) => member.to_string(),
            }),
        }
    }

    fn row(&self) -> [String; 7] {
        let counts = [self.members, self.done, self.dead, self.missing].map(|count| count.to_string());
        let [members, done, dead, missing] = counts;
        let parent = human::or_none(self.parent.clone(), |parent| parent);
        [self.id.clone(), self.state.to_owned(), members, done, dead, missing, parent]
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("batch", self.id.clone()),
            ("state", self.state.to_owned()),
            ("members", self.members.to_string()),
            ("done", self.done.to_string()),
            ("dead", self.dead.to_string()),
            ("missing", self.missing.to_string()),
            ("created", human::time(self.created_ms)),
            ("sealed", human::or_none(self.sealed_ms, human::time)),
            ("ended", human::or_none(self.ended_ms, human::time)),
        ];
        if self.left_out > 0 {
            lines.push(("left out", format!("{}: nobody confirmed that these are stored", self.left_out)));
        }
        lines.extend(self.parent.iter().map(|parent| ("member of", parent.clone())));
        lines
    }
}

/// Lists the batches that send their messages to a topic
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream batch list reports
  millstream batch list reports --json | jq '.data.batches[] | select(.missing > 0)'")]
struct BatchList {
    /// Topic to which they send their messages
    topic: TopicName,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BatchesListed {
    topic: String,
    batches: Vec<BatchView>,
}

impl BatchList {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let found = cx.admin().batches(&self.topic).await?;
        let batches = found.iter().map(|(id, state)| BatchView::of(id, state)).collect();
        let listed = BatchesListed { topic: self.topic.to_string(), batches };
        cx.output.show(&listed, |listed| match listed.batches.is_empty() {
            true => format!("no batch sends its messages to {}", listed.topic),
            false => output::table(
                &["batch", "state", "members", "done", "dead", "missing", "member of"],
                listed.batches.iter().map(BatchView::row),
            ),
        })?;
        Ok(Exit::Done)
    }
}

/// Shows a batch, and which of its members are missing or dead
///
/// A member is named by its number; its message has batch and number in its header `millstream-batch`. `millstream tail --header` finds it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream batch show reports/3/0af7651916cd43dd8448eb211c80319c
  millstream batch show reports/3/0af7651916cd43dd8448eb211c80319c --all --json | jq .data.missing_members
  millstream tail orders --from earliest --header 'millstream-batch=reports/3/0af7651916cd43dd8448eb211c80319c 17'")]
struct BatchShow {
    /// Id of the batch
    id: BatchId,
    /// Show all members that are missing or dead, and not only the first 20 ranges of each
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BatchShown {
    batch: BatchView,
    /// Members that have not ended, as ranges of their numbers.
    missing_members: Vec<RangeView>,
    /// Members that are dead.
    dead_members: Vec<RangeView>,
    /// Whether there are more of either.
    more: bool,
    /// To which topics and delay queues its members were sent, by their numbers.
    sent: Vec<SentView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RangeView {
    first: u32,
    last: u32,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SentView {
    first: u32,
    last: u32,
    /// A topic; or `queue/` and the name of a delay queue, or `batch/` and that of the topic of a batch that is a member.
    target: String,
    /// Whether whoever sent them has confirmed that they are stored.
    confirmed: bool,
}

impl BatchShow {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let Self { id, all } = self;
        let (admin, limit) = (cx.admin(), if all { usize::MAX } else { SHOWN });
        let state = admin.batch(&id).await?;
        let missing = admin.batch_members(&id, MemberState::Missing, 0, limit).await?;
        let dead = admin.batch_members(&id, MemberState::Dead, 0, limit).await?;
        let ranges = |of: &MemberRanges| {
            of.ranges.iter().map(|(first, last)| RangeView { first: *first, last: *last }).collect()
        };
        let mut sent: Vec<SentView> = Vec::new();
        for it in state.blocks.iter().filter(|it| it.block.to > it.block.from) {
            let (first, last) = (it.block.from, it.block.to - 1);
            match sent.last_mut() {
                Some(before)
                    if (&before.target, before.confirmed, before.last + 1)
                        == (&it.target, it.confirmed, first) =>
                {
                    before.last = last;
                }
                _ => sent.push(SentView { first, last, target: it.target.clone(), confirmed: it.confirmed }),
            }
        }
        let shown = BatchShown {
            batch: BatchView::of(&id, &state),
            missing_members: ranges(&missing),
            dead_members: ranges(&dead),
            more: missing.next.is_some() || dead.next.is_some(),
            sent,
        };
        cx.output.show(&shown, BatchShown::text)?;
        Ok(Exit::Done)
    }
}

impl BatchShown {
    fn text(&self) -> String {
        let mut lines = self.batch.lines();
        let more = if self.more { ", …: see --all" } else { "" };
        for (title, ranges) in [("not ended", &self.missing_members), ("dead ones", &self.dead_members)] {
            if !ranges.is_empty() {
                let ranges: Vec<_> = ranges.iter().map(|it| range(it.first, it.last)).collect();
                lines.push((title, format!("{}{more}", ranges.join(", "))));
            }
        }
        lines.extend(self.sent.iter().map(|it| {
            let confirmed = if it.confirmed { "" } else { " (not confirmed)" };
            ("sent", format!("{} to {}{confirmed}", range(it.first, it.last), it.target))
        }));
        output::list(lines)
    }
}

fn range(first: u32, last: u32) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Seals a batch for whoever has created it and is gone
///
/// Members that their producers have not confirmed are left out; the batch succeeds only when these are done too.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream batch seal reports/3/0af7651916cd43dd8448eb211c80319c
  millstream batch seal reports/3/0af7651916cd43dd8448eb211c80319c --dry-run")]
struct BatchSeal {
    /// Id of the batch
    id: BatchId,
    #[command(flatten)]
    dry: DryRun,
}

/// Cancels all members of a batch that have not ended, and those of batches in it
///
/// None of them begins; handlers that run are asked to stop; what waits for its time is removed. A batch that is open is sealed. Those that were
/// cancelled are dead, and the batch sends its messages when all have ended. The exit code is 3 if some may still run, or were not read yet, else 0;
/// of a dry run it is 0.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream batch cancel reports/3/0af7651916cd43dd8448eb211c80319c
  millstream batch cancel reports/3/0af7651916cd43dd8448eb211c80319c --dry-run")]
struct BatchCancel {
    /// Id of the batch
    id: BatchId,
    #[command(flatten)]
    dry: DryRun,
}

/// Counts the members of a batch that have not ended as dead
///
/// For members that nobody will handle: dropped by a lossy retention, deleted by an operator, or lost in a fail-over. The batch is
/// sealed, ends, and sends its messages. A member that is handled all the same is done then.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream batch close reports/3/0af7651916cd43dd8448eb211c80319c
  millstream batch close reports/3/0af7651916cd43dd8448eb211c80319c --dry-run")]
struct BatchClose {
    /// Id of the batch
    id: BatchId,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BatchEnded {
    /// The batch afterwards.
    batch: BatchView,
    /// Members that waited for their time and were removed.
    removed: u64,
    /// Topics and delay queues of members that do not exist any more.
    gone: Vec<String>,
    dry_run: bool,
}

impl BatchCancel {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (id, dry_run) = (self.id, self.dry.dry_run);
        if dry_run {
            return ended(cx, &id, &cx.admin().batch(&id).await?, (0, Vec::new()), true);
        }
        let cancelled = cx.admin().cancel_batch(&id).await?;
        ended(cx, &id, &cancelled.state, (cancelled.removed, cancelled.gone), false)?;
        Ok(if cancelled.state.missing() > 0 { Exit::Wrong } else { Exit::Done })
    }
}

impl BatchSeal {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (id, dry_run, admin) = (self.id, self.dry.dry_run, cx.admin());
        let state = if dry_run { admin.batch(&id).await? } else { admin.seal_batch(&id).await? };
        ended(cx, &id, &state, (0, Vec::new()), dry_run)
    }
}

impl BatchClose {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (id, dry_run, admin) = (self.id, self.dry.dry_run, cx.admin());
        let state = if dry_run { admin.batch(&id).await? } else { admin.close_batch(&id).await? };
        ended(cx, &id, &state, (0, Vec::new()), dry_run)
    }
}

fn ended(
    cx: &Context,
    id: &BatchId,
    state: &BatchState,
    (removed, gone): (u64, Vec<String>),
    dry_run: bool,
) -> Result<Exit> {
    if dry_run {
        cx.output.note("dry run: nothing was done. What is missing would end:");
    }
    let view = BatchEnded { batch: BatchView::of(id, state), removed, gone, dry_run };
    cx.output.show(&view, |view| {
        let mut lines = view.batch.lines();
        if view.removed > 0 {
            lines.push(("removed", format!("{} that waited for their time", view.removed)));
        }
        lines.extend(view.gone.iter().map(|target| ("gone", target.clone())));
        output::list(lines)
    })?;
    Ok(Exit::Done)
}
