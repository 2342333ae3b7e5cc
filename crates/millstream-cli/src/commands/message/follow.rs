//! `millstream message follow`: the work on a message, live.

use std::time::Duration;

use anyhow::{Result, anyhow};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, Subcommand};
use millstream::{Followed, MessageResult, ProgressLine, ResultId};
use schemars::JsonSchema;
use serde::Serialize;

use super::sanitize;
use crate::commands::Running;
use crate::commands::schemas::{Table, of};
use crate::context::{self, Context};
use crate::exit::{Exit, Interrupted, not_found};
use crate::{human, parse};

/// Looks at single messages, cancels or signals them
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream message follow imports/3/0af7651916cd43dd8448eb211c80319c
  millstream message status imports/3/0af7651916cd43dd8448eb211c80319c/1700000000000-0
  millstream message cancel imports/3/0af7651916cd43dd8448eb211c80319c/1700000000000-0
  millstream message steps signups/3/welcome/1700000000000-0")]
pub(crate) struct MessageArgs {
    #[command(subcommand)]
    what: MessageCommand,
}

#[derive(Debug, Subcommand)]
enum MessageCommand {
    Follow(Follow),
    Status(super::status::Status),
    Cancel(super::cancel::Cancel),
    Steps(super::steps::Steps),
    Signal(super::steps::Signal),
}

/// Shows what the handler of a message says of its work, as it says it, and then the result
///
/// The id is that of the result, which whoever sent the message with `reply` has: topic, partition and a number; of a task
/// `queue`, the delay queue, its shard and a number; behind that may be the id of the message or task. A message that asks for no result has neither. First come the newest lines that
/// are kept, at most 100. The exit code is 0 once the message is handled, 3 if it failed, and 1 if there was no result in the time of `--within`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream message follow imports/3/0af7651916cd43dd8448eb211c80319c
  millstream message follow queue/mails/0/0af7651916cd43dd8448eb211c80319c --within 10m
  millstream message follow imports/3/0af7651916cd43dd8448eb211c80319c --json | jq .data.fraction")]
struct Follow {
    /// Id of the result
    id: ResultId,
    /// Ends after this time. Default: with the result
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    within: Option<Duration>,
}

/// One line of the output.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FollowView {
    #[schemars(extend("enum" = ["progress", "replied", "done", "failed"]))]
    what: &'static str,
    /// When the handler said it, in milliseconds since 1970, by the server's clock.
    time_ms: Option<u64>,
    /// Number of the attempt, or of attempts that failed.
    attempt: Option<u32>,
    /// How much of the work is done, from 0 to 1.
    fraction: Option<f64>,
    /// What the handler said, or the error.
    text: Option<String>,
    /// Why the message failed.
    reason: Option<String>,
    /// The reply, if it is text.
    reply: Option<String>,
    /// The reply, if it is not.
    reply_base64: Option<String>,
}

/// The data that the command prints as JSON, one object a line.
pub(in crate::commands) const DATA: Table = &[("message follow", of::<FollowView>())];

impl FollowView {
    fn new(what: &'static str) -> Self {
        Self {
            what,
            time_ms: None,
            attempt: None,
            fraction: None,
            text: None,
            reason: None,
            reply: None,
            reply_base64: None,
        }
    }

    fn progress(line: ProgressLine) -> Self {
        let (time_ms, attempt, fraction) = (Some(line.at.as_millis()), Some(line.attempt), line.fraction);
        Self { time_ms, attempt, fraction, text: Some(line.text), ..Self::new("progress") }
    }

    pub(super) fn result(result: MessageResult) -> Self {
        match result {
            MessageResult::Replied(reply) => match String::from_utf8(reply.to_vec()) {
                Ok(text) => Self { reply: Some(text), ..Self::new("replied") },
                Err(bytes) => {
                    Self { reply_base64: Some(BASE64.encode(bytes.as_bytes())), ..Self::new("replied") }
                }
            },
            MessageResult::Done => Self::new("done"),
            MessageResult::Failed { reason, attempts, error } => {
                let (reason, attempt) = (Some(reason), Some(attempts));
                Self { reason, attempt, text: Some(error), ..Self::new("failed") }
            }
        }
    }

    /// One line for a terminal.
    pub(super) fn line(&self) -> String {
        let text = |text: &Option<String>| sanitize::line(text.as_deref().unwrap_or_default().as_bytes());
        match self.what {
            "progress" => {
                let at = self.time_ms.map(|ms| human::time(millstream::Timestamp::from_millis(ms)));
                let done =
                    self.fraction.map_or_else(|| "     –".to_owned(), |it| format!("{:5.1} %", it * 100.0));
                let attempt = self.attempt.filter(|attempt| *attempt > 1);
                let attempt = attempt.map(|attempt| format!("  attempt {attempt}")).unwrap_or_default();
                format!("{}  {done}{attempt}  {}", at.unwrap_or_default(), text(&self.text))
            }
            "replied" if self.reply.is_some() => format!("replied: {}", text(&self.reply)),
            "replied" => format!("replied, in base64: {}", text(&self.reply_base64)),
            "failed" => format!(
                "failed ({}, attempts: {}): {}",
                text(&self.reason),
                self.attempt.unwrap_or_default(),
                text(&self.text)
            ),
            _ => "done, without a reply".to_owned(),
        }
    }
}

impl MessageArgs {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            MessageCommand::Follow(it) => Box::pin(it.run(cx)),
            MessageCommand::Status(it) => Box::pin(it.run(cx)),
            MessageCommand::Cancel(it) => Box::pin(it.run(cx)),
            MessageCommand::Steps(it) => Box::pin(it.run(cx)),
            MessageCommand::Signal(it) => Box::pin(it.run(cx)),
        }
    }
}

impl Follow {
    async fn run(self, cx: &Context) -> Result<Exit> {
        tokio::select! {
            biased;
            stopped = context::stopped() => {
                stopped?;
                Err(Interrupted.into())
            }
            followed = self.follow(cx) => followed,
        }
    }

    async fn follow(&self, cx: &Context) -> Result<Exit> {
        let follow = cx.mq.follow(&self.id);
        let mut follow = match self.within {
            Some(within) => follow.within(within),
            None => follow,
        };
        let (mut last, mut end) = (None, None);
        while let Some(followed) = follow.next().await? {
            let view = match followed {
                Followed::Progress(line) => {
                    last = Some(line.to_string());
                    FollowView::progress(line)
                }
                Followed::Result(result) => {
                    let failed = matches!(result, MessageResult::Failed { .. });
                    end = Some(if failed { Exit::Wrong } else { Exit::Done });
                    FollowView::result(result)
                }
                other => return Err(anyhow!("{other:?} is not known here")),
            };
            cx.output.show(&view, FollowView::line)?;
        }
        let id = &self.id;
        match (end, last) {
            (Some(exit), _) => Ok(exit),
            (None, Some(last)) => {
                Err(not_found(format!("{id} has no result yet; its handler said last: {}", last.trim_end())))
            }
            (None, None) => Err(not_found(format!(
                "there is no progress and no result of {id}: its handler has not begun, says nothing, or the message asks for none"
            ))),
        }
    }
}
