//! The vectors of `docs/wire-vectors.json`: the library reads entries and makes keys as `docs/wire.py` does.

use std::fmt::Debug;

use bytes::Bytes;
use millstream_core::idempotency::Operation;
use millstream_core::keys::{Key, Keys};
use millstream_core::log::{Receipt, Source};
use millstream_core::packing::PackCompression;
use millstream_core::partitioner::{by_hash, murmur2};
use millstream_core::wire::{self, Field, Fields, Malformed};
use millstream_core::{
    DeadLetter, Envelope, GroupName, History, Limits, MessageId, Namespace, TopicName, TopicPartition,
};
use millstream_packing::{Dictionary, Unpacked, pack, unpack_with};
use serde_json::{Value, json};

const ADVICE: &str =
    "docs/wire-vectors.json is what other languages rely on. A change of it is a change of the format:";

/// Fails with what is different.
#[track_caller]
fn none(offenders: &[String], advice: &str) {
    assert!(offenders.is_empty(), "{advice}\n  {}\n", offenders.join("\n  "));
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../docs/wire-vectors.json")).expect("JSON")
}

/// A list of vectors, which is not empty.
fn list<'a>(vectors: &'a Value, name: &str) -> &'a [Value] {
    let list = vectors[name].as_array().expect(name);
    assert!(!list.is_empty(), "{name}");
    list
}

fn text<'a>(vector: &'a Value, name: &str) -> &'a str {
    vector[name].as_str().expect(name)
}

fn number(vector: &Value, name: &str) -> u32 {
    u32::try_from(vector[name].as_u64().expect(name)).expect(name)
}

/// Bytes are text, or `{"hex": …}`.
fn bytes(value: &Value) -> Bytes {
    match value.as_str() {
        Some(plain) => Bytes::copy_from_slice(plain.as_bytes()),
        None => {
            let hex = text(value, "hex");
            let digits = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
            digits.map(|two| u8::from_str_radix(two, 16).expect("hexadecimal digits")).collect()
        }
    }
}

fn fields(entry: &Value) -> Fields {
    let entry = entry.as_array().expect("an entry");
    entry.iter().map(|field| (bytes(&field[0]), bytes(&field[1]))).collect()
}

/// The message of a vector, or the word for the reason why it is none.
fn message(vector: &Value) -> Result<Envelope, String> {
    if let Some(why) = vector["malformed"].as_str() {
        return Err(why.to_owned());
    }
    let message = &vector["message"];
    let mut envelope = Envelope::new(bytes(&message["payload"]));
    if !message["key"].is_null() {
        envelope = envelope.with_key(bytes(&message["key"]));
    }
    for header in message["headers"].as_array().into_iter().flatten() {
        envelope = envelope.with_header(header[0].as_str().expect("a name"), bytes(&header[1]));
    }
    Ok(envelope)
}

/// The same of an entry that was read.
fn in_words(read: Result<Envelope, Malformed>) -> Result<Envelope, String> {
    read.map_err(|why| match why {
        Malformed::NoPayload => "no_payload".to_owned(),
        Malformed::Duplicate(field) => format!("duplicate_{field}"),
        Malformed::UnknownForm(_) => "unknown_form".to_owned(),
        other => other.to_string(),
    })
}

fn failures(history: &History) -> Value {
    let failures = history.failures().iter();
    failures.map(|failed| json!([failed.at.as_millis(), failed.attempt, failed.error])).collect()
}

/// Says what is different.
fn differs<T: Debug + PartialEq>(what: &str, found: &T, expected: &T) -> Option<String> {
    (found != expected).then(|| format!("{what}: {found:?} instead of {expected:?}"))
}

fn id(vector: &Value) -> MessageId {
    text(vector, "id").parse().expect("an id")
}

fn topic(vector: &Value) -> TopicName {
    text(vector, "topic").parse().expect("a topic")
}

fn group(vector: &Value) -> GroupName {
    text(vector, "group").parse().expect("a group")
}

fn partition(vector: &Value) -> TopicPartition {
    TopicPartition::new(topic(vector), number(vector, "partition"))
}

/// Makes the key that a vector names.
fn key(vector: &Value) -> Key {
    let namespace = vector["namespace"].as_str().map(|name| name.parse::<Namespace>().expect("a namespace"));
    let keys = namespace.map_or_else(Keys::new, |namespace| Keys::within(&namespace));
    match text(vector, "what") {
        "log" => keys.log(&partition(vector)),
        "retry_log" => keys.retry_log(&partition(vector), &group(vector)),
        "dead_letters" => keys.dead_letters(&partition(vector), &group(vector)),
        "lease" => keys.lease(&partition(vector), &group(vector)),
        "fence" => keys.fence(&partition(vector), &group(vector)),
        "retry_due" => keys.retry_due(&partition(vector), &group(vector)),
        "retry_items" => keys.retry_items(&partition(vector), &group(vector)),
        "held" => keys.held(&partition(vector), &group(vector)),
        "packs" => keys.packs(&partition(vector)),
        "settled" => keys.settled(&partition(vector), &group(vector)),
        "topics" => keys.topics(),
        "topic_meta" => keys.topic_meta(&topic(vector)),
        "topic_dictionaries" => keys.topic_dictionaries(&topic(vector)),
        "topic_partitions" => keys.topic_partitions(&topic(vector)),
        "topic_groups" => keys.topic_groups(&topic(vector)),
        "members" => keys.members(&topic(vector), &group(vector)),
        "marker" => {
            let operation = Operation::new(topic(vector), group(vector), bytes(&vector["id"]));
            keys.marker(&operation.expect("an operation"))
        }
        "lock" => keys.lock(&text(vector, "lock").parse().expect("a name")),
        what => panic!("there is no key {what}"),
    }
}

#[test]
fn keys_and_partitions_are_those_of_the_vectors() {
    let vectors = vectors();
    let mut offenders = Vec::new();
    for vector in list(&vectors, "partitions") {
        let key = bytes(&vector["key"]);
        let found = (i64::from(murmur2(&key)), by_hash(&key, number(vector, "partitions")));
        let expected = (vector["hash"].as_i64().expect("a hash"), number(vector, "partition"));
        offenders.extend(differs(&format!("{key:?}"), &found, &expected));
    }
    for vector in list(&vectors, "keys") {
        let expected = text(vector, "key").to_owned();
        offenders.extend(differs(text(vector, "what"), &key(vector).to_string(), &expected));
    }
    none(&offenders, ADVICE);
}

#[test]
fn messages_are_written_as_the_vectors_say() {
    let vectors = vectors();
    let mut offenders = Vec::new();
    for vector in list(&vectors, "encoded") {
        let written = wire::encode(&message(vector).expect("a message"));
        offenders.extend(differs(text(vector, "name"), &written, &fields(&vector["entry"])));
    }
    none(&offenders, ADVICE);
}

#[test]
fn entries_are_read_as_the_vectors_say() {
    let vectors = vectors();
    let mut offenders = Vec::new();
    for vector in list(&vectors, "entries") {
        let name = text(vector, "name");
        let source = if text(vector, "stream") == "retry" { Source::Retry } else { Source::Log };
        let receipt = Receipt::new(source, id(vector));
        let found = wire::decode(receipt, &fields(&vector["entry"]), &Limits::default());
        let origin = found.origin.to_string();
        let lead = json!([found.attempt, origin, found.error, failures(&found.history)]);
        let expected = json!([vector["attempt"], vector["origin"], vector["error"], vector["history"]]);
        offenders.extend(differs(name, &lead, &expected));
        offenders.extend(differs(name, &in_words(found.envelope), &message(vector)));
    }
    none(&offenders, ADVICE);
}

#[test]
fn packs_are_read_and_written_as_the_vectors_say() {
    let vectors = vectors();
    let mut offenders = Vec::new();
    for vector in list(&vectors, "packs") {
        let (name, entry) = (text(vector, "name"), fields(&vector["entry"]));
        let dictionaries = vector["dictionaries"].as_object().into_iter().flatten();
        let dictionaries: Vec<Dictionary> = dictionaries
            .map(|(version, one)| {
                Dictionary::new(version.parse().expect("a number"), &bytes(one)).expect("one of zstd")
            })
            .collect();
        let named = |name| dictionaries.iter().find(|one| one.name() == name);
        let found = match unpack_with(&entry, named) {
            Ok(Unpacked::One) => Some(vec![(id(vector).to_string(), entry.clone())]),
            Ok(Unpacked::Messages(messages)) => {
                let count = u32::try_from(messages.len()).expect("few messages");
                let receipts = Receipt::of_pack(id(vector), count);
                receipts.map(|receipts| receipts.map(|one| one.id.to_string()).zip(messages).collect())
            }
            Err(_) => None,
        };
        let expected = vector["messages"].as_array().map(|messages| {
            messages.iter().map(|one| (text(one, "id").to_owned(), fields(&one["entry"]))).collect::<Vec<_>>()
        });
        offenders.extend(differs(name, &found, &expected));
        // What zstd writes is the same in all versions to a reader only.
        let is_plain = |(_, head): &Field| head.windows(6).any(|word| word == b" none ");
        if let Some(messages) = expected.filter(|_| entry.len() == 3 && is_plain(&entry[1])) {
            let written = pack(messages.iter().map(|(_, message)| message), PackCompression::None);
            offenders.extend(differs(name, &written.expect("packed"), &entry));
        }
    }
    none(&offenders, ADVICE);
}

#[test]
fn dead_letters_are_read_as_the_vectors_say() {
    let vectors = vectors();
    let mut offenders = Vec::new();
    for vector in list(&vectors, "dead_letters") {
        let name = text(vector, "name");
        let entry = fields(&vector["entry"]);
        let letter = DeadLetter::from_entry(id(vector), partition(vector), group(vector), &entry);
        let (reason, origin) = (letter.reason.as_str(), letter.origin.to_string());
        let lead = json!([reason, letter.attempts, letter.error, origin, failures(&letter.history)]);
        let expected = ["reason", "attempts", "error", "origin", "history"].map(|name| vector[name].clone());
        offenders.extend(differs(name, &lead, &json!(expected)));
        let envelope = letter.envelope(&Limits::default());
        offenders.extend(differs(name, &in_words(envelope), &message(vector)));
    }
    none(&offenders, ADVICE);
}
