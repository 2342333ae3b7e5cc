//! Calls of scripts that name the gate of the reader that was begun last, whose word only the fence knows.

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::{Key, Keys};
use millstream_core::name::GroupName;
use millstream_core::topic::TopicPartition;
use redis::Value;

use crate::conn::connection::Line;
use crate::scripts::script::{self, Call};

/// Maximum number of calls in a row that meet a reader which has just begun.
pub(crate) const READERS: usize = 8;

/// Makes the call of a script that closes the gate of the last reader. The script names that reader if it is not the one whose gate the
/// call names: then the call is made again.
pub(crate) async fn closing_gate<'a>(
    keys: &Keys,
    line: &'a dyn Line,
    (tp, group): (&TopicPartition, &GroupName),
    call: impl Fn(&Key, &str) -> Call<'a>,
) -> Result<Value> {
    let mut reader = String::new();
    let lease = keys.lease(tp, group);
    for _ in 0..READERS {
        let gate = gate_of(keys, (tp, group), &lease, &reader);
        let answer = script::run_one(line, call(&gate, &reader)).await?;
        match other_reader(&answer) {
            Some(last) => reader = last,
            None => return Ok(answer),
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "other readers begin all the time").at(tp))
}

/// Returns the gate of the reader with this word. Of none it is the lease, which the scripts remove too: while a slot moves, a call that
/// names a key that does not exist is refused.
pub(crate) fn gate_of(
    keys: &Keys,
    (tp, group): (&TopicPartition, &GroupName),
    lease: &Key,
    reader: &str,
) -> Key {
    if reader.is_empty() { lease.clone() } else { keys.gate(tp, group, reader) }
}

/// Returns the word of the last reader, if a script answers that it is another one than the call has named.
pub(crate) fn other_reader(answer: &Value) -> Option<String> {
    let Value::Array(words) = answer else { return None };
    match &words[..] {
        [Value::BulkString(what), Value::BulkString(reader)] if what == b"READER" => {
            Some(String::from_utf8_lossy(reader).into_owned())
        }
        _ => None,
    }
}
