//! Notes of pending entries as stored in the `held` hash: `<due ms> <attempt> <suspicions> <by> <bytes> <error>`,
//! followed directly by the history. `<bytes>` is the length of the error.

use millstream_core::Timestamp;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::history::History;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::{Note, Source};
use millstream_core::schedule::Due;
use millstream_core::wire;
use redis::{Pipeline, Value};

use crate::conn::replies::reply;
use crate::error::unexpected;

/// Maximum length of the name `by`, in bytes.
const MAX_BY: usize = 128;
/// Maximum number of notes of one HMGET.
const NOTES_CHUNK: usize = 1_000;

/// Returns the word for a source in fields and arguments.
pub(crate) fn word(source: Source) -> &'static str {
    match source {
        Source::Log => "log",
        Source::Retry => "retry",
    }
}

/// Parses the word of a script for a source.
pub(crate) fn source(of: &[u8]) -> Result<Source> {
    let known = [Source::Log, Source::Retry].into_iter().find(|source| word(*source).as_bytes() == of);
    known.ok_or_else(|| unexpected(format_args!("{:?} instead of a source", String::from_utf8_lossy(of))))
}

/// Returns the hash field of an entry's note.
pub(crate) fn field(source: Source, id: MessageId) -> String {
    format!("{}:{id}", word(source))
}

/// Formats a note as two arguments for scripts: everything but the due time, which the server computes, and the line
/// that the server adds to the history behind its own time.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] if `by` is over its limit or has spaces.
pub(crate) fn write(note: &Note) -> Result<(String, String)> {
    if note.by.len() > MAX_BY || note.by.contains(char::is_whitespace) {
        let why = format!("the name {:?} on a note is over {MAX_BY} bytes long or has spaces", note.by);
        return Err(Error::new(ErrorKind::InvalidConfig, why));
    }
    let error = wire::cut(&note.error);
    let (history, line) = note.history.adding(note.attempt.saturating_sub(1), error);
    let words = format!("{} {} {} {} {error}{history}", note.attempt, note.suspicions, note.by, error.len());
    Ok((words, line))
}

/// Parses a note at `now` by the server's clock; `None` if it is not one of ours.
pub(crate) fn read(stored: &[u8], now: Timestamp) -> Option<Note> {
    let mut words = std::str::from_utf8(stored).ok()?.splitn(6, ' ');
    let due = Timestamp::from_millis(words.next()?.parse().ok()?);
    let (attempt, suspicions) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let by = words.next()?.to_owned();
    let bytes: usize = words.next()?.parse().ok()?;
    let (error, history) = words.next()?.split_at_checked(bytes)?;
    let (error, history) = (error.to_owned(), History::parse(history));
    let due = Due::In(due.saturating_duration_since(now));
    Some(Note { attempt, suspicions, by, error, history, due })
}

/// Builds the request for the notes of entries of one stream.
pub(crate) fn ask(held: &Key, source: Source, ids: &[MessageId]) -> Pipeline {
    let mut pipe = Pipeline::with_capacity(1 + ids.len().div_ceil(NOTES_CHUNK));
    pipe.cmd("TIME");
    for ids in ids.chunks(NOTES_CHUNK) {
        pipe.cmd("HMGET").arg(held.as_str());
        for id in ids {
            pipe.arg(field(source, *id));
        }
    }
    pipe
}

/// Parses the replies to [`ask`], one result per id. A value that is no note of ours is logged and skipped.
pub(crate) fn told(answers: Vec<Value>, held: &Key, ids: &[MessageId]) -> Result<Vec<Option<Note>>> {
    let on = |error: Error| error.during(format_args!("read {held}"));
    let mut answers = answers.into_iter();
    let now = reply::time(answers.next().unwrap_or_default())?;
    let mut notes = Vec::with_capacity(ids.len());
    for answer in answers {
        for stored in reply::array(answer).map_err(on)? {
            let stored = reply::maybe_bytes(stored)?;
            let read = stored.as_ref().and_then(|stored| read(stored, now));
            if stored.is_some() && read.is_none() {
                let id = ids.get(notes.len()).copied().unwrap_or_default();
                tracing::warn!(key = %held, %id, "a note that cannot be read is skipped");
            }
            notes.push(read);
        }
    }
    if notes.len() == ids.len() {
        Ok(notes)
    } else {
        Err(unexpected(format_args!("{} notes of {} entries", notes.len(), ids.len())))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn text_and_back() {
        let history = History::parse("5 1 no\n9 2 it failed:   twice ");
        let note = |by: &str, error: &str| Note {
            attempt: 3,
            suspicions: 2,
            by: by.into(),
            error: error.into(),
            due: Due::In(Duration::from_millis(1_500)),
            history: history.clone(),
        };
        for note in [note("a-1", "it failed: \n twice "), note("", ""), note("b", "é")] {
            let (words, line) = write(&note).expect("valid");
            assert_eq!(line, "", "the history tells of attempt 2");
            let stored = format!("2500 {words}");
            assert_eq!(read(stored.as_bytes(), at(1_000)).as_ref(), Some(&note));
            assert_eq!(read(stored.as_bytes(), at(9_000)).expect("a note").left(), Duration::ZERO);
        }
        let first = Note { history: History::default(), ..note("a", &"x".repeat(5_000)) };
        let (words, line) = write(&first).expect("valid");
        assert_eq!(words.len(), "3 2 a 1024 ".len() + wire::MAX_ERROR_LEN);
        let read = read(format!("0 {words}77 {line}").as_bytes(), at(0)).expect("a note");
        assert_eq!((read.error.len(), read.history.since()), (wire::MAX_ERROR_LEN, Some(at(77))));
        for by in ["a b", "a\n", &"x".repeat(129)] {
            assert_eq!(write(&note(by, "")).expect_err("refused").kind(), ErrorKind::InvalidConfig);
        }
    }

    #[test]
    fn what_is_no_note_is_none() {
        let others: [&[u8]; 9] = [
            b"",
            b"x",
            b"1 2 3",
            b"1 2 3 by 1",
            b"-1 2 3 by 1 e",
            b"1 2 4294967296 by 1 e",
            b"1 2 3 by 1 \xff",
            b"1 2 3 by 2 e",
            "1 2 3 by 1 é".as_bytes(),
        ];
        for other in others {
            assert_eq!(read(other, at(0)), None, "{other:?}");
        }
    }
}
