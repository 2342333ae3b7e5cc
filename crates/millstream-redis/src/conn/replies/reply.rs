//! Parses replies without losing anything (order, repeated names, bytes that are not text) and without panics.
//!
//! The client's own typed replies are maps of text and would lose all three.

use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::wire::Fields;
use redis::Value;

use crate::error::{answered, unexpected};

/// Returns the value, or the error if the value is a server error.
pub(crate) fn ok(value: Value) -> Result<Value> {
    match value {
        Value::ServerError(error) => Err(answered(error)),
        Value::Attribute { data, .. } => ok(*data),
        value => Ok(value),
    }
}

/// Describes the type of a reply without its content, since replies carry payloads.
fn shape(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Int(_) => "an integer",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay | Value::VerbatimString { .. } => "text",
        Value::Array(_) | Value::Set(_) | Value::Push { .. } => "an array",
        Value::Map(_) => "a map",
        _ => "something else",
    }
}

fn wanted<T>(what: &str, value: &Value) -> Result<T> {
    Err(unexpected(format_args!("{} instead of {what}", shape(value))))
}

/// Parses an integer, also one in the form of text.
pub(crate) fn int(value: Value) -> Result<i64> {
    match ok(value)? {
        Value::Int(n) => Ok(n),
        Value::BulkString(text) => match std::str::from_utf8(&text).map(str::parse) {
            Ok(Ok(n)) => Ok(n),
            _ => wanted("an integer", &Value::BulkString(text)),
        },
        other => wanted("an integer", &other),
    }
}

/// Parses a count; a negative number becomes 0.
pub(crate) fn count(value: Value) -> Result<usize> {
    Ok(usize::try_from(int(value)?).unwrap_or(0))
}

/// Parses a string of bytes.
pub(crate) fn bytes(value: Value) -> Result<Bytes> {
    match ok(value)? {
        Value::BulkString(bytes) => Ok(bytes.into()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text.into()),
        Value::Int(n) => Ok(n.to_string().into()),
        other => wanted("a string", &other),
    }
}

/// Returns the number of a field that counts; 0 if it is missing, or holds something else.
pub(crate) fn number(value: &Value) -> u64 {
    let text = match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Parses a string of bytes, or nil.
pub(crate) fn maybe_bytes(value: Value) -> Result<Option<Bytes>> {
    match value {
        Value::Nil => Ok(None),
        value => bytes(value).map(Some),
    }
}

/// Parses a string for display: bytes that are not UTF-8 are replaced.
pub(crate) fn text(value: Value) -> Result<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses the id of an entry.
pub(crate) fn id(value: Value) -> Result<MessageId> {
    MessageId::from_bytes(&bytes(value)?)
}

/// Parses what may be missing.
pub(crate) fn maybe<T>(value: Value, read: impl Fn(Value) -> Result<T>) -> Result<Option<T>> {
    if value == Value::Nil { Ok(None) } else { read(value).map(Some) }
}

/// Parses a due time in milliseconds, as a script returns it of a sorted set. Another program's number that is no time counts as the
/// nearest one.
pub(crate) fn score(value: Value) -> Result<Timestamp> {
    let score = text(value)?;
    let ms: f64 = score.parse().map_err(|_| unexpected(format_args!("the due time {score:?}")))?;
    Ok(Timestamp::from_millis(ms as u64))
}

/// Parses a reply of TIME, rounded down to whole milliseconds.
pub(crate) fn time(value: Value) -> Result<Timestamp> {
    let [seconds, micros] = tuple(value)?;
    match (u64::try_from(int(seconds)?), u64::try_from(int(micros)?)) {
        (Ok(seconds), Ok(micros)) => {
            Ok(Timestamp::from_millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)))
        }
        _ => Err(unexpected("a time before 1970")),
    }
}

/// Parses a score as a time in whole milliseconds, rounded up. A score is a float, and may be infinite.
pub(crate) fn score_time(value: Value) -> Result<Timestamp> {
    let text = text(value)?;
    let score: f64 = text.parse().map_err(|_| unexpected(format_args!("{text:?} instead of a score")))?;
    // The cast saturates: a time before 1970, and a NaN, becomes 0.
    Ok(Timestamp::from_millis(score.ceil() as u64))
}

/// Formats a time that [`score_time`] returned as a score again.
pub(crate) fn score_of(time: Timestamp) -> Bytes {
    let ms = time.as_millis();
    if ms == u64::MAX { Bytes::from_static(b"+inf") } else { ms.to_string().into() }
}

/// Parses an array; nil counts as empty.
pub(crate) fn array(value: Value) -> Result<Vec<Value>> {
    match ok(value)? {
        Value::Array(values) | Value::Set(values) => Ok(values),
        Value::Nil => Ok(Vec::new()),
        other => wanted("an array", &other),
    }
}

/// Parses an array of exactly `N` values.
pub(crate) fn tuple<const N: usize>(value: Value) -> Result<[Value; N]> {
    let values = array(value)?;
    let len = values.len();
    values.try_into().map_err(|_| unexpected(format_args!("{len} values instead of {N}")))
}

/// Parses names and values: flat in RESP2, a map in RESP3.
pub(crate) fn pairs(value: Value) -> Result<Vec<(Value, Value)>> {
    if let Value::Map(pairs) = value {
        return Ok(pairs);
    }
    let values = array(value)?;
    if values.len() % 2 != 0 {
        return Err(unexpected(format_args!("{} values instead of pairs", values.len())));
    }
    let mut values = values.into_iter();
    Ok(std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect())
}

/// Parses names and values of an entry.
pub(crate) fn fields(value: Value) -> Result<Fields> {
    pairs(value)?.into_iter().map(|(name, value)| Ok((bytes(name)?, bytes(value)?))).collect()
}

/// An entry: its id, and its fields unless they are gone.
pub(crate) type RawEntry = (MessageId, Option<Fields>);

/// Parses the entries of a range or of one stream.
pub(crate) fn entries(value: Value) -> Result<Vec<RawEntry>> {
    let entries = array(value)?.into_iter().map(|entry| {
        let [name, body] = tuple(entry)?;
        let body = match body {
            Value::Nil => None,
            body => Some(fields(body)?),
        };
        Ok((id(name)?, body))
    });
    entries.collect()
}

/// Parses a reply of XREAD or XREADGROUP: entries by key, empty for nil.
pub(crate) fn streams(value: Value) -> Result<Vec<(Bytes, Vec<RawEntry>)>> {
    let pairs = match ok(value)? {
        Value::Map(pairs) => pairs,
        value => {
            let streams =
                array(value)?.into_iter().map(|stream| tuple(stream).map(|[key, list]| (key, list)));
            streams.collect::<Result<_>>()?
        }
    };
    pairs.into_iter().map(|(key, list)| Ok((bytes(key)?, entries(list)?))).collect()
}

/// Parses the reply of XPENDING to a range: ids and their delivery counts.
pub(crate) fn deliveries(value: Value) -> Result<Vec<(MessageId, u32)>> {
    let rows = array(value)?.into_iter().map(|row| {
        let [name, _consumer, _idle, times] = tuple(row)?;
        Ok((id(name)?, u32::try_from(int(times)?).unwrap_or(u32::MAX)))
    });
    rows.collect()
}

/// Number of entries of a stream, as the server counts. An entry of a packed log can hold many messages, so a number of messages is made of
/// it only with those [beyond](Self::with) one an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entries(pub(crate) u64);

impl Entries {
    /// Returns the number of messages: with those that they hold beyond one an entry.
    pub(crate) const fn with(self, beyond: u64) -> u64 {
        self.0 + beyond
    }
}

/// Information on one group from XINFO GROUPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupInfo {
    pub(crate) pending: Entries,
    pub(crate) last_delivered: MessageId,
    pub(crate) lag: Option<Entries>,
    /// How much the group has read, as the server counts.
    pub(crate) read: Option<Entries>,
}

/// Finds a group in a reply of XINFO GROUPS. Returns `None` for a missing group, and for a missing key.
pub(crate) fn group(value: Value, group: &str) -> Result<Option<GroupInfo>> {
    if is_missing_key(&value) {
        return Ok(None);
    }
    for info in array(value)? {
        let mut found = GroupInfo::default();
        let mut ours = false;
        for (name, value) in pairs(info)? {
            match &*bytes(name)? {
                b"name" => ours = bytes(value)? == group,
                b"pending" => found.pending = Entries(u64::try_from(int(value)?).unwrap_or(0)),
                b"last-delivered-id" => found.last_delivered = id(value)?,
                b"lag" if value != Value::Nil => found.lag = u64::try_from(int(value)?).ok().map(Entries),
                b"entries-read" if value != Value::Nil => {
                    found.read = u64::try_from(int(value)?).ok().map(Entries);
                }
                _ => {}
            }
        }
        if ours {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns whether the server reports that the key of an XINFO does not exist.
pub(crate) fn is_missing_key(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.details().is_some_and(|text| text.contains("no such key")))
}

#[cfg(feature = "admin")]
/// Returns whether the server reports a missing group (or a missing stream, where a command names a group).
pub(crate) fn is_no_group(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOGROUP")
}

#[cfg(test)]
mod tests {
    use millstream_core::error::ErrorKind;

    use super::*;

    fn parse(wire: &[u8]) -> Value {
        redis::parse_redis_value(wire).expect("a reply")
    }

    fn bulk(text: &[u8]) -> Value {
        Value::BulkString(text.to_vec())
    }

    #[test]
    fn order_repeats_and_bytes_are_kept() {
        let entry = Value::Array(vec![
            bulk(b"7-1"),
            Value::Array([&b"f"[..], b"1", b"\xff\x00", b"\xfe", b"f", b"2"].map(bulk).to_vec()),
        ]);
        let resp2 = Value::Array(vec![Value::Array(vec![bulk(b"k"), Value::Array(vec![entry.clone()])])]);
        let resp3 = Value::Map(vec![(bulk(b"k"), Value::Array(vec![entry]))]);
        for reply in [resp2, resp3] {
            let [(key, entries)] = &streams(reply).expect("streams")[..] else { panic!("one stream") };
            assert_eq!(&key[..], b"k");
            let (id, fields) = &entries[0];
            assert_eq!(*id, MessageId::new(7, 1));
            let fields: Vec<(&[u8], &[u8])> =
                fields.as_ref().expect("a body").iter().map(|(n, v)| (&n[..], &v[..])).collect();
            assert_eq!(fields, [(&b"f"[..], &b"1"[..]), (b"\xff\x00", b"\xfe"), (b"f", b"2")]);
        }
    }

    #[test]
    fn a_deleted_body_is_not_an_empty_one() {
        let reply = parse(b"*2\r\n*2\r\n$3\r\n1-0\r\n*-1\r\n*2\r\n$3\r\n2-0\r\n*0\r\n");
        let entries = entries(reply).expect("entries");
        assert_eq!(entries[0], (MessageId::new(1, 0), None));
        assert_eq!(entries[1], (MessageId::new(2, 0), Some(Vec::new())));
        assert!(streams(Value::Nil).expect("nothing").is_empty());
    }

    #[test]
    fn a_group_is_found_in_both_protocols() {
        let fields = [
            (bulk(b"name"), bulk(b"g")),
            (bulk(b"pending"), Value::Int(3)),
            (bulk(b"last-delivered-id"), bulk(b"5-1")),
            (bulk(b"new-in-9"), Value::Array(vec![])),
            (bulk(b"lag"), Value::Nil),
            (bulk(b"entries-read"), Value::Int(7)),
        ];
        let other = Value::Array(vec![bulk(b"name"), bulk(b"other"), bulk(b"lag"), Value::Int(1)]);
        let flat = Value::Array(fields.iter().flat_map(|(n, v)| [n.clone(), v.clone()]).collect());
        for info in [Value::Map(fields.to_vec()), flat] {
            let found = group(Value::Array(vec![other.clone(), info]), "g").expect("a reply");
            let last_delivered = MessageId::new(5, 1);
            let expected =
                GroupInfo { pending: Entries(3), last_delivered, lag: None, read: Some(Entries(7)) };
            assert_eq!(found, Some(expected));
        }
        assert_eq!(group(parse(b"-ERR no such key\r\n"), "g").expect("none"), None);
        let error = group(parse(b"-WRONGTYPE Operation\r\n"), "g").expect_err("a foreign type");
        assert_eq!(error.kind(), ErrorKind::WrongType);
    }

    #[test]
    fn garbage_is_an_error_and_never_shown() {
        let secret = || bulk(b"secret");
        let nested = Value::Array(vec![secret(), Value::Array(vec![secret()])]);
        let garbage = [
            Value::Okay,
            Value::Int(1),
            secret(),
            Value::Boolean(true),
            Value::Array(vec![secret()]),
            Value::Array(vec![Value::Array(vec![secret(), secret()])]),
            Value::Array(vec![nested.clone()]),
            Value::Array(vec![Value::Array(vec![secret(), Value::Array(vec![nested])])]),
            Value::Array(vec![Value::Array(vec![bulk(b"1-0"), Value::Array(vec![secret()])])]),
            Value::Array(vec![Value::Nil]),
        ];
        for value in garbage {
            let errors = [
                entries(value.clone()).err(),
                deliveries(value.clone()).err(),
                tuple::<7>(value.clone()).err(),
                group(value.clone(), "g").err(),
            ];
            for error in errors.into_iter().flatten() {
                assert_eq!(error.kind(), ErrorKind::Protocol, "{value:?}");
            }
            let _ = (streams(value.clone()), pairs(value.clone()), int(value.clone()), id(value));
        }
        let error = int(secret()).expect_err("no number");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
