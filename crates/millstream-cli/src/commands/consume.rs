//! `millstream consume`: a member of a group that prints messages, or runs a command for each.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::Args;
use millstream::{
    Concurrency, ConsumerBuilder, ErrorKind, Exponential, GroupName, Pulled, Puller, Report, Topic, TopicName,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::commands::exec::Exec;
use crate::commands::message::View;
use crate::commands::message::format::FormatArgs;
use crate::context::{self, Context};
use crate::exit::{Exit, Interrupted, not_found};
use crate::human;
use crate::parse::{self, Position};

/// How often it is asked whether anything is left, while nothing comes.
const LOOK: Duration = Duration::from_millis(200);

/// How often it is asked whether the group is paused, while nothing comes.
const LOOK_FOR_PAUSE: Duration = Duration::from_secs(2);

/// How many messages of a partition are read ahead at most, as by default.
const PREFETCH: usize = 512;

/// How long commands that run may go on after the first signal. The second one ends them.
const UNTIL_THE_SECOND_SIGNAL: Duration = Duration::from_secs(24 * 3_600);

/// How long the server may take in the end to be told what was done.
const TO_TELL: Duration = Duration::from_secs(30);

/// Handles messages as a member of a group: prints them, or runs a command for each
///
/// A message is done (acked) when it has been printed, or when its command has ended with 0. Other members of the group
/// get other messages; if this one dies, they get what it had not done. It goes on until it is stopped: then it ends what
/// it has begun, and gives the rest back. A second signal does not wait for commands. Stopped before --limit or
/// --until-empty came, it ends with exit code 130.
///
/// With --exec the shell runs the command for each message: the payload is its stdin, and its environment has
/// `MILLSTREAM_TOPIC`, `MILLSTREAM_GROUP`, `MILLSTREAM_PARTITION`, `MILLSTREAM_ID`, `MILLSTREAM_TIME_MS`, `MILLSTREAM_ATTEMPT`,
/// `MILLSTREAM_KEY` if there is a key (`MILLSTREAM_KEY_BASE64` if it cannot stand in an environment), and `MILLSTREAM_HEADERS`
/// as JSON. One that ends with anything but 0 has failed: its message comes back after a while, and after --max-attempts
/// is a dead letter. The reason that is kept is the last line of its stderr.
///
/// A message that is printed counts as done, wherever stdout leads: with stdout closed (`>&-`) that is nowhere, as with
/// `> /dev/null`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream consume orders --group billing
  millstream consume orders --group archive --until-empty --format json >> orders.ndjson
  millstream consume mails --group mailer --exec 'sendmail \"$MILLSTREAM_KEY\"' --max-attempts 5 --concurrency 4")]
pub(crate) struct Consume {
    /// The topic
    topic: TopicName,
    /// The group; it is created if it is not there
    #[arg(long, short)]
    group: GroupName,
    /// Where a group that is new begins: `earliest`, `latest`, an id, or a time (`2h ago`, `2026-01-31`). One that is there goes on where it is
    #[arg(long, value_parser = parse::position, value_name = "POSITION", default_value = "earliest")]
    from: Position,
    /// Ends after so many messages; an attempt that failed counts as well
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Ends when the group has nothing left: nothing unread, in hand or waiting for a retry
    #[arg(long)]
    until_empty: bool,
    /// Runs this command for each message
    #[arg(long, value_name = "COMMAND", conflicts_with = "format")]
    exec: Option<String>,
    /// How often a message is tried before it becomes a dead letter
    #[arg(long, value_name = "N", default_value_t = 10, requires = "exec", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: u32,
    /// How long a message waits after its first failed attempt; then twice as long each time, and any time up to that
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "500ms", requires = "exec")]
    retry_delay: Duration,
    /// The longest of these times
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "60s", requires = "exec")]
    max_retry_delay: Duration,
    /// How many commands run at once; messages with the same key one after the other
    #[arg(long, value_name = "N", default_value_t = 1, requires = "exec", value_parser = at_once)]
    concurrency: usize,
    /// How long a command may take; then it is killed, and has failed. Default: no limit
    #[arg(long, value_name = "TIME", value_parser = parse::duration, requires = "exec")]
    timeout: Option<Duration>,
    /// A name that stays the same after a restart: its partitions are kept for it for 45 s. Nobody else may have it.
    /// Default: host, process id, and a random part
    #[arg(long, value_name = "NAME")]
    member_id: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

fn at_once(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1_000) => Ok(number),
        _ => Err(format!("{text:?} is not from 1 to 1000")),
    }
}

/// Why it ends.
enum Ended {
    /// It has done what was asked.
    Done,
    /// By a signal.
    Stopped,
    /// By an error, with the message that it came of and that is not done.
    Failed(anyhow::Error, Option<Pulled<Bytes>>),
}

impl Consume {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let is_new = !cx.admin().groups(&self.topic).await.is_ok_and(|groups| groups.contains(&self.group));
        let puller = self.consumer(cx).await?.pull().await?;
        if is_new {
            cx.output.note(&format!("created group {} of {} at {}", self.group, self.topic, self.from));
        }
        let (report, is_stopped) = match &self.exec {
            None => self.print(cx, puller).await?,
            Some(command) => {
                let exec =
                    Exec { command: command.clone(), group: self.group.clone(), timeout: self.timeout };
                self.execute(cx, puller, exec).await?
            }
        };
        cx.output.note(&told(report));
        // Without an end of its own, being stopped is how it ends.
        if is_stopped && (self.limit.is_some() || self.until_empty) {
            return Err(Interrupted.into());
        }
        Ok(Exit::Done)
    }

    async fn consumer(&self, cx: &Context) -> Result<ConsumerBuilder<Bytes>> {
        let spec = match cx.admin().topic(&self.topic).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(not_found(format!("topic {} does not exist", self.topic)));
            }
            other => other?,
        };
        let topic =
            Topic::raw("").named(self.topic.as_str()).partitions(spec.partitions).retention(spec.retention);
        let topic = spec.max_length.map_or(topic.clone(), |entries| topic.max_length(entries));
        // What is read ahead is kept from others until this ends.
        let limit = self.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(PREFETCH);
        let consumer = cx
            .mq
            .consumer(topic, self.group.as_str())
            .start_from(self.from.start(cx.now_ms().await?))
            .label(here())
            .prefetch(limit.clamp(1, PREFETCH))
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
        .shutdown_timeout(UNTIL_THE_SECOND_SIGNAL))
    }

    /// Prints messages, each before it is acked. Tells whether a signal ended it.
    async fn print(&self, cx: &Context, puller: Puller<Bytes>) -> Result<(Report, bool)> {
        let mut printer = self.format.printer(cx);
        let mut left = self.limit.unwrap_or(u64::MAX);
        let stopped = context::stopped();
        tokio::pin!(stopped);
        let mut looks = Looks::new();
        let mut pause = Pause::default();
        let ended = loop {
            if left == 0 {
                break Ended::Done;
            }
            let pulled = tokio::select! {
                biased;
                stopped = &mut stopped => break stopped.map_or_else(|error| Ended::Failed(error, None), |()| Ended::Stopped),
                pulled = puller.next() => pulled,
                () = looks.next() => {
                    self.tell_pause(cx, &mut pause).await;
                    match self.is_empty(cx).await {
                        Ok(true) => break Ended::Done,
                        Ok(false) => continue,
                        Err(error) => break Ended::Failed(error, None),
                    }
                }
            };
            let Some(pulled) = pulled else { break Ended::Failed(over(), None) };
            left -= 1;
            looks.put_off();
            match printer.print([&View::given(&pulled)]) {
                Ok(()) => pulled.ack(),
                Err(error) => break Ended::Failed(error, Some(pulled)),
            }
        };
        match ended {
            Ended::Done => Ok((shut_down(puller).await?, false)),
            Ended::Stopped => Ok((shut_down(puller).await?, true)),
            Ended::Failed(error, unprinted) => {
                // What was not printed stays pending while this ends, and the next owner gets it first.
                puller.shutdown_within(Duration::ZERO).await;
                drop(unprinted);
                Err(error)
            }
        }
    }

    /// Runs a command for each message. Tells whether a signal ended it.
    async fn execute(&self, cx: &Context, puller: Puller<Bytes>, exec: Exec) -> Result<(Report, bool)> {
        let exec = Arc::new(exec);
        let output = cx.output;
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut running = JoinSet::new();
        let (cut, is_cut) = watch::channel(false);
        let stopped = context::stopped();
        tokio::pin!(stopped);
        let mut looks = Looks::new();
        let mut pause = Pause::default();
        let ended = loop {
            if left == 0 && running.is_empty() {
                break Ended::Done;
            }
            let has_room = left > 0 && running.len() < self.concurrency;
            let pulled = tokio::select! {
                biased;
                stopped = &mut stopped => break stopped.map_or_else(|error| Ended::Failed(error, None), |()| Ended::Stopped),
                Some(_) = running.join_next(), if !running.is_empty() => continue,
                pulled = puller.next(), if has_room => pulled,
                () = looks.next(), if running.is_empty() => {
                    self.tell_pause(cx, &mut pause).await;
                    match self.is_empty(cx).await {
                        Ok(true) => break Ended::Done,
                        Ok(false) => continue,
                        Err(error) => break Ended::Failed(error, None),
                    }
                }
            };
            let Some(pulled) = pulled else { break Ended::Failed(over(), None) };
            left -= 1;
            looks.put_off();
            let (exec, mut is_cut) = (exec.clone(), is_cut.clone());
            running.spawn(async move {
                let view = View::given(&pulled);
                let ended = tokio::select! {
                    biased;
                    ended = exec.run(&view, &[]) => ended,
                    // The other end lives as long as this.
                    _ = is_cut.wait_for(|is_cut| *is_cut) => return pulled.snooze(Duration::ZERO),
                };
                match ended {
                    Ok(()) => pulled.ack(),
                    Err(error) => {
                        let (of, attempt) = (&view.topic_partition, pulled.attempt());
                        output.note(&format!("{of} {}: attempt {attempt}: {error:#}", view.id));
                        pulled.retry(error.to_string());
                    }
                }
            });
        };
        // What was not begun goes to others at once.
        puller.stop();
        // The one of before is spent.
        let again = context::stopped();
        tokio::select! {
            biased;
            () = async { while running.join_next().await.is_some() {} } => {}
            again = again => {
                again?;
                // They are killed, and their messages come back: that is no attempt that has failed.
                cut.send_replace(true);
                while running.join_next().await.is_some() {}
            }
        }
        let report = shut_down(puller).await?;
        match ended {
            Ended::Done => Ok((report, false)),
            Ended::Stopped => Ok((report, true)),
            Ended::Failed(error, _) => Err(error),
        }
    }

    /// Says that the group is paused, or is not any more: else it would wait for ever, and nobody knew for what.
    async fn tell_pause(&self, cx: &Context, pause: &mut Pause) {
        if !pause.is_time() {
            return;
        }
        // What cannot be asked is asked again, and whatever is wrong is told by the consumer.
        let Ok(state) = cx.admin().group_state(&self.topic, &self.group).await else { return };
        let (topic, group) = (&self.topic, &self.group);
        match (state.paused, std::mem::replace(&mut pause.since, state.paused)) {
            (Some(since), None) => cx.output.note(&format!(
                "group {group} is paused since {}: waiting until `millstream group resume {topic} {group}`",
                human::time(since)
            )),
            (None, Some(_)) => cx.output.note(&format!("group {group} goes on")),
            _ => {}
        }
    }

    /// Whether the group has nothing left, if that is its end. What is not known is not nothing.
    async fn is_empty(&self, cx: &Context) -> Result<bool> {
        if !self.until_empty {
            return Ok(false);
        }
        let topic = Topic::raw("").named(self.topic.as_str());
        match cx.mq.stats(&topic, self.group.as_str()).await {
            Ok(stats) => Ok(stats.iter().all(|it| it.lag == Some(0) && it.pending == 0 && it.retrying == 0)),
            Err(error) if error.is_transient() => Ok(false),
            other => other.map(|_| false).context("is anything left"),
        }
    }
}

/// Tells the server what was done, as long as that may take, or until a signal that comes now.
async fn shut_down(puller: Puller<Bytes>) -> Result<Report> {
    tokio::select! {
        biased;
        report = puller.shutdown() => Ok(report),
        stopped = context::stopped() => {
            stopped?;
            Err(Interrupted.into())
        }
        () = tokio::time::sleep(TO_TELL) => {
            bail!("the server could not be told within {TO_TELL:?} what was done: it comes again")
        }
    }
}

/// What people see of us: on which machine, and which process.
fn here() -> String {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy().into_owned();
    // What is behind the first point says where, and not which.
    format!("{}-{}", host.split('.').next().unwrap_or_default(), std::process::id())
}

fn over() -> anyhow::Error {
    anyhow::anyhow!("the consumer has ended by itself")
}

/// What was done, for people.
fn told(report: Report) -> String {
    let mut text = human::of(report.acked, "message", "messages") + " done";
    for (count, what) in [(report.retried, "failed attempts"), (report.dead, "dead letters")] {
        if count > 0 {
            text += &format!(", {} {what}", human::count(count));
        }
    }
    text
}

/// Whether the group is paused, as far as that was asked.
#[derive(Default)]
struct Pause {
    since: Option<u64>,
    looked: Option<Instant>,
}

impl Pause {
    /// Whether it is to be asked: at first, and then from time to time.
    fn is_time(&mut self) -> bool {
        let is_time = self.looked.is_none_or(|at| at.elapsed() >= LOOK_FOR_PAUSE);
        if is_time {
            self.looked = Some(Instant::now());
        }
        is_time
    }
}

/// When it is time to ask whether anything is left: when nothing has come for a while.
struct Looks(Interval);

impl Looks {
    fn new() -> Self {
        let mut every = interval_at(Instant::now() + LOOK, LOOK);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(every)
    }

    async fn next(&mut self) {
        self.0.tick().await;
    }

    fn put_off(&mut self) {
        self.0.reset();
    }
}
