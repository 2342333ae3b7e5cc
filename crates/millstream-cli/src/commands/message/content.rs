//! Options for the content of a message and its due time.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use clap::Args;
use millstream::delay::Due;
use millstream::{Envelope, Limits, Timestamp};

use crate::context::local_ms;
use crate::exit::Usage;
use crate::parse::{self, When};

/// Due time of a message
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DueArgs {
    /// Delay from now, by the server's clock: `30s`, `2h`
    #[arg(long, value_name = "TIME", value_parser = delay, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Due time, by the server's clock: `2026-01-31T12:00:00Z`, `2026-01-31`, or `in 5m`
    #[arg(long, value_name = "WHEN", value_parser = at)]
    pub(crate) at: Option<When>,
}

impl DueArgs {
    /// Returns the due time, if one was given.
    pub(crate) fn due(&self) -> Option<Due> {
        self.delay.map(Due::In).or_else(|| self.at.map(due_at))
    }
}

/// Parses a delay, up to the maximum that can be stored.
///
/// # Errors
/// The fault in the text.
pub(crate) fn delay(text: &str) -> Result<Duration, String> {
    let delay = parse::duration(text)?;
    if delay > Due::FAR { Err(too_far(text)) } else { Ok(delay) }
}

/// Parses a due time, up to the maximum that can be stored.
///
/// # Errors
/// The fault in the text.
pub(crate) fn at(text: &str) -> Result<When, String> {
    let when = parse::when(text)?;
    let now = Timestamp::from_millis(local_ms().map_err(|error| error.to_string())?);
    if when.at(now).saturating_duration_since(now) > Due::FAR { Err(too_far(text)) } else { Ok(when) }
}

fn too_far(text: &str) -> String {
    format!("{text:?} is more than 100 years from now")
}

/// Converts a point in time to a due time. A time in the past is due immediately.
pub(crate) fn due_at(when: When) -> Due {
    match when {
        When::At(at) => Due::At(at),
        When::In(delay) => Due::In(delay),
        When::Ago(_) => Due::NOW,
    }
}

/// Largest payload
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MaxPayload {
    /// Largest payload: `4096`, `512KiB`, `2MiB`. Programs with the default limits take no larger one than 1MiB
    #[arg(long, value_name = "SIZE", value_parser = parse::size, default_value = "1MiB")]
    max_payload: usize,
}

impl MaxPayload {
    pub(crate) fn bytes(self) -> usize {
        self.max_payload
    }

    pub(crate) fn limits(self) -> Limits {
        Limits::default().with_payload(self.max_payload)
    }
}

/// Content of a message
#[derive(Args, Clone, Debug)]
pub(crate) struct ContentArgs {
    /// The payload
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    payload: Option<String>,
    /// File with the payload; `-` for stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The key
    #[arg(long)]
    key: Option<String>,
    /// A header; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, Bytes)>,
    #[command(flatten)]
    max_payload: MaxPayload,
}

impl ContentArgs {
    /// Returns the message.
    ///
    /// # Errors
    /// [`Usage`] without a payload; a file that cannot be read.
    pub(crate) fn envelope(&self) -> Result<Envelope> {
        let payload = match (&self.payload, &self.file) {
            (Some(text), _) => text.clone().into(),
            (None, Some(path)) => whole(path, self.max_payload.bytes())?,
            (None, None) => {
                return Err(Usage("what is the payload? --payload or --file says it".into()).into());
            }
        };
        let mut envelope = Envelope::new(payload);
        envelope.key = self.key.clone().map(Bytes::from);
        for (name, value) in &self.header {
            envelope.headers.append(name.clone(), value.clone());
        }
        envelope.check(&self.max_payload.limits())?;
        Ok(envelope)
    }
}

/// Reads a whole file up to slightly more than the largest payload, so that a larger file is detected.
pub(in crate::commands) fn whole(path: &Path, max_payload: usize) -> Result<Bytes> {
    let mut bytes = Vec::new();
    let most = max_payload as u64 + 1;
    let read = if path == Path::new("-") {
        io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes.into())
}

/// Parses a header: `name=value`.
pub(crate) fn header(text: &str) -> Result<(String, Bytes), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned().into())),
        _ => Err(format!("{text:?} is no header: name=value is")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_name() {
        assert_eq!(header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(header("a="), Ok(("a".into(), Bytes::new())));
        for wrong in ["", "a", "=b"] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_past_is_due_at_once() {
        assert_eq!(due_at(When::Ago(Duration::from_secs(5))), Due::NOW);
        assert_eq!(due_at(When::At(Timestamp::from_millis(7))), Due::At(Timestamp::from_millis(7)));
    }
}
