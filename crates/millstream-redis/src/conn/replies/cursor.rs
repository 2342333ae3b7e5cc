//! Reads one reply on a connection of our own: entries are parsed directly, everything else becomes values of the
//! client.

use bytes::Bytes;
use millstream_core::error::{Error, Result};
use millstream_core::id::MessageId;
use millstream_core::wire::{self, Fields};
use redis::Value;

use crate::conn::replies::reply::{self, RawEntry};
use crate::conn::replies::resp::{Head, Step, step};
use crate::error::unexpected;

/// Maximum depth of nested arrays that become values, since they are parsed recursively.
const MAX_DEPTH: usize = 32;
/// Bytes that are copied at once, for names and values to share. It bounds the memory that a kept message retains of
/// its neighbours.
const CHUNK: usize = 16 << 10;
/// Minimum length of a value that gets an allocation of its own.
const LARGE: usize = CHUNK / 4;

/// Reader of one reply.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn head(&mut self) -> Result<Head<'a>> {
        match step(self.bytes, self.at)? {
            Step::Head(head, next) => {
                self.at = next;
                Ok(head)
            }
            Step::Missing(_) => Err(unexpected("a reply that ends early")),
        }
    }

    /// Reads the whole next value; a server error is returned as a value. Use it for small values.
    pub(crate) fn value(&mut self) -> Result<Value> {
        self.nested(0)
    }

    fn nested(&mut self, depth: usize) -> Result<Value> {
        Ok(match self.head()? {
            Head::Line(b"OK") => Value::Okay,
            Head::Line(line) => Value::SimpleString(String::from_utf8_lossy(line).into_owned()),
            Head::Error(line) => server_error(line)?,
            Head::Int(n) => Value::Int(n),
            Head::Text(text) => Value::BulkString(text.to_vec()),
            Head::Nil => Value::Nil,
            Head::Array(_) if depth == MAX_DEPTH => return Err(unexpected("arrays in arrays without end")),
            Head::Array(len) => {
                let mut values = Vec::with_capacity(self.bounded(len));
                for _ in 0..len {
                    values.push(self.nested(depth + 1)?);
                }
                Value::Array(values)
            }
        })
    }

    /// Returns an error if the reply is a server error, and discards any other reply.
    pub(crate) fn ok(mut self) -> Result<()> {
        match self.head()? {
            Head::Error(line) => Err(refused(line)),
            _ => Ok(()),
        }
    }

    /// Reads the id of an entry.
    pub(crate) fn id(&mut self) -> Result<MessageId> {
        MessageId::from_bytes(self.text()?)
    }

    /// Reads the head of an array and returns its length; `None` for nil.
    pub(crate) fn array(&mut self) -> Result<Option<usize>> {
        match self.head()? {
            Head::Array(len) => Ok(Some(len)),
            Head::Nil => Ok(None),
            Head::Error(line) => Err(refused(line)),
            _ => Err(unexpected("no array where one belongs")),
        }
    }

    /// Reads a reply of XREAD or XREADGROUP: entries by key, empty for nil.
    pub(crate) fn streams(&mut self) -> Result<Vec<(&'a [u8], Vec<RawEntry>)>> {
        let streams = self.array()?.unwrap_or(0);
        let mut read = Vec::with_capacity(self.bounded(streams));
        for _ in 0..streams {
            self.tuple(2)?;
            let key = self.text()?;
            read.push((key, self.entries()?));
        }
        Ok(read)
    }

    /// Reads the entries of one stream.
    fn entries(&mut self) -> Result<Vec<RawEntry>> {
        let count = self.array()?.unwrap_or(0);
        let mut shared = SharedBytes::default();
        let mut entries = Vec::with_capacity(self.bounded(count));
        for _ in 0..count {
            self.tuple(2)?;
            let id = self.id()?;
            let fields = match self.array()? {
                None => None,
                Some(len) if len % 2 == 0 => Some(self.fields(len / 2, &mut shared)?),
                Some(len) => return Err(unexpected(format_args!("{len} values instead of pairs"))),
            };
            entries.push((id, fields));
        }
        Ok(entries)
    }

    fn fields(&mut self, count: usize, shared: &mut SharedBytes) -> Result<Fields> {
        let mut fields = Vec::with_capacity(self.bounded(count));
        for _ in 0..count {
            let name = self.text()?;
            let name = match well_known(name) {
                Some(name) => Bytes::from_static(name.as_bytes()),
                None => shared.bytes(self.bytes, self.at, name),
            };
            let value = self.text()?;
            fields.push((name, shared.bytes(self.bytes, self.at, value)));
        }
        Ok(fields)
    }

    fn tuple(&mut self, wanted: usize) -> Result<()> {
        match self.array()? {
            Some(len) if len == wanted => Ok(()),
            len => Err(unexpected(format_args!("{} values instead of {wanted}", len.unwrap_or(0)))),
        }
    }

    fn text(&mut self) -> Result<&'a [u8]> {
        match self.head()? {
            Head::Text(text) => Ok(text),
            Head::Error(line) => Err(refused(line)),
            _ => Err(unexpected("no string where one belongs")),
        }
    }

    /// Bounds a capacity by the bytes that remain, since announced lengths are not trusted: the shortest value has
    /// three bytes.
    fn bounded(&self, count: usize) -> usize {
        count.min((self.bytes.len() - self.at) / 3)
    }
}

/// Parses the line of a server error.
fn server_error(line: &[u8]) -> Result<Value> {
    let text = String::from_utf8_lossy(line);
    redis::parse_redis_value(text.as_bytes()).map_err(|_| unexpected("an error that cannot be read"))
}

fn refused(line: &[u8]) -> Error {
    match server_error(line).and_then(reply::ok) {
        Ok(_) => unexpected("an error that is none"),
        Err(error) => error,
    }
}

/// Returns the static text of a field name that most entries have, so that its bytes are neither copied nor reference
/// counted.
fn well_known(name: &[u8]) -> Option<&'static str> {
    const NAMES: [&str; 6] =
        [wire::PAYLOAD, wire::KEY, wire::ATTEMPT, wire::ORIGIN, wire::ERROR, wire::HISTORY];
    NAMES.into_iter().find(|known| known.as_bytes() == name)
}

/// Copies names and values out of a reply, many of them into one shared allocation.
#[derive(Default)]
struct SharedBytes {
    chunk: Bytes,
    /// Position in the reply at which the chunk begins.
    from: usize,
}

impl SharedBytes {
    /// Copies a text of the reply that the cursor has just read; `at` is the position of the cursor behind it.
    fn bytes(&mut self, reply: &[u8], at: usize, text: &[u8]) -> Bytes {
        if text.is_empty() {
            return Bytes::new();
        }
        if text.len() >= LARGE {
            return Bytes::copy_from_slice(text);
        }
        // `at` is behind the CR LF that ends the text.
        let begin = at - text.len() - 2;
        // Texts come in the order of the reply: one that does not lie in the current chunk begins a new one.
        let within = begin.checked_sub(self.from).filter(|within| within + text.len() <= self.chunk.len());
        let within = within.unwrap_or_else(|| {
            self.chunk = Bytes::copy_from_slice(&reply[begin..reply.len().min(begin + CHUNK)]);
            self.from = begin;
            0
        });
        self.chunk.slice(within..within + text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::error::ErrorKind;
    use proptest::prelude::*;

    /// Writes a value as a server does.
    fn write(value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Nil => out.extend(b"$-1\r\n"),
            Value::Okay => out.extend(b"+OK\r\n"),
            Value::SimpleString(text) => out.extend(format!("+{text}\r\n").bytes()),
            Value::Int(n) => out.extend(format!(":{n}\r\n").bytes()),
            Value::BulkString(text) => {
                out.extend(format!("${}\r\n", text.len()).bytes());
                out.extend(text);
                out.extend(b"\r\n");
            }
            Value::Array(values) => {
                out.extend(format!("*{}\r\n", values.len()).bytes());
                values.iter().for_each(|value| write(value, out));
            }
            Value::ServerError(error) => {
                out.extend(format!("-{} {}\r\n", error.code(), error.details().unwrap_or_default()).bytes());
            }
            other => panic!("{other:?} is not in RESP2"),
        }
    }

    fn written(value: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(value, &mut bytes);
        bytes
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let error = || redis::parse_redis_value(b"-NOGROUP no such group\r\n").expect("an error");
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            Just(error()),
            any::<i64>().prop_map(Value::Int),
            "[a-zA-Z ]{0,9}x".prop_map(Value::SimpleString),
            proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::BulkString),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| proptest::collection::vec(inner, 0..6).prop_map(Value::Array))
    }

    fn text(bytes: impl Into<Vec<u8>>) -> Value {
        Value::BulkString(bytes.into())
    }

    fn any_text() -> impl Strategy<Value = Value> {
        prop_oneof![
            6 => proptest::collection::vec(any::<u8>(), 0..30).prop_map(text),
            1 => proptest::sample::select(vec!["payload", "key", "attempt", "history"]).prop_map(text),
            1 => (LARGE - 2..LARGE + 2).prop_map(|len| text(vec![b'x'; len])),
        ]
    }

    fn any_entry() -> impl Strategy<Value = Value> {
        let fields = proptest::collection::vec((any_text(), any_text()), 0..9).prop_map(|pairs| {
            Value::Array(pairs.into_iter().flat_map(|(name, value)| [name, value]).collect())
        });
        let body = prop_oneof![5 => fields, 1 => Just(Value::Nil)];
        (any::<u64>(), any::<u64>(), body)
            .prop_map(|(ms, seq, body)| Value::Array(vec![text(format!("{ms}-{seq}")), body]))
    }

    /// Checks that a cursor never reserves more room than there are bytes, however broken the reply is.
    fn read_all(bytes: &[u8]) {
        let _ = (Cursor::new(bytes).value(), Cursor::new(bytes).streams(), Cursor::new(bytes).ok());
    }

    #[test]
    fn lengths_are_not_believed() {
        for bytes in [&b"*1073741824\r\n"[..], b"*1\r\n*2\r\n$1\r\nk\r\n*1073741824\r\n", b"$9\r\nshort"] {
            let error = Cursor::new(bytes).value().expect_err("nothing follows");
            assert_eq!(error.kind(), ErrorKind::Protocol);
            read_all(bytes);
        }
        let deep = b"*1\r\n".repeat(100_000);
        assert_eq!(Cursor::new(&deep).value().expect_err("too deep").kind(), ErrorKind::Protocol);
    }

    #[test]
    fn an_error_instead_of_anything_is_that_error() {
        let error = Cursor::new(b"-WRONGTYPE Operation\r\n").streams().expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::WrongType);
        let error = Cursor::new(b"-OOM command not allowed\r\n").ok().expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::Backpressure);
    }

    #[test]
    fn a_message_keeps_little_of_its_neighbours() {
        let entry = |n: usize| {
            let fields = vec![text("payload"), text(vec![b'x'; 100])];
            Value::Array(vec![text(format!("{n}-0")), Value::Array(fields)])
        };
        let entries = Value::Array((0..1_000).map(entry).collect());
        let reply = written(&Value::Array(vec![Value::Array(vec![text("k"), entries])]));
        let mut read = Cursor::new(&reply).streams().expect("streams");
        let mut bodies =
            read.pop().expect("a stream").1.into_iter().map(|(_, fields)| fields.expect("a body"));
        let kept = bodies.nth(500).expect("a body").remove(0).1;
        drop(bodies);
        let whole = kept.try_into_mut().expect("nobody else keeps it");
        assert!(whole.capacity() <= CHUNK, "{}", whole.capacity());
    }

    proptest! {
        #[test]
        fn values_are_those_of_the_client(value in any_value()) {
            let bytes = written(&value);
            let theirs = redis::parse_redis_value(&bytes).expect("a reply");
            prop_assert_eq!(Cursor::new(&bytes).value().expect("a reply"), theirs);
        }

        #[test]
        fn entries_are_those_of_the_client(
            streams in proptest::collection::vec((any_text(), proptest::collection::vec(any_entry(), 0..9)), 0..3),
        ) {
            let streams = streams.into_iter().map(|(key, entries)| Value::Array(vec![key, Value::Array(entries)]));
            let bytes = written(&Value::Array(streams.collect()));
            let theirs = reply::streams(redis::parse_redis_value(&bytes).expect("a reply")).expect("streams");
            let ours = Cursor::new(&bytes).streams().expect("streams");
            let ours: Vec<_> = ours.into_iter().map(|(key, entries)| (key.to_vec().into(), entries)).collect();
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn a_broken_reply_is_never_a_panic(
            value in any_value(),
            entry in any_entry(),
            at in any::<proptest::sample::Index>(),
            byte: u8,
            cut: bool,
        ) {
            let entries = Value::Array(vec![Value::Array(vec![text("k"), Value::Array(vec![entry])])]);
            for mut bytes in [written(&value), written(&entries)] {
                let at = at.index(bytes.len());
                if cut { bytes.truncate(at) } else { bytes[at] = byte }
                read_all(&bytes);
            }
        }
    }
}
