//! `millstream consume`: a member of a group that prints messages, or runs a command for each.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::Args;
use millstream::{
    Concurrency, ConsumerBuilder, ConsumerConfig, ErrorKind, Exponential, GroupName, Limits, Pulled, Puller,
    Report, Timestamp, Topic, TopicName,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::commands::StopWithin;
use crate::commands::exec::Exec;
use crate::commands::message::MessageView;
use crate::commands::message::format::FormatArgs;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::emptiness;
use crate::context::{self, Context};
use crate::exit::{Exit, Interrupted, not_found};
use crate::human;
use crate::parse::{self, Position};

/// Interval between two checks whether the group has anything left, while no message arrives.
const CHECK: Duration = Duration::from_millis(200);

/// Interval between two checks whether the group is paused, while no message arrives.
const PAUSE_CHECK: Duration = Duration::from_secs(2);

/// Maximum number of messages that are read ahead per partition: the default of consumers.
const PREFETCH: u32 = 512;

/// Handles messages as a member of a group: prints them, or runs a command for each
///
/// A message is acknowledged when it has been printed, or when its command has exited with 0. Other members of the
/// group receive other messages; if this one dies, they receive its remaining messages. The command runs until it is
/// stopped; then it completes the messages that it has begun, for up to --shutdown-timeout, and returns the others. A second
/// signal does not wait for commands. If it is stopped before --limit or --until-empty is reached, the exit code is 130.
///
/// SIGINT, SIGTERM and SIGHUP stop it, unless SIGHUP is ignored, as under `nohup`. Signals within half a second are one: wrappers
/// send theirs to their child and to its process group.
///
/// With --exec the shell runs the command for each message. Its stdin is the payload, and its environment contains
/// `MILLSTREAM_TOPIC`, `MILLSTREAM_GROUP`, `MILLSTREAM_PARTITION`, `MILLSTREAM_ID`, `MILLSTREAM_TIME_MS`,
/// `MILLSTREAM_ATTEMPT`, `MILLSTREAM_KEY` if there is a key (`MILLSTREAM_KEY_BASE64` if the key contains zero bytes),
/// and `MILLSTREAM_HEADERS` as JSON. With any other exit code the attempt has failed: the message is retried after
/// --retry-delay, and becomes a dead letter after --max-attempts; with the --reject-code it becomes one at once. The
/// stored error is the last line of stderr. If `consume` is killed, its commands are killed with their process groups; processes
/// that have left the group go on. With 126 or 127 the shell could not run the command: `consume` returns the
/// message, without an attempt, and ends with an error.
///
/// A printed message is acknowledged even if stdout is closed (`>&-`) or is `/dev/null`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream consume orders --group billing
  millstream consume orders --group archive --until-empty --format json >> orders.ndjson
  millstream consume mails --group mailer --exec 'sendmail \"$MILLSTREAM_KEY\"' --max-attempts 5 --concurrency 4")]
pub(crate) struct Consume {
    /// The topic
    topic: TopicName,
    /// The group; it is created if it does not exist
    #[arg(long, short)]
    group: GroupName,
    /// Start position of a new group: `earliest`, `latest`, an id, or a time (`2h ago`, `2026-01-31`)
    #[arg(long, value_parser = parse::position, value_name = "POSITION", default_value = "earliest")]
    from: Position,
    /// Ends after this many messages, including failed attempts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Ends when the group has no message left that is unread, pending or waiting for a retry
    #[arg(long)]
    until_empty: bool,
    /// Runs this command for each message
    #[arg(long, value_name = "COMMAND", conflicts_with = "format")]
    exec: Option<String>,
    /// Maximum number of attempts before a message becomes a dead letter
    #[arg(long, value_name = "N", default_value_t = 10, requires = "exec", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: u32,
    /// Maximum delay of the first retry; it doubles with each attempt, and the actual delay is random
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "500ms", requires = "exec")]
    retry_delay: Duration,
    /// Upper limit of these delays
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "60s", requires = "exec")]
    max_retry_delay: Duration,
    /// Exit code with which the command rejects a message: it becomes a dead letter and is not retried. The default is
    /// `EX_DATAERR` of sysexits.h
    #[arg(long, value_name = "CODE", default_value_t = 65, requires = "exec", value_parser = clap::value_parser!(u8).range(1..=125))]
    reject_code: u8,
    /// Ends with exit code 3 if a message became a dead letter
    #[arg(long)]
    fail_on_dead: bool,
    /// Maximum number of messages of a partition that are read ahead; other members do not receive these
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), default_value_t = PREFETCH)]
    prefetch: u32,
    /// Maximum number of commands at the same time; messages with the same key run one after the other
    #[arg(long, value_name = "N", default_value_t = 1, requires = "exec", value_parser = at_once)]
    concurrency: usize,
    /// Maximum time of a command; after that it is killed and has failed. Default: no limit
    #[arg(long, value_name = "TIME", value_parser = parse::duration, requires = "exec")]
    timeout: Option<Duration>,
    /// Member id that stays the same after a restart, unique in the group. Its partitions are kept for 45 s. Default:
    /// host name, process id and a random part
    #[arg(long, value_name = "NAME")]
    member_id: Option<String>,
    #[command(flatten)]
    stop: StopWithin,
    #[command(flatten)]
    format: FormatArgs,
}

fn at_once(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1_000) => Ok(number),
        _ => Err(format!("{text:?} is not from 1 to 1000")),
    }
}

/// The reason for the end of the loop.
enum ConsumeEnded {
    /// The limit was reached, or the group has nothing left.
    Done,
    /// A signal.
    Stopped,
    /// An error, with the message that caused it and is not acknowledged.
    Failed(anyhow::Error, Option<Pulled<Bytes>>),
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("consume", of::<MessageView>())];

impl Consume {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        // Unless it is certain, nothing is said.
        let is_new = match cx.admin().groups(&self.topic).await {
            Ok(groups) => !groups.contains(&self.group),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        let builder = self.consumer(cx).await?;
        // Before the consumer starts, which creates a deleted log again.
        emptiness::note(cx, &self.topic, None).await;
        let exec = match &self.exec {
            None => None,
            Some(command) => Some(Exec::new(command, Some(&self.group), self.timeout, cx.output)),
        };
        // From now on it may hold leases, so signals are handled and do not end the process.
        let stopped = context::stopped();
        tokio::pin!(stopped);
        if context::is_ready(&mut stopped).await? {
            return self.ended(true);
        }
        let pull = builder.pull();
        tokio::pin!(pull);
        let puller = tokio::select! {
            biased;
            puller = &mut pull => puller?,
            signal = &mut stopped => {
                signal?;
                self.shut_down(pull.await?).await?;
                return self.ended(true);
            }
        };
        if is_new {
            cx.output.note(&format!("created group {} of {} at {}", self.group, self.topic, self.from));
        }
        let (report, is_stopped) = match exec {
            None => self.print(cx, puller, stopped).await?,
            Some(exec) => self.execute(cx, puller, exec, stopped).await?,
        };
        cx.output.note(&summary(report));
        if report.dead > 0 {
            let (topic, group) = (&self.topic, &self.group);
            cx.output.note(&format!("`millstream dlq list {topic} {group}` shows the dead letters"));
        }
        let ended = self.ended(is_stopped)?;
        Ok(if self.fail_on_dead && report.dead > 0 { Exit::Wrong } else { ended })
    }

    /// Returns the result of the end: without these options, a signal is the regular one.
    fn ended(&self, is_stopped: bool) -> Result<Exit> {
        let is_early = is_stopped && (self.limit.is_some() || self.until_empty);
        if is_early { Err(Interrupted.into()) } else { Ok(Exit::Done) }
    }

    async fn consumer(&self, cx: &Context) -> Result<ConsumerBuilder<Bytes>> {
        let spec = match cx.admin().topic(&self.topic).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(not_found(format!("topic {} does not exist", self.topic)));
            }
            other => other?,
        };
        let topic = Topic::raw("")
            .named(self.topic.as_str())
            .partitions(spec.partitions)
            .retention(spec.retention)
            .dead_letter_retention(spec.dead_letter_retention);
        let topic = spec.max_length.map_or(topic.clone(), |entries| topic.max_length(entries));
        let topic = spec.packing.map_or(topic.clone(), |packing| topic.packed(packing));
        // Messages that are read ahead are not available to other members until the end.
        let most = u64::from(self.prefetch);
        let prefetch = self.limit.unwrap_or(most).clamp(1, most) as usize;
        let mut config = ConsumerConfig::default();
        // What is too large is decided by the programs that use the topic.
        config.limits = Limits::NONE;
        let consumer = cx
            .mq
            .consumer(topic, self.group.as_str())
            .config(config)
            .start_from(self.from.start(cx.now().await?))
            .label(here())
            .prefetch(prefetch)
            .retry(
                Exponential::from(self.retry_delay)
                    .up_to(self.max_retry_delay.max(self.retry_delay))
                    .attempts(self.max_attempts),
            );
        let consumer = self.member_id.iter().fold(consumer, ConsumerBuilder::member_id);
        Ok(match self.concurrency {
            1 => consumer,
            several => consumer.concurrency(Concurrency::PerKey(several)),
        }
        .shutdown_timeout(self.stop.shutdown_timeout))
    }

    /// Prints messages, each before it is acknowledged. Returns whether a signal ended it.
    async fn print(
        &self,
        cx: &Context,
        puller: Puller<Bytes>,
        mut stopped: Pin<&mut impl Future<Output = Result<()>>>,
    ) -> Result<(Report, bool)> {
        let mut printer = self.format.printer(cx);
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut checks = Checks::new();
        let mut pause = ConsumePause::default();
        let ended = loop {
            if left == 0 {
                break ConsumeEnded::Done;
            }
            let pulled = tokio::select! {
                biased;
                stopped = &mut stopped => break stopped.map_or_else(|error| ConsumeEnded::Failed(error, None), |()| ConsumeEnded::Stopped),
                pulled = puller.next() => pulled,
                () = checks.next() => {
                    self.note_pause(cx, &mut pause).await;
                    match self.is_empty(cx).await {
                        Ok(true) => break ConsumeEnded::Done,
                        Ok(false) => continue,
                        Err(error) => break ConsumeEnded::Failed(error, None),
                    }
                }
            };
            let Some(pulled) = pulled else { break ConsumeEnded::Failed(over(), None) };
            left -= 1;
            checks.restart();
            match printer.print([&MessageView::given(&pulled)]) {
                Ok(()) => pulled.ack(),
                Err(error) => break ConsumeEnded::Failed(error, Some(pulled)),
            }
        };
        match ended {
            ConsumeEnded::Done => Ok((self.shut_down(puller).await?, false)),
            ConsumeEnded::Stopped => Ok((self.shut_down(puller).await?, true)),
            ConsumeEnded::Failed(error, unprinted) => {
                // The unprinted message stays pending during the shutdown, and the next owner receives it first.
                puller.shutdown_within(Duration::ZERO).await;
                drop(unprinted);
                Err(error)
            }
        }
    }

    /// Runs a command for each message. Returns whether a signal ended it.
    async fn execute(
        &self,
        cx: &Context,
        puller: Puller<Bytes>,
        exec: Exec,
        mut stopped: Pin<&mut impl Future<Output = Result<()>>>,
    ) -> Result<(Report, bool)> {
        let exec = Arc::new(exec);
        let output = cx.output;
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut running = JoinSet::new();
        let (cut, is_cut) = watch::channel(false);
        let (impossible, mut cannot_run) = watch::channel(None::<String>);
        let impossible = Arc::new(impossible);
        let mut checks = Checks::new();
        let mut pause = ConsumePause::default();
        let ended = loop {
            if left == 0 && running.is_empty() {
                break ConsumeEnded::Done;
            }
            let has_room = left > 0 && running.len() < self.concurrency;
            let pulled = tokio::select! {
                biased;
                stopped = &mut stopped => break stopped.map_or_else(|error| ConsumeEnded::Failed(error, None), |()| ConsumeEnded::Stopped),
                Ok(why) = cannot_run.wait_for(Option::is_some) => {
                    break ConsumeEnded::Failed(anyhow::anyhow!(why.clone().unwrap_or_default()), None);
                }
                Some(_) = running.join_next(), if !running.is_empty() => continue,
                pulled = puller.next(), if has_room => pulled,
                () = checks.next(), if running.is_empty() => {
                    self.note_pause(cx, &mut pause).await;
                    match self.is_empty(cx).await {
                        Ok(true) => break ConsumeEnded::Done,
                        Ok(false) => continue,
                        Err(error) => break ConsumeEnded::Failed(error, None),
                    }
                }
            };
            let Some(pulled) = pulled else { break ConsumeEnded::Failed(over(), None) };
            left -= 1;
            checks.restart();
            let (exec, mut is_cut) = (exec.clone(), is_cut.clone());
            let (impossible, reject_code) = (impossible.clone(), i32::from(self.reject_code));
            running.spawn(async move {
                let view = MessageView::given(&pulled);
                let ended = tokio::select! {
                    biased;
                    ended = exec.run(&view, &[]) => ended,
                    // The sender is dropped after this task.
                    _ = is_cut.wait_for(|is_cut| *is_cut) => return pulled.snooze(Duration::ZERO),
                };
                match ended {
                    Ok(()) => pulled.ack(),
                    Err(error) if error.is_of_the_command() => {
                        impossible.send_replace(Some(error.to_string()));
                        pulled.snooze(Duration::ZERO);
                    }
                    Err(error) => {
                        let (of, attempt) = (&view.topic_partition, pulled.attempt());
                        output.note(&format!("{of} {}: attempt {attempt}: {error}", view.id));
                        if error.code == Some(reject_code) {
                            pulled.dead_letter(error.to_string());
                        } else {
                            pulled.retry(error.to_string());
                        }
                    }
                }
            });
        };
        // Other members receive the messages that were not begun immediately.
        puller.stop();
        // Those that are killed snooze their messages, which does not count as a failed attempt.
        let end = async { while running.join_next().await.is_some() {} };
        self.stop.end(end, || _ = cut.send_replace(true)).await?;
        let report = self.shut_down(puller).await?;
        match ended {
            ConsumeEnded::Done => Ok((report, false)),
            ConsumeEnded::Stopped => Ok((report, true)),
            ConsumeEnded::Failed(error, _) => Err(error),
        }
    }

    /// Prints a note when the group is paused or resumed, since nothing else would show why no message arrives.
    async fn note_pause(&self, cx: &Context, pause: &mut ConsumePause) {
        if !pause.is_due() {
            return;
        }
        // The check is repeated, and the consumer logs the error.
        let Ok(state) = cx.admin().group_state(&self.topic, &self.group).await else { return };
        let (topic, group) = (&self.topic, &self.group);
        match (state.paused, std::mem::replace(&mut pause.since, state.paused)) {
            (Some(since), None) => cx.output.note(&format!(
                "group {group} is paused since {}: waiting until `millstream group resume {topic} {group}`",
                human::time(since)
            )),
            (None, Some(_)) => cx.output.note(&format!("group {group} is resumed")),
            _ => {}
        }
    }

    /// Whether the group has nothing left, with `--until-empty`. An unknown lag is not zero.
    async fn is_empty(&self, cx: &Context) -> Result<bool> {
        if !self.until_empty {
            return Ok(false);
        }
        let topic = Topic::raw("").named(self.topic.as_str());
        match cx.mq.stats(&topic, self.group.as_str()).await {
            Ok(stats) => Ok(stats.iter().all(|it| it.lag == Some(0) && it.pending == 0 && it.retrying == 0)),
            Err(error) if error.is_transient() => Ok(false),
            other => other.map(|_| false).context("cannot determine whether anything is left"),
        }
    }

    /// Shuts down within the time limit, unless another signal arrives.
    async fn shut_down(&self, puller: Puller<Bytes>) -> Result<Report> {
        let report = tokio::select! {
            biased;
            report = puller.shutdown() => report,
            stopped = context::stopped() => {
                stopped?;
                return Err(Interrupted.into());
            }
        };
        if report.unsettled > 0 {
            let left = human::of(report.unsettled, "message", "messages");
            let limit = human::duration(self.stop.shutdown_timeout);
            bail!("{left} not settled within {limit}, to be handled again");
        }
        Ok(report)
    }
}

/// Returns the label of this member: host name and process id.
pub(in crate::commands) fn here() -> String {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy().into_owned();
    // The part behind the first point is the domain.
    format!("{}-{}", host.split('.').next().unwrap_or_default(), std::process::id())
}

fn over() -> anyhow::Error {
    anyhow::anyhow!("the consumer ended unexpectedly")
}

/// Formats the results.
fn summary(report: Report) -> String {
    let mut text = human::of(report.acked, "message", "messages") + " done";
    for (count, one, many) in
        [(report.retried, "failed attempt", "failed attempts"), (report.dead, "dead letter", "dead letters")]
    {
        if count > 0 {
            text += &format!(", {}", human::of(count, one, many));
        }
    }
    text
}

/// The last known pause of the group.
#[derive(Default)]
struct ConsumePause {
    since: Option<Timestamp>,
    checked: Option<Instant>,
}

impl ConsumePause {
    /// Whether the next check is due: at the start, and then once per interval.
    fn is_due(&mut self) -> bool {
        let is_due = self.checked.is_none_or(|at| at.elapsed() >= PAUSE_CHECK);
        if is_due {
            self.checked = Some(Instant::now());
        }
        is_due
    }
}

/// Timer of the checks whether anything is left. Each message restarts it.
struct Checks(Interval);

impl Checks {
    fn new() -> Self {
        let mut every = interval_at(Instant::now() + CHECK, CHECK);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(every)
    }

    async fn next(&mut self) {
        self.0.tick().await;
    }

    fn restart(&mut self) {
        self.0.reset();
    }
}
