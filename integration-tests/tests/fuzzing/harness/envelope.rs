//! Entries of any writer: they are messages or have a reason why not, and what is written is read back.
//!
//! Input: a byte of flags, an attempt, then names and values, each with its length in front. A length of 240 or more
//! stands for a name that has a meaning.

use bytes::Bytes;
use millstream_core::history::History;
use millstream_core::log::{Receipt, Source};
use millstream_core::wire::{self, Field, Fields};
use millstream_core::{DeadLetter, Limits, MessageId, Reason, TopicPartition};

use super::Input;

const NAMES: [&str; 16] = [
    wire::PAYLOAD,
    wire::KEY,
    wire::FORM,
    wire::UNIQUE,
    wire::ATTEMPT,
    wire::ORIGIN,
    wire::ERROR,
    wire::HISTORY,
    wire::REASON,
    wire::ATTEMPTS,
    wire::TOPIC,
    wire::PARTITION,
    wire::GROUP,
    wire::PACKED,
    "h:trace",
    "h:",
];

fn text(input: &mut Input<'_>) -> Bytes {
    match input.0.first() {
        Some(known @ 240..) => {
            input.byte();
            Bytes::from_static(NAMES[usize::from(known - 240)].as_bytes())
        }
        _ => Bytes::copy_from_slice(input.bytes()),
    }
}

pub(crate) fn check(input: &[u8]) {
    let mut input = Input(input);
    let flags = input.byte();
    let attempt = u32::from(input.byte()) + 1;
    let mut entry = Fields::new();
    // In front, so that the fields that Millstream adds are reached without luck.
    let lead: &[&str] = match flags & 3 {
        1 => &wire::REDELIVERY_FIELDS,
        2 => &wire::DEAD_FIELDS,
        _ => &[],
    };
    for name in lead {
        entry.push((Bytes::from_static(name.as_bytes()), text(&mut input)));
    }
    while !input.is_empty() {
        entry.push((text(&mut input), text(&mut input)));
    }
    let limits = if flags & 4 == 0 { Limits::default() } else { Limits::default().with_payload(8) };
    let id = MessageId::new(7, 1);
    for source in [Source::Log, Source::Retry] {
        decoded(Receipt::new(source, id), &entry, &limits);
    }
    redelivered(attempt, &entry, &limits);
    buried(attempt, &entry, &limits);
    assert_eq!(wire::digest(&entry), wire::digest(&entry.clone()));
}

fn decoded(receipt: Receipt, entry: &[Field], limits: &Limits) {
    let read = wire::decode(receipt, entry, limits);
    let owned = wire::decode_owned(receipt, entry.to_vec(), limits);
    assert_eq!(format!("{read:?}"), format!("{owned:?}"));
    assert!(read.attempt >= 1);
    let body = wire::body_of(receipt.source, entry);
    assert_eq!(wire::decode_body(body, limits), read.envelope);
    match read.envelope {
        Ok(envelope) => {
            assert!(envelope.check(limits).is_ok());
            let again = wire::encode(&envelope);
            let log = Receipt::new(Source::Log, receipt.id);
            assert_eq!(wire::decode(log, &again, limits).envelope, Ok(envelope));
        }
        // An error of bounded length, whatever the entry has.
        Err(why) => assert!(why.to_string().len() < 1_024, "{why}"),
    }
}

/// A redelivery of an entry has its attempt and its bytes.
fn redelivered(attempt: u32, entry: &[Field], limits: &Limits) {
    let origin = MessageId::new(3, 4);
    let error =
        entry.first().map_or_else(String::new, |(_, value)| String::from_utf8_lossy(value).into_owned());
    let mut history = History::parse(&error);
    history.add(MessageId::new(5, 0).timestamp(), attempt, &error);
    // What is written of a history is read back.
    assert_eq!(History::parse(&history.to_string()), history);
    let again = wire::redelivery(attempt, origin, &error, &history, entry);
    let receipt = Receipt::new(Source::Retry, MessageId::new(9, 9));
    let read = wire::decode(receipt, &again, limits);
    assert_eq!((read.attempt, read.origin, &read.history), (attempt, origin, &history));
    assert_eq!(read.error.as_deref().unwrap_or_default(), wire::cut(&error));
    assert_eq!(wire::body_of(Source::Retry, &again), entry);
}

/// A dead letter has its reason and the bytes.
fn buried(attempt: u32, entry: &[Field], limits: &Limits) {
    let (topic_partition, group) =
        (TopicPartition::new("t".parse().expect("a name"), 1), "g".parse().expect("a name"));
    let foreign = DeadLetter::from_entry(MessageId::new(2, 2), topic_partition, group, entry);
    let _ = foreign.envelope(limits);
    let letter = DeadLetter { reason: Reason::Rejected, attempts: attempt, body: entry.to_vec(), ..foreign };
    let fields = wire::dead_letter(&letter, entry);
    let (lead, body) = wire::split_dead(&fields);
    assert_eq!((lead.len(), body), (wire::DEAD_FIELDS.len(), entry));
    let back =
        DeadLetter::from_entry(letter.id, letter.topic_partition.clone(), letter.group.clone(), &fields);
    assert_eq!((back.reason, back.attempts, back.origin), (letter.reason, attempt, letter.origin));
    assert_eq!(back.history, letter.history);
    assert_eq!(back.body, letter.body);
}
