//! Running messages as one word: `log/3/1/1700000000000/1699999999999-0/1699999999999-0,+17`. The parts of a message are source,
//! partition, attempt, begin in milliseconds, entry and origin; the number of the others comes last.

use millstream_core::log::Source;
use millstream_core::running::{MAX_NAMED, Running, RunningMessage};
use millstream_core::topic::Partition;
use millstream_core::{MessageId, Timestamp};

/// Formats running messages; empty for none.
pub(crate) fn write(running: &Running) -> String {
    let mut text = String::new();
    for it in running.messages.iter().take(MAX_NAMED) {
        let source = match it.source {
            Source::Log => "log",
            Source::Retry => "retry",
        };
        let comma = if text.is_empty() { "" } else { "," };
        let (partition, since) = (it.partition.0, it.since.as_millis());
        text += &format!("{comma}{source}/{partition}/{}/{since}/{}/{}", it.attempt, it.entry, it.origin);
    }
    if running.more > 0 {
        text += &format!("{}+{}", if text.is_empty() { "" } else { "," }, running.more);
    }
    text
}

/// Parses the output of [`write`]. What it does not know, it leaves out: nothing depends on it but what people see.
pub(crate) fn read(text: &str) -> Running {
    let mut running = Running::default();
    for word in text.split(',').take(MAX_NAMED + 1) {
        match word.strip_prefix('+') {
            Some(more) => running.more = more.parse().unwrap_or(0),
            None => running.messages.extend(message(word)),
        }
    }
    running
}

fn message(word: &str) -> Option<RunningMessage> {
    let mut parts = word.split('/');
    let source = match parts.next()? {
        "log" => Source::Log,
        "retry" => Source::Retry,
        _ => return None,
    };
    let partition = Partition(parts.next()?.parse().ok()?);
    let attempt = parts.next()?.parse().ok()?;
    let since = Timestamp::from_millis(parts.next()?.parse().ok()?);
    let mut id = || parts.next()?.parse::<MessageId>().ok();
    Some(RunningMessage { partition, source, attempt, since, entry: id()?, origin: id()? })
}
