//! Sends parsed messages in pieces. Each piece is confirmed before the next one is sent, which keeps the order of
//! lines and limits the memory to two portions.

use std::time::Duration;

use bytes::Bytes;
use millstream::delay::{Due, Placed};
use millstream::{Error, ErrorKind, Producer, Record};
use tokio::time::Instant;

use crate::commands::produce::once::Once;
use crate::commands::produce::parse::Outgoing;
use crate::commands::produce::progress::Progress;
use crate::commands::produce::{Produce, Summary};

/// Maximum number of messages of a piece: the number that a producer sends in one request.
const PIECE: usize = 500;

/// Number of pieces per second at a fixed rate, so that messages are spread evenly.
const PIECES: f64 = 20.0;

/// Maximum number of invalid lines that are reported one by one, since a million of them would hide everything else.
const NAMED: u64 = 10;

/// The end of sending.
#[derive(Debug)]
pub(super) enum ProduceEnded {
    /// All input was sent.
    Whole,
    /// An error of the server, with the message for it.
    Stopped(String),
    /// A signal, with the message for it.
    Interrupted(String),
}

/// What became of a message that was accepted.
#[derive(Clone, Copy, Debug)]
enum Accepted {
    /// It is in the log.
    Stored,
    /// One with its dedup id or unique id was stored before.
    Duplicate,
    /// It waits for its due time, or another one does.
    Later(Placed),
}

/// Sends messages and counts the results.
pub(super) struct Sender<'a> {
    options: &'a Produce,
    /// `None` in a dry run.
    producer: Option<Producer<Bytes>>,
    summary: Summary,
    began: Instant,
}

impl<'a> Sender<'a> {
    pub(super) fn new(options: &'a Produce, producer: Option<Producer<Bytes>>) -> Self {
        let summary =
            Summary { topic: options.topic.to_string(), dry_run: producer.is_none(), ..Summary::default() };
        Self { options, producer, summary, began: Instant::now() }
    }

    /// Returns the number of messages that the server has stored.
    pub(super) fn taken(&self) -> u64 {
        let Summary { sent, scheduled, kept, duplicates, .. } = self.summary;
        sent + scheduled + kept + duplicates
    }

    /// Returns the number of messages in a piece.
    pub(super) fn piece(&self) -> usize {
        let of_rate = |rate: f64| (rate / PIECES).ceil().clamp(1.0, PIECE as f64) as usize;
        self.options.rate.filter(|_| self.producer.is_some()).map_or(PIECE, of_rate)
    }

    /// Waits until the next messages may be sent.
    pub(super) async fn pace(&self) {
        if let Some(rate) = self.options.rate.filter(|_| self.producer.is_some()) {
            let due = self.began + Duration::from_secs_f64(self.taken() as f64 / rate);
            tokio::time::sleep_until(due).await;
        }
    }

    /// Records a line that cannot be sent. The first ones are reported.
    pub(super) fn bad(&mut self, line: u64, why: &str, progress: &Progress) {
        self.summary.bad += 1;
        if self.summary.bad <= NAMED {
            progress.note(&format!("line {line}: {why}"));
        }
    }

    /// Sends a piece. Returns the reason if nothing more can be sent.
    pub(super) async fn send(&mut self, piece: &[Outgoing], progress: &Progress) -> Option<String> {
        let outcomes = match &self.producer {
            Some(producer) => send(producer, piece, self.options).await,
            None => {
                let accepted =
                    |it: &Outgoing| it.due.map_or(Accepted::Stored, |_| Accepted::Later(Placed::New));
                piece.iter().map(|it| Ok(accepted(it))).collect()
            }
        };
        let mut failed: Option<(u64, Error)> = None;
        let mut unclear = 0;
        for (message, outcome) in piece.iter().zip(outcomes) {
            let bytes = message.envelope.payload.len() as u64;
            // A message that is stored after one that is not will be stored twice when that line is sent again.
            unclear += u64::from(match &outcome {
                Ok(_) => failed.is_some(),
                Err(error) => error.kind() == ErrorKind::Unconfirmed,
            });
            match outcome {
                Ok(Accepted::Later(Placed::Kept)) => self.summary.kept += 1,
                Ok(Accepted::Duplicate) => self.summary.duplicates += 1,
                Ok(Accepted::Stored) => {
                    self.summary.bytes += bytes;
                    self.summary.sent += 1;
                }
                Ok(Accepted::Later(_)) => {
                    self.summary.bytes += bytes;
                    self.summary.scheduled += 1;
                }
                Err(error) if is_of_message(error.kind()) => {
                    let names_partition = message.partition.is_some() && self.options.partition.is_none();
                    let help = match error.kind() {
                        ErrorKind::InvalidConfig if names_partition => ", or --ignore-partition",
                        _ => "",
                    };
                    self.bad(message.line, &format!("{error}{help}"), progress);
                }
                Err(error) => drop(failed.get_or_insert((message.line, error))),
            }
        }
        progress.sent(self.taken());
        failed.map(|(line, error)| {
            let unclear = match unclear {
                0 => String::new(),
                some => format!("; {} of them may be stored", crate::human::count(some)),
            };
            format!("line {line}: {error}. It was the first that was not sent: go on with it{unclear}")
        })
    }

    /// Returns the summary. Every sent message has its result, unless the wait for it was given up.
    pub(super) fn finish(mut self, progress: &Progress) -> Summary {
        if let Some(more) = self.summary.bad.checked_sub(NAMED).filter(|more| *more > 0) {
            progress.note(&format!("and {} more", crate::human::count(more)));
        }
        self.summary.elapsed_ms = crate::human::ms(self.began.elapsed());
        self.summary
    }
}

/// Whether the error concerns the message only, so that others can be sent.
fn is_of_message(kind: ErrorKind) -> bool {
    use ErrorKind::{Encode, Exists, InvalidConfig, InvalidName, TooLarge};
    matches!(kind, Encode | Exists | InvalidConfig | InvalidName | TooLarge)
}

/// Returns one result per message in their order.
async fn send(
    producer: &Producer<Bytes>,
    piece: &[Outgoing],
    options: &Produce,
) -> Vec<Result<Accepted, Error>> {
    let now = piece.iter().filter(|it| it.due.is_none()).map(|it| match &it.once {
        Some(Once::Dedup(id)) => record(it).dedup(id),
        Some(Once::Unique(id)) => record(it).unique(id),
        None => record(it).into(),
    });
    let later = piece.iter().filter_map(|it| it.due.map(|due| (it, due))).map(|(it, due)| {
        let record = match due {
            Due::In(delay) => record(it).delay(delay),
            Due::At(time) => record(it).at(time),
        };
        // With a debounce or the last kept, the parser has made sure of an id.
        match (options, &it.id) {
            (Produce { debounce: true, .. }, Some(id)) => record.debounce(id),
            (Produce { keep_last: true, .. }, Some(id)) => record.keep_last(id),
            (Produce { replace: true, .. }, Some(id)) => record.id(id).replace(),
            (_, Some(id)) => record.id(id),
            (_, None) => record,
        }
    });
    let (now, later) = tokio::join!(producer.send_all(now), producer.send_all_delayed(later));
    let (mut now, mut later) = (now.into_iter(), later.into_iter());
    let unanswered = || Err(Error::new(ErrorKind::Protocol, "the producer returned no result"));
    let outcome = |it: &Outgoing| match it.due {
        None => now.next().map_or_else(unanswered, |sent| {
            sent.map(|sent| if sent.is_duplicate { Accepted::Duplicate } else { Accepted::Stored })
        }),
        Some(_) => later.next().map_or_else(unanswered, |sent| sent.map(|sent| Accepted::Later(sent.placed))),
    };
    piece.iter().map(outcome).collect()
}

/// Returns the record without its id.
fn record(message: &Outgoing) -> Record<'_, Bytes> {
    let envelope = &message.envelope;
    let record = Record::new(&envelope.payload);
    let record = envelope.key.iter().fold(record, Record::key);
    let record = message.partition.iter().fold(record, |record, partition| record.partition(*partition));
    envelope.headers.iter().fold(record, |record, (name, value)| record.header(name, value))
}
