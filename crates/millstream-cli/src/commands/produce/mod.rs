//! `millstream produce`: sends messages from a file or a pipe to a topic.

mod field;
mod input;
mod once;
mod parse;
mod progress;
mod send;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use millstream::{Durability, ErrorKind, Producer, ProducerConfig, Topic, TopicName, TopicSpec};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::message::content::{self, DueArgs, MaxPayload};
use crate::commands::schemas::{Table, of};
use crate::context::{self, Context};
use crate::exit::{Exit, Interrupted, Usage, not_found};
use crate::global::Global;
use crate::human;
use crate::parse as options;
use input::Input;
use parse::Parser;
use progress::Progress;
use send::{ProduceEnded, Sender};

/// Maximum wait for a reply after a signal.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends messages: lines, JSON or bytes, from a file or stdin
///
/// Each line is the text of a message (--format lines, the default) or a JSON object with key, headers and due time
/// (json); or the whole input is one message (raw).
///
/// A line of JSON: `{"payload": …, "key": "…", "headers": {"name": "value"}, "partition": 0, "delay": "10s", "at":
/// "2026-01-31T12:00:00Z", "id": "…", "dedup": "…", "unique": "…"}`. Only the payload is required: a string is sent as its text, any other value as
/// its JSON, unchanged. For bytes there are `payload_base64`, `key_base64`, and `{"base64": "…"}` as the value of a
/// header. The output of `tail --format json` can be sent again. Values of a line take precedence over options.
///
/// A line that cannot be sent is reported on stderr (the first ten of them), the others are sent, and the exit code is
/// 1 (with --skip-bad 0). Messages are sent in the order of lines, and the input is read no faster than it is sent. If
/// the server accepts no more messages, the command ends and prints the line at which to continue. With --dedup-field a
/// file can be sent again from its beginning: what is stored already is not stored again.
///
/// A dry run reads and checks the input, and asks no server: it does not find out whether the topic and a --partition exist, or
/// what waits under the same id.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream produce orders --key-field customer < orders.ndjson
  echo 'hello' | millstream produce orders --key eu --header source=shell
  millstream produce orders --dedup-field order.id --dedup-window 1d < orders.ndjson
  millstream tail orders --from earliest --format json | millstream produce copies --format json --create --ignore-partition
  millstream produce reminders --format raw --delay 2h --id trial-ends:42 reminder.json")]
pub(crate) struct Produce {
    /// The topic
    topic: TopicName,
    /// File to send; `-` for stdin, which is the default
    file: Option<PathBuf>,
    /// Form of a message: a line of text, a line of JSON, or the whole input
    #[arg(long, value_enum, default_value_t, hide_possible_values = true, value_name = "lines|json|raw")]
    format: ProduceFormat,
    /// The key of every message
    #[arg(long, conflicts_with = "key_field")]
    key: Option<String>,
    /// Takes the key from this field of the payload, which is a JSON object: `customer`, `customer.id`, or
    /// `/customer/id`
    #[arg(long, value_name = "NAME")]
    key_field: Option<String>,
    /// If the field of the key is missing or null: `fail` (the message is not sent), or `none` (it has no key)
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        requires = "key_field",
        value_name = "none|fail"
    )]
    missing_key: MissingKey,
    /// A header of every message; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = content::header)]
    header: Vec<(String, Bytes)>,
    /// The partition of every message. Default: by key
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
    /// Ignores the partitions in lines of JSON, for example to copy into a topic with another number of them
    #[arg(long)]
    ignore_partition: bool,
    #[command(flatten)]
    due: DueArgs,
    /// Id of a delayed message. A message is not sent while another one waits under the same id
    #[arg(long)]
    id: Option<String>,
    /// Replaces the message that waits under the same id
    #[arg(long)]
    replace: bool,
    /// Replaces the message that waits under the same id, and postpones it: it is due at the later of both times
    #[arg(long, conflicts_with = "replace")]
    debounce: bool,
    /// Replaces the message that waits under the same id, at the time at which that one is due
    #[arg(long, conflicts_with_all = ["replace", "debounce"])]
    keep_last: bool,
    /// Takes the dedup id from this field of the payload: a message is not stored if one with this id and key was stored
    /// within the window. Lines without the field are not sent. Not with a due time
    #[arg(long, value_name = "NAME")]
    dedup_field: Option<String>,
    /// The time for which dedup ids count, 100 ms to 7 days
    #[arg(long, value_parser = options::duration, default_value = "5m", value_name = "TIME")]
    dedup_window: Duration,
    /// Takes the unique id from this field of the payload: a message is not stored while a group has to settle one with
    /// this id. Lines without the field are not sent. Not with a due time
    #[arg(long, conflicts_with = "dedup_field", value_name = "NAME")]
    unique_field: Option<String>,
    /// Maximum rate of messages: `100/s`, `6000/m`
    #[arg(long, value_parser = rate, value_name = "N/s")]
    rate: Option<f64>,
    /// Ends after this many messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Creates the topic if it does not exist
    #[arg(long)]
    create: bool,
    /// Number of partitions of a created topic
    #[arg(long, requires = "create", default_value_t = 1, value_name = "N")]
    partitions: u32,
    /// Ignores lines that cannot be sent in the exit code
    #[arg(long)]
    skip_bad: bool,
    /// Maximum time of a send, while the server is unavailable or the topic is full
    #[arg(long, value_parser = options::duration, default_value = "30s", value_name = "TIME")]
    timeout: Duration,
    /// What each send waits for: the server's memory, its disk, or the memory of this many replicas. Not with a due time
    #[arg(long, default_value_t, value_name = "stored|fsynced|replicated:N")]
    durability: Durability,
    #[command(flatten)]
    max_payload: MaxPayload,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ProduceFormat {
    #[default]
    Lines,
    Json,
    Raw,
}

/// The policy for messages whose field of the key is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum MissingKey {
    #[default]
    Fail,
    None,
}

/// The results.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct Summary {
    topic: String,
    /// Messages appended to the log.
    sent: u64,
    /// Messages that wait for their due time.
    scheduled: u64,
    /// Messages that were not sent, since a message waits under the same id.
    kept: u64,
    /// Messages that were stored before, under the same dedup id or unique id.
    duplicates: u64,
    /// Lines that could not be sent.
    bad: u64,
    /// Bytes of payloads that were sent.
    bytes: u64,
    elapsed_ms: u64,
    dry_run: bool,
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("produce", of::<Summary>())];

impl Produce {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        if self.timeout.is_zero() {
            return Err(Usage("--timeout 0s leaves no time to send anything".into()).into());
        }
        let (source, len) = self.source()?;
        let (output, producer) = if self.dry.dry_run {
            (global.output(), None)
        } else {
            let cx = Context::open(global).await?;
            (cx.output, Some(self.producer(&cx).await?))
        };
        let progress = Progress::new(output, len);
        let mut input = Input::new(source, self.format == ProduceFormat::Raw, self.max_payload.bytes());
        let mut sender = Sender::new(&self, producer);
        let ended = self.pump(&mut input, &mut sender, &progress).await;
        progress.finish();
        let summary = sender.finish(&progress);
        // Where invalid lines are an error, its message has their number.
        let counts_bad = self.skip_bad || !matches!(ended, Ok(ProduceEnded::Whole));
        output.show(&summary, |it| it.text(counts_bad))?;
        match ended? {
            ProduceEnded::Interrupted(why) => {
                output.note(&why);
                Err(Interrupted.into())
            }
            ProduceEnded::Stopped(why) => bail!("{why}"),
            ProduceEnded::Whole if summary.bad > 0 && !self.skip_bad => {
                bail!("{} could not be sent", human::of(summary.bad, "line", "lines"))
            }
            ProduceEnded::Whole => Ok(Exit::Done),
        }
    }

    /// Reads, parses and sends the input, portion by portion.
    async fn pump(
        &self,
        input: &mut Input,
        sender: &mut Sender<'_>,
        progress: &Progress,
    ) -> Result<ProduceEnded> {
        let parser = Parser::new(self);
        let stopped = context::stopped();
        tokio::pin!(stopped);
        let mut next = 1;
        loop {
            let left = self.count.map_or(u64::MAX, |count| count - sender.taken().min(count));
            if left == 0 {
                return Ok(ProduceEnded::Whole);
            }
            let portion = tokio::select! {
                biased;
                stopped = &mut stopped => {
                    stopped?;
                    return Ok(ProduceEnded::Interrupted(format!("stopped before line {next}")));
                }
                portion = input.next() => portion,
            };
            let Some(portion) = portion else { return Ok(ProduceEnded::Whole) };
            let mut messages = Vec::new();
            for line in portion.context("cannot read")? {
                if messages.len() as u64 == left {
                    break;
                }
                next = line.number + 1;
                progress.read(line.read);
                let parsed = match line.bytes {
                    Some(bytes) => parser.parse(line.number, bytes),
                    None => Err("it is longer than any message may be".to_owned()),
                };
                match parsed {
                    Ok(message) => messages.extend(message),
                    Err(why) => sender.bad(line.number, &why, progress),
                }
            }
            for piece in messages.chunks(sender.piece()) {
                let first = piece.first().map_or(next, |message| message.line);
                tokio::select! {
                    biased;
                    stopped = &mut stopped => {
                        stopped?;
                        return Ok(ProduceEnded::Interrupted(format!("stopped before line {first}")));
                    }
                    () = sender.pace() => {}
                }
                let after = piece.last().map_or(next, |message| message.line + 1);
                let sending = sender.send(piece, progress);
                tokio::pin!(sending);
                let (ended, is_stopped) = tokio::select! {
                    biased;
                    ended = &mut sending => (Ok(ended), false),
                    stopped = &mut stopped => {
                        stopped?;
                        // Requests in progress get their reply, if the server still sends one.
                        (tokio::time::timeout(REPLY_TIMEOUT, sending).await, true)
                    }
                };
                match ended {
                    Ok(Some(why)) => return Ok(ProduceEnded::Stopped(why)),
                    Ok(None) if is_stopped => {
                        return Ok(ProduceEnded::Interrupted(format!("stopped before line {after}")));
                    }
                    Ok(None) => {}
                    Err(_) => {
                        let why = format!("stopped; lines {first} to {} may be stored, or not", after - 1);
                        return Ok(ProduceEnded::Interrupted(why));
                    }
                }
            }
        }
    }

    /// Returns the source of the input, and its size if that is known.
    fn source(&self) -> Result<(Box<dyn Read + Send>, Option<u64>)> {
        match self.file.as_deref().filter(|path| *path != Path::new("-")) {
            None => Ok((Box::new(io::stdin()), None)),
            Some(path) => {
                let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
                let len = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|about| about.len());
                Ok((Box::new(file), len))
            }
        }
    }

    async fn producer(&self, cx: &Context) -> Result<Producer<Bytes>> {
        let spec = match cx.admin().topic(&self.topic).await {
            Err(error) if error.kind() == ErrorKind::NotFound && self.create => {
                cx.admin().create_topic(&TopicSpec::new(self.topic.clone(), self.partitions)?).await?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let why = format!("topic {} does not exist; --create creates it", self.topic);
                return Err(not_found(why));
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
        let mut config = ProducerConfig::default();
        config.limits = self.max_payload.limits();
        let producer = cx.mq.producer(topic).config(config);
        let producer = producer.delivery_timeout(self.timeout).durability(self.durability);
        Ok(producer.dedup_window(self.dedup_window).await?)
    }
}

impl Summary {
    fn text(&self, counts_bad: bool) -> String {
        let verb = if self.dry_run { "would send" } else { "sent" };
        let mut text = format!(
            "{verb} {} ({}) to {} in {}",
            human::of(self.sent + self.scheduled, "message", "messages"),
            human::bytes(self.bytes),
            self.topic,
            human::duration(Duration::from_millis(self.elapsed_ms)),
        );
        if self.scheduled > 0 {
            text += &format!(", {} of them for later", human::count(self.scheduled));
        }
        if self.kept > 0 {
            text += &format!("; {} not sent, since one waits under the same id", human::count(self.kept));
        }
        if self.duplicates > 0 {
            let why = ("not sent, since it was stored before", "not sent, since they were stored before");
            text += &format!("; {}", human::of(self.duplicates, why.0, why.1));
        }
        if self.bad > 0 && counts_bad {
            text += &format!("; {} could not be sent", human::of(self.bad, "line", "lines"));
        }
        text
    }
}

/// Parses a rate: `100/s`, `6000/m`, `10/h`; per second without a unit.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        _ => f64::NAN,
    };
    match number.parse::<u32>() {
        Ok(number) if number > 0 && seconds > 0.0 => Ok(f64::from(number) / seconds),
        _ => Err(format!("{text:?} is no rate: 100/s, 6000/m and 10/h are")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_unit() {
        assert_eq!(rate("100/s"), Ok(100.0));
        assert_eq!(rate("100"), Ok(100.0));
        assert_eq!(rate("6000/m"), Ok(100.0));
        for wrong in ["", "0/s", "-1/s", "1/", "1/d", "x/s", "1.5/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_summary_says_what_was_not_sent() {
        let summary = Summary { topic: "orders".into(), sent: 2, kept: 1, bad: 3, ..Summary::default() };
        let text = "sent 2 messages (0 B) to orders in 0 ms; 1 not sent, since one waits under the same id; \
                    3 lines could not be sent";
        assert_eq!(summary.text(true), text);
        assert!(!summary.text(false).contains("3 lines"), "the error says it");
    }
}
