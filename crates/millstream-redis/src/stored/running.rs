//! Running messages as one word: `log/3/1/1700000000000/1699999999999-0/1699999999999-0,+17`. The parts of a message are source,
//! partition, attempt, begin in milliseconds, entry and origin; the number of the others comes last. One that waits for a limit begins with
//! `~`, and ends with `/` and the key: `~log/3/1/1700000000000/1699999999999-0/1699999999999-0/tenant:acme`; then `~+3`.

use millstream_core::log::Source;
use millstream_core::running::{MAX_NAMED, MAX_WAITING_NAMED, Running, RunningMessage, WaitingMessage};
use millstream_core::topic::Partition;
use millstream_core::{MessageId, Timestamp};

/// Formats running messages; empty for none.
pub(crate) fn write(running: &Running) -> String {
    let mut words: Vec<String> = running.messages.iter().take(MAX_NAMED).map(word).collect();
    words.extend((running.more > 0).then(|| format!("+{}", running.more)));
    // A comma of a key would end the word.
    let waiting =
        |it: &WaitingMessage| format!("~{}/{}", word(&it.message), it.key.as_str().replace(',', "%2C"));
    words.extend(running.waiting.iter().take(MAX_WAITING_NAMED).map(waiting));
    words.extend((running.more_waiting > 0).then(|| format!("~+{}", running.more_waiting)));
    words.join(",")
}

fn word(it: &RunningMessage) -> String {
    let source = match it.source {
        Source::Log => "log",
        Source::Retry => "retry",
    };
    let (partition, since) = (it.partition.0, it.since.as_millis());
    format!("{source}/{partition}/{}/{since}/{}/{}", it.attempt, it.entry, it.origin)
}

/// Parses the output of [`write`]. What it does not know, it leaves out: nothing depends on it but what people see.
pub(crate) fn read(text: &str) -> Running {
    let mut running = Running::default();
    for word in text.split(',').take(MAX_NAMED + MAX_WAITING_NAMED + 2) {
        match (word.strip_prefix("~+"), word.strip_prefix('+'), word.strip_prefix('~')) {
            (Some(more), ..) => running.more_waiting = more.parse().unwrap_or(0),
            (_, Some(more), _) => running.more = more.parse().unwrap_or(0),
            (.., Some(waits)) => running.waiting.extend(waiting(waits)),
            _ => running.messages.extend(message(word)),
        }
    }
    running
}

fn waiting(word: &str) -> Option<WaitingMessage> {
    let (key, _) = word.match_indices('/').nth(5)?;
    Some(WaitingMessage { message: message(&word[..key])?, key: word[key + 1..].parse().ok()? })
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
