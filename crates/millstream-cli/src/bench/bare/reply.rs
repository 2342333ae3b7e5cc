//! What is needed of a reply to `XREADGROUP` of one stream, read from the raw value: the least that anybody must do.

use redis::Value;

/// The entries of the one stream.
fn entries(reply: &Value) -> &[Value] {
    match part(reply, 0).and_then(|stream| part(stream, 1)) {
        Some(Value::Array(entries)) => entries,
        _ => &[],
    }
}

/// The ids.
pub(super) fn ids(reply: &Value) -> Vec<&[u8]> {
    entry_ids(entries(reply))
}

/// The ids of bare entries, as `XAUTOCLAIM` has them.
pub(super) fn entry_ids(entries: &[Value]) -> Vec<&[u8]> {
    entries.iter().filter_map(|entry| bytes(part(entry, 0)?)).collect()
}

/// The value of the first field of each.
pub(super) fn payloads(reply: &Value) -> Vec<&[u8]> {
    entries(reply).iter().filter_map(|entry| bytes(part(part(entry, 1)?, 1)?)).collect()
}

fn part(of: &Value, at: usize) -> Option<&Value> {
    match of {
        Value::Array(parts) => parts.get(at),
        _ => None,
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
