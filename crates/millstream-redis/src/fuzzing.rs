//! Entry points for fuzz targets and for tests that replay their inputs. Not a part of the API: it changes without notice.
//!
//! The functions only run the code that reads bytes and texts of others. The properties that must hold are with their
//! callers, in `integration-tests/tests/fuzzing/harness`.

use bytes::Bytes;
use millstream_core::error::{Error, Result};
use millstream_core::{QueueSpec, Timestamp, TopicName, TopicSpec};
use redis::Value;

use crate::address::{self, Address};
use crate::config::RedisConfig;
use crate::conn::replies::cursor::Cursor;
use crate::conn::replies::reply;
use crate::conn::replies::resp::Scanner;
use crate::queue::queues;
use crate::roles::catalog;
use crate::stored::task_state::TaskState;
use crate::stored::{item, note, ranges};

/// Scans bytes that arrive up to each of the positions in `arrivals`, and returns the lengths of the replies once
/// `wanted` of them are complete; `None` if bytes are missing at the end.
///
/// # Errors
/// The bytes are not replies.
pub fn scan(
    bytes: &[u8],
    wanted: usize,
    arrivals: impl IntoIterator<Item = usize>,
) -> Result<Option<Vec<usize>>> {
    let mut scanner = Scanner::default();
    scanner.begin(wanted);
    for end in arrivals {
        let arrived = bytes.get(..end).unwrap_or(bytes);
        if scanner.scan_first(arrived)? == 0 {
            let mut replies = scanner.replies(arrived);
            let length = |_| replies.next().map(|reply| reply.bytes().len());
            return (0..wanted).map(length).collect::<Result<_>>().map(Some);
        }
    }
    Ok(None)
}

/// Returns the minimum number of bytes that are missing behind these ones until `wanted` replies are complete.
///
/// # Errors
/// The bytes are not replies.
pub fn missing(bytes: &[u8], wanted: usize) -> Result<usize> {
    let mut scanner = Scanner::default();
    scanner.begin(wanted);
    scanner.scan_first(bytes)
}

/// Reads one reply in every way in which a cursor can, and returns its value as text.
///
/// # Errors
/// The reply is no value: it ends early, or is nested too deeply.
pub fn read(reply: &[u8]) -> Result<String> {
    let cursor = || Cursor::new(reply);
    let _ = (cursor().streams(), cursor().id(), cursor().array(), cursor().ok());
    cursor().value().map(|value| convert(&value))
}

/// Reads one reply as the client does, in either version of the protocol, and returns its value as text; `None` if it is
/// none.
#[must_use]
pub fn read_by_client(reply: &[u8]) -> Option<String> {
    redis::parse_redis_value(reply).ok().map(|value| convert(&value))
}

/// Returns the errors of the ways in which a reply can be read that cannot read this one.
#[must_use]
pub fn errors(reply: &[u8]) -> Vec<Error> {
    let cursor = || Cursor::new(reply);
    let mut errors: Vec<_> =
        [cursor().streams().err(), cursor().id().err(), cursor().array().err(), cursor().ok().err()]
            .into_iter()
            .flatten()
            .collect();
    if let Ok(value) = cursor().value() {
        let value = || value.clone();
        let failed = [
            reply::entries(value()).err(),
            reply::streams(value()).err(),
            reply::deliveries(value()).err(),
            reply::group(value(), "g").err(),
            reply::int(value()).err(),
            reply::bytes(value()).err(),
            reply::id(value()).err(),
            reply::time(value()).err(),
            reply::score_time(value()).err(),
        ];
        errors.extend(failed.into_iter().flatten());
    }
    errors.extend(note::source(reply).err());
    errors.extend(ranges::read(&String::from_utf8_lossy(reply)).err());
    errors
}

/// Converts a value in every way in which replies are converted, and returns it as text.
fn convert(value: &Value) -> String {
    let _ = (reply::entries(value.clone()), reply::streams(value.clone()), reply::deliveries(value.clone()));
    let _ = (reply::group(value.clone(), "g"), reply::pairs(value.clone()), reply::tuple::<2>(value.clone()));
    let _ = (reply::int(value.clone()), reply::count(value.clone()), reply::maybe_bytes(value.clone()));
    let _ = (reply::text(value.clone()), reply::id(value.clone()), reply::time(value.clone()));
    let _ = reply::score_time(value.clone()).map(reply::score_of);
    format!("{value:?}")
}

/// Reads stored bytes as each of the forms that are stored beside messages. Returns those that were read, as they are
/// written again.
pub fn stored(bytes: &[u8]) -> Vec<Bytes> {
    let at = Timestamp::from_millis(1_700_000_000_000);
    let _ = (note::read(bytes, at), note::source(bytes));
    let mut again = Vec::new();
    if let Some(([], fields)) = item::unpack(&Bytes::copy_from_slice(bytes)) {
        again.extend(item::pack(&[], &fields).ok().map(Bytes::from));
    }
    let text = String::from_utf8_lossy(bytes);
    if let Ok(partitions) = ranges::read(&text) {
        again.extend(ranges::write(&partitions).ok().map(Bytes::from));
    }
    let _ = TaskState::parse(&text);
    again
}

/// Reads the settings of a topic from the fields of its hash, in the order in which a request asks for them.
///
/// # Errors
/// There is no such topic, or a field cannot be read.
pub fn stored_topic(name: &TopicName, fields: &[Option<&str>]) -> Result<TopicSpec> {
    catalog::read_settings(name, reply_of(fields))
}

/// Reads the settings of a queue, as those of a topic.
///
/// # Errors
/// There is no such queue, or a field cannot be read.
pub fn stored_queue(fields: &[Option<&str>]) -> Result<QueueSpec> {
    queues::spec(&"q".parse()?, reply_of(fields))
}

fn reply_of(fields: &[Option<&str>]) -> Value {
    let value = |field: &Option<&str>| field.map_or(Value::Nil, |text| Value::BulkString(text.into()));
    Value::Array(fields.iter().map(value).collect())
}

/// Returns a URL as logs and errors show it.
#[must_use]
pub fn redacted(url: &str) -> String {
    RedisConfig::new(url).redacted_url()
}

/// Parses `host:port`, and returns it as it is shown.
#[must_use]
pub fn address(text: &str) -> Option<String> {
    Address::parse(text).map(|address| address.to_string())
}

/// Whether a URL asks for TLS.
#[must_use]
pub fn is_encrypted(url: &str) -> bool {
    address::is_encrypted(url)
}
