//! The parts of the workload that both sides share.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

/// Delay of messages that must not become due during a run.
pub(crate) const AN_HOUR: Duration = Duration::from_secs(3_600);

/// Text that one message has, which is to be found.
pub(crate) const NEEDLE: &str = "order 4711 of a customer who called";

/// Returns the key of the `n`th message, given the number of keys.
pub(crate) fn key_of(n: u64, keys: u32) -> Option<String> {
    (keys > 0).then(|| format!("key-{}", n % u64::from(keys)))
}

/// Returns the payload of all messages of a seed: random bytes, so that compression by a server or network does not
/// help.
pub(crate) fn payload(seed: u64, bytes: u32) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

/// Size of an event in bytes above which the rest of it is text.
const LARGE: usize = 1_024;
/// Pieces of that text.
const NOTES: [&str; 4] = [
    "The parcel was handed over to the carrier and is on its way. ",
    "The customer has asked for another address, and waits for an answer. ",
    "Nobody was at home; the parcel waits at the shop around the corner. ",
    "The invoice was paid in full, and the order is closed. ",
];

/// Largest number of different events, and of their bytes together (256 MiB): beyond them they come again.
const EVENTS: (usize, usize) = (100_000, 256 << 20);

/// The payloads of a run. They are made before it is measured: what a program spends on its messages is its own.
#[derive(Clone)]
pub(crate) struct Payloads(Arc<[Bytes]>);

impl Payloads {
    /// Returns the payloads of this number of messages: events of the size of `payload` in a packed topic, where what messages have in
    /// common is what matters, and `payload` itself in others.
    pub(crate) fn new(payload: &Bytes, packed: bool, messages: u64) -> Self {
        if !packed {
            return Self(Arc::new([payload.clone()]));
        }
        let most = EVENTS.0.min(EVENTS.1 / payload.len().max(1)).max(1) as u64;
        Self((0..messages.clamp(1, most)).map(|n| event(n, payload.len())).collect())
    }

    /// Returns the payload of the `n`th message.
    pub(crate) fn of(&self, n: u64) -> &Bytes {
        // There is at least one.
        &self.0[(n % self.0.len() as u64) as usize]
    }
}

/// Returns the payload of the message with this number in a packed topic: JSON of this size, alike and not the same, as messages of one
/// topic are. Random bytes would not become smaller, and the same bytes nothing at all.
fn event(number: u64, bytes: usize) -> Bytes {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (customer, cents, second) = (mixed >> 48, (mixed >> 20) % 100_000, mixed % 86_400);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let mut text = format!(
        r#"{{"order":{number},"customer":"c-{customer}","cents":{cents},"at":"2026-11-26T{hour:02}:{minute:02}:{second:02}Z""#
    );
    let mut word = mixed;
    while text.len() + 12 < bytes.min(LARGE) {
        word = word.rotate_left(17).wrapping_mul(0xd6e8_feb8_6659_fd93);
        text.push_str(&format!(r#","{}":{}"#, char::from(b'a' + (text.len() % 26) as u8), word % 10_000));
    }
    if bytes > LARGE {
        // Cheaply: the time that it takes to make payloads is counted.
        text.push_str(r#","note":""#);
        while text.len() + 2 < bytes {
            word = word.rotate_left(17).wrapping_mul(0xd6e8_feb8_6659_fd93);
            let note = NOTES[(word % 4) as usize];
            text.push_str(&note[..note.len().min(bytes - 2 - text.len())]);
        }
        text.push('"');
    }
    text.push('}');
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_payload_again() {
        assert_eq!(payload(7, 128), payload(7, 128));
        assert_ne!(payload(7, 128), payload(8, 128));
        assert_eq!(payload(7, 8).len(), 8);
    }

    #[test]
    fn a_packed_topic_has_events_which_come_again_when_there_are_too_many() {
        let same = payload(7, 1 << 20);
        assert_eq!(Payloads::new(&same, false, 9).of(8), &same);
        let events = Payloads::new(&same, true, 1_000);
        assert_ne!(events.of(0), events.of(1));
        assert_eq!(events.of(0), events.of(256));
    }

    #[test]
    fn events_are_json_of_about_the_size_and_differ() {
        for bytes in [100, 144, 1_000, 65_536] {
            let (one, other) = (event(1, bytes), event(2, bytes));
            assert_ne!(one, other);
            serde_json::from_slice::<serde_json::Value>(&one).expect("JSON");
            assert!(one.len().abs_diff(bytes) < 16, "{} bytes for {bytes}", one.len());
        }
    }
}
