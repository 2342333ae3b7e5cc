//! `queue work`: a worker that runs a command for each task.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use clap::Args;
use millstream::crates::core::QueueName;
use millstream::delay::{DelayQueue, Task, Worker, WorkerReport};
use millstream::{Envelope, Exponential, Outcome};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::commands::StopWithin;
use crate::commands::consume::here;
use crate::commands::exec::Exec;
use crate::commands::message::Body;
use crate::commands::scheduled::recurring;
use crate::context::{self, Context};
use crate::exit::{Exit, Interrupted};
use crate::{human, parse};

/// Interval between two checks whether a task is due.
const CHECK: Duration = Duration::from_millis(200);

/// Runs a command for each task that is due, as a worker of the queue
///
/// A task is done when its command has exited with 0. Each task is claimed by one worker; if this one dies, others get its
/// tasks after 30 s. The command runs until it is stopped; then it completes the tasks that it has begun, for up to
/// --shutdown-timeout. A second signal does not wait for commands: their tasks are handed back, without an attempt. Signals
/// within half a second are one. If `queue work` is killed, its commands are killed with their process groups; processes
/// that have left the group go on.
///
/// The shell runs the command. Its stdin is the payload, and its environment contains `MILLSTREAM_QUEUE`, `MILLSTREAM_ID`
/// (the id of the task), `MILLSTREAM_DUE_MS`, `MILLSTREAM_ATTEMPT`, `MILLSTREAM_KEY` if there is a key
/// (`MILLSTREAM_KEY_BASE64` if the key contains zero bytes), and `MILLSTREAM_HEADERS` as JSON. With any other exit code the
/// attempt has failed: the task is due again after --retry-delay, and is dead after --max-attempts; with the --reject-code
/// it is dead at once. The stored error is the last line of stderr. With 126 or 127 the shell could not run the command:
/// `queue work` hands the task back, without an attempt, and ends with an error.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue work mails --exec 'sendmail \"$MILLSTREAM_KEY\"'
  millstream queue work reports --exec ./report.sh --concurrency 4 --timeout 10m
  millstream queue work mails --exec ./send.sh --until-empty --fail-on-dead")]
pub(super) struct Work {
    /// The delay queue
    queue: QueueName,
    /// Runs this command for each task
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// Ends when no task is due or being worked on; tasks and retries that are due later stay
    #[arg(long)]
    until_empty: bool,
    /// Maximum number of attempts before a task is dead
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: u32,
    /// Maximum delay of the first retry; it doubles with each attempt, and the actual delay is random
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "500ms")]
    retry_delay: Duration,
    /// Upper limit of these delays
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "60s")]
    max_retry_delay: Duration,
    /// Exit code with which the command rejects a task: it is dead and is not retried. The default is `EX_DATAERR` of
    /// sysexits.h
    #[arg(long, value_name = "CODE", default_value_t = 65, value_parser = clap::value_parser!(u8).range(1..=125))]
    reject_code: u8,
    /// Ends with exit code 3 if a task died
    #[arg(long)]
    fail_on_dead: bool,
    /// Maximum number of commands at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    concurrency: u16,
    /// Maximum time of a command; after that it is killed and has failed. Default: no limit
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    stop: StopWithin,
}

/// State that the handlers share with the command.
struct Shared {
    exec: Exec,
    reject_code: i32,
    /// Set when running commands are to be killed.
    cut: watch::Sender<bool>,
    /// The reason why no command can be run.
    impossible: watch::Sender<Option<String>>,
    output: crate::output::Output,
}

impl Work {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let queue = recurring::queue(cx, &self.queue).await?;
        let (cut, impossible) = (watch::Sender::new(false), watch::Sender::new(None));
        let exec = Exec::new(&self.exec, None, self.timeout, cx.output);
        let (reject_code, output) = (i32::from(self.reject_code), cx.output);
        let shared = Arc::new(Shared { exec, reject_code, cut, impossible, output });
        let stopped = context::stopped();
        tokio::pin!(stopped);
        // From now on signals are handled and do not end the process.
        if context::is_ready(&mut stopped).await? {
            return Ok(Exit::Done);
        }
        let worker = self.worker(&queue, shared.clone()).await?;
        let mut cannot_run = shared.impossible.subscribe();
        let mut checks = interval(CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                biased;
                stopped = &mut stopped => break stopped.map(|()| true),
                Ok(why) = cannot_run.wait_for(Option::is_some) => break Err(anyhow!(why.clone().unwrap_or_default())),
                () = worker.ended() => break Err(anyhow!("the worker ended unexpectedly")),
                _ = checks.tick(), if self.until_empty => match is_empty(&queue).await {
                    Ok(true) => break Ok(false),
                    Ok(false) => {}
                    Err(error) => break Err(error),
                },
            }
        };
        let report = self.stop.end(worker.shutdown(), || _ = shared.cut.send_replace(true)).await?;
        cx.output.note(&summary(report));
        if report.dead > 0 {
            cx.output.note(&format!("`millstream queue dead list {}` shows the dead tasks", self.queue));
        }
        // Without --until-empty, a signal is the regular end.
        if ended? && self.until_empty {
            return Err(Interrupted.into());
        }
        Ok(if self.fail_on_dead && report.dead > 0 { Exit::Wrong } else { Exit::Done })
    }

    async fn worker(&self, queue: &DelayQueue<Bytes>, shared: Arc<Shared>) -> Result<Worker> {
        let retry = Exponential::from(self.retry_delay)
            .up_to(self.max_retry_delay.max(self.retry_delay))
            .attempts(self.max_attempts);
        let worker = queue
            .worker()
            .label(here())
            .concurrency(usize::from(self.concurrency))
            .retry(retry)
            .shutdown_timeout(self.stop.shutdown_timeout);
        let worker = worker.start(move |task: Task<Bytes>| {
            let shared = shared.clone();
            async move { shared.handle(task).await }
        });
        Ok(worker.await?)
    }
}

impl Shared {
    async fn handle(&self, task: Task<Bytes>) -> Outcome {
        let mut envelope = Envelope::new(task.payload.clone());
        envelope.key = task.key().cloned();
        envelope.headers = task.headers().clone();
        let (shard, id, attempt) = (task.shard(), task.id(), task.attempt());
        let about = [
            ("MILLSTREAM_QUEUE", shard.queue.to_string()),
            ("MILLSTREAM_ID", id.to_string()),
            ("MILLSTREAM_DUE_MS", task.due().as_millis().to_string()),
            ("MILLSTREAM_ATTEMPT", attempt.to_string()),
        ];
        let (mut cut, body) = (self.cut.subscribe(), Body::Message(envelope));
        let ended = tokio::select! {
            biased;
            ended = self.exec.run_with(&about, &body) => ended,
            // The sender lives as long as this.
            _ = cut.wait_for(|cut| *cut) => return Outcome::snooze(Duration::ZERO),
        };
        match ended {
            Ok(()) => Outcome::Ack,
            Err(error) if error.is_of_the_command() => {
                self.impossible.send_replace(Some(error.to_string()));
                Outcome::snooze(Duration::ZERO)
            }
            Err(error) => {
                self.output.note(&format!("{shard} {id}: attempt {attempt}: {error}"));
                if error.code == Some(self.reject_code) {
                    Outcome::dead_letter(error.to_string())
                } else {
                    Outcome::retry(error.to_string())
                }
            }
        }
    }
}

/// Whether no task is due, and none is claimed.
async fn is_empty(queue: &DelayQueue<Bytes>) -> Result<bool> {
    match queue.count().await {
        Ok(counts) => Ok(counts.waiting.overdue == 0 && counts.claimed == 0),
        Err(error) if error.is_transient() => Ok(false),
        Err(error) => Err(error).context("cannot determine whether a task is due"),
    }
}

/// Formats the results.
fn summary(report: WorkerReport) -> String {
    let mut text = human::of(report.done, "task", "tasks") + " done";
    for (count, one, many) in [
        (report.retried, "failed attempt", "failed attempts"),
        (report.dead, "dead task", "dead tasks"),
        (report.handed_back + report.snoozed, "task handed back", "tasks handed back"),
    ] {
        if count > 0 {
            text += &format!(", {}", human::of(count, one, many));
        }
    }
    text
}
