//! The required parts of a reply to `XREADGROUP` of one stream, read from the raw value: the minimum work of any
//! client.

use redis::Value;

/// Returns the entries of the one stream.
fn entries(reply: &Value) -> &[Value] {
    match part(reply, 0).and_then(|stream| part(stream, 1)) {
        Some(Value::Array(entries)) => entries,
        _ => &[],
    }
}

/// Returns the ids.
pub(super) fn ids(reply: &Value) -> Vec<&[u8]> {
    entry_ids(entries(reply))
}

/// Returns the ids of bare entries, as in a reply of `XAUTOCLAIM`.
pub(super) fn entry_ids(entries: &[Value]) -> Vec<&[u8]> {
    entries.iter().filter_map(|entry| bytes(part(entry, 0)?)).collect()
}

/// Returns the value of the first field of each entry.
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
