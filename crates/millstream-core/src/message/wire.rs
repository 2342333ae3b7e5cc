//! The wire form: an envelope as a stream entry, and the decoding of entries from any writer.
//!
//! An entry of a log is flat: `payload`, `key`, and `h:<name>` per header, in any order. A plain `XADD
//! stream:topic:{orders:p:0} * payload '…'` from any language is a message. Fields of other names (and headers whose name
//! is not UTF-8) are not shown, but carried along unchanged.
//!
//! An entry of a retry log or of the dead letters starts with fields that Millstream adds; the original entry follows,
//! byte for byte. So every attempt gets the bytes that were appended.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;

use crate::envelope::{Envelope, Headers, Limits};
use crate::error::ErrorKind;
use crate::history::History;
use crate::id::MessageId;
use crate::message::dead_letter::{DeadLetter, Reason};
use crate::message::envelope::MAX_HEADERS;
use crate::message::receipt::{Receipt, Source};

/// Fields of an entry in their order, as the server stores them. Names may repeat and need not be text.
pub type Fields = Vec<Field>;

/// Name and value of a field.
pub type Field = (Bytes, Bytes);

/// Field of the payload.
pub const PAYLOAD: &str = "payload";
/// Field of the key.
pub const KEY: &str = "key";
/// Prefix of a header's field.
pub const HEADER: &str = "h:";
/// Number of the entry's form, if it is another one than [`FORM_NUMBER`]: an entry without this field has form 1.
pub const FORM: &str = "mq:form";
/// Form that this version writes and reads. It is never written, since it is the default.
pub const FORM_NUMBER: &str = "1";
/// Form of an entry that is a pack: it holds many messages, and no payload of its own.
pub const FORM_OF_PACKS: &str = "2";
/// Head of a pack: the number of its messages, their compression and their size in bytes before it.
pub const PACK: &str = "mq:pack";
/// The messages of a pack.
pub const PACK_MESSAGES: &str = "mq:messages";
/// Id of an entry that is [unique](crate::log::Identity::Unique): the first field of its body.
pub const UNIQUE: &str = "mq:unique";
/// Redelivery: number of the attempt that this delivery is (2 for the first retry).
pub const ATTEMPT: &str = "attempt";
/// Redelivery and dead letter: id of the message's first entry, in the log.
pub const ORIGIN: &str = "origin";
/// Redelivery and dead letter: error of the last attempt, at most [`MAX_ERROR_LEN`] bytes.
pub const ERROR: &str = "error";
/// Redelivery and dead letter: failures of all attempts, as [`History`] writes them; may be empty.
pub const HISTORY: &str = "history";
/// Dead letter: a [`Reason`].
pub const REASON: &str = "reason";
/// Dead letter: number of attempts that were made.
pub const ATTEMPTS: &str = "attempts";
/// Dead letter: the topic.
pub const TOPIC: &str = "topic";
/// Dead letter: the partition.
pub const PARTITION: &str = "partition";
/// Dead letter: the group.
pub const GROUP: &str = "group";
/// Dead letter: replaces the body of an entry with more than [`MAX_BODY_FIELDS`] fields: its field names and values as a
/// `MessagePack` array of byte strings.
pub const PACKED: &str = "packed";

/// Longest error text that is kept with a message, in bytes; the rest is cut at a character boundary.
pub const MAX_ERROR_LEN: usize = 1024;
/// The most fields that a script copies one by one (Lua's `unpack` fails at 8,000 values).
pub const MAX_BODY_FIELDS: usize = 3_000;
const _: () = assert!(MAX_HEADERS + 10 <= MAX_BODY_FIELDS, "what can be sent can be read");

/// Fields before the body of a redelivery, in this order.
pub const REDELIVERY_FIELDS: [&str; 4] = [ATTEMPT, ORIGIN, ERROR, HISTORY];
/// Fields before the body of a dead letter, in this order.
pub const DEAD_FIELDS: [&str; 8] = [REASON, ATTEMPTS, ERROR, ORIGIN, TOPIC, PARTITION, GROUP, HISTORY];

/// Reason why an entry is not a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// There is no `payload` field.
    NoPayload,
    /// `payload` or `key` occurs twice: it cannot be known which one is meant.
    Duplicate(&'static str),
    /// Over a limit; the text names it.
    TooLarge(String),
    /// The entry has this form, which a later version of Millstream writes: it must not be taken for a message of form 1.
    UnknownForm(String),
}

/// Longest form that is displayed, in bytes: it is somebody else's data.
const MAX_FORM_LEN: usize = 32;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPayload => f.write_str("no payload field"),
            Self::Duplicate(field) => write!(f, "field {field} stands twice"),
            Self::TooLarge(what) => write!(f, "too large: {what}"),
            Self::UnknownForm(form) if form == FORM_OF_PACKS => f.write_str("a pack that cannot be read"),
            Self::UnknownForm(form) => {
                write!(
                    f,
                    "entry of form {form:?}, which a later version writes; this one reads form {FORM_NUMBER}"
                )
            }
        }
    }
}

impl std::error::Error for Malformed {}

/// Decoded entry.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// Number of this attempt, from 1.
    pub attempt: u32,
    /// Id of the message's first entry, in the log.
    pub origin: MessageId,
    /// Error of the last attempt.
    pub error: Option<String>,
    /// Failures of all attempts.
    pub history: History,
    /// The message, or the reason why it is none.
    pub envelope: Result<Envelope, Malformed>,
}

/// Returns the fields of a new message.
#[must_use]
pub fn encode(envelope: &Envelope) -> Fields {
    let mut fields = Fields::with_capacity(1 + usize::from(envelope.key.is_some()) + envelope.headers.len());
    fields.push((Bytes::from_static(PAYLOAD.as_bytes()), envelope.payload.clone()));
    if let Some(key) = &envelope.key {
        fields.push((Bytes::from_static(KEY.as_bytes()), key.clone()));
    }
    for (name, value) in envelope.headers.iter() {
        fields.push((Bytes::from(format!("{HEADER}{name}")), value.clone()));
    }
    fields
}

/// Decodes an entry of a log or retry log.
#[must_use]
pub fn decode(receipt: Receipt, fields: &[Field], limits: &Limits) -> Decoded {
    decode_owned(receipt, fields.to_vec(), limits)
}

/// Decodes fields that the caller does not need any more: they are taken apart, and nothing is copied.
#[must_use]
pub fn decode_owned(receipt: Receipt, mut fields: Fields, limits: &Limits) -> Decoded {
    let (mut attempt, mut origin) = (1, receipt.id);
    let (mut error, mut past) = (None, History::default());
    if receipt.source == Source::Retry {
        let lead = split_lead(&fields, &REDELIVERY_FIELDS).0;
        attempt = text(lead, ATTEMPT).and_then(|n| n.parse().ok()).filter(|n| *n >= 1).unwrap_or(1);
        origin = text(lead, ORIGIN).and_then(|id| id.parse().ok()).unwrap_or(receipt.id);
        error = text(lead, ERROR).filter(|error| !error.is_empty());
        past = history(lead);
        let ours = lead.len();
        fields.drain(..ours);
    }
    Decoded { attempt, origin, error, history: past, envelope: read_body(fields, limits) }
}

/// Returns the original entry inside a redelivery or dead letter: the fields behind those that Millstream added.
#[must_use]
pub fn body_of(source: Source, fields: &[Field]) -> &[Field] {
    match source {
        Source::Log => fields,
        Source::Retry => split_lead(fields, &REDELIVERY_FIELDS).1,
    }
}

/// Returns the fields of a redelivery: those that Millstream adds, then the body.
#[must_use]
pub fn redelivery(attempt: u32, origin: MessageId, error: &str, history: &History, body: &[Field]) -> Fields {
    let lead = [
        (ATTEMPT, attempt.to_string()),
        (ORIGIN, origin.to_string()),
        (ERROR, cut(error).to_owned()),
        (HISTORY, history.to_string()),
    ];
    led(lead, body)
}

/// Returns the fields of a dead letter: those that Millstream adds, then the body.
#[must_use]
pub fn dead_letter(letter: &DeadLetter, body: &[Field]) -> Fields {
    let lead = [
        (REASON, letter.reason.as_str().to_owned()),
        (ATTEMPTS, letter.attempts.to_string()),
        (ERROR, cut(&letter.error).to_owned()),
        (ORIGIN, letter.origin.to_string()),
        (TOPIC, letter.topic_partition.topic.to_string()),
        (PARTITION, letter.topic_partition.partition.to_string()),
        (GROUP, letter.group.to_string()),
        (HISTORY, letter.history.to_string()),
    ];
    led(lead, body)
}

/// Splits a dead letter into the fields that Millstream added (read with [`text`]) and the body.
#[must_use]
pub fn split_dead(fields: &[Field]) -> (&[Field], &[Field]) {
    split_lead(fields, &DEAD_FIELDS)
}

/// Returns the value of one of the added fields as text; bytes that are not UTF-8 are replaced.
#[must_use]
pub fn text(lead: &[Field], name: &str) -> Option<String> {
    lead.iter().find(|(n, _)| n == name).map(|(_, value)| String::from_utf8_lossy(value).into_owned())
}

/// Returns the reason in a dead letter's added fields.
#[must_use]
pub fn reason(lead: &[Field]) -> Reason {
    Reason::parse(&text(lead, REASON).unwrap_or_default())
}

/// Returns the failures in the added fields.
#[must_use]
pub fn history(lead: &[Field]) -> History {
    text(lead, HISTORY).map_or_else(History::default, |text| History::parse(&text))
}

/// Returns a hash that distinguishes entries: the same for the same fields, within one build of the program.
#[must_use]
pub fn digest(fields: &[Field]) -> u64 {
    let mut hasher = DefaultHasher::new();
    fields.hash(&mut hasher);
    hasher.finish()
}

/// Cuts an error text to [`MAX_ERROR_LEN`] bytes at a character boundary.
#[must_use]
pub fn cut(error: &str) -> &str {
    let mut end = error.len().min(MAX_ERROR_LEN);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    &error[..end]
}

fn led<const N: usize>(lead: [(&'static str, String); N], body: &[Field]) -> Fields {
    let lead = lead.into_iter().map(|(name, value)| (Bytes::from_static(name.as_bytes()), value.into()));
    lead.chain(body.iter().cloned()).collect()
}

/// Splits fields into those that Millstream added and the body. The added ones come first and in order: another program's
/// entry that merely has fields of these names is all body.
fn split_lead<'a>(fields: &'a [Field], names: &[&str]) -> (&'a [Field], &'a [Field]) {
    let ours = fields.len() >= names.len() && names.iter().zip(fields).all(|(ours, (name, _))| name == ours);
    fields.split_at(if ours { names.len() } else { 0 })
}

/// Decodes a body: one that [`encode`] wrote, or that any other program appended.
///
/// # Errors
/// The reason why it is not a message.
pub fn decode_body(body: &[Field], limits: &Limits) -> Result<Envelope, Malformed> {
    read_body(body.iter().cloned(), limits)
}

fn read_body<I>(body: I, limits: &Limits) -> Result<Envelope, Malformed>
where
    I: IntoIterator<Item = Field, IntoIter: ExactSizeIterator>,
{
    let body = body.into_iter();
    if body.len() > MAX_BODY_FIELDS {
        return Err(Malformed::TooLarge(format!("fields: {}, at most {MAX_BODY_FIELDS}", body.len())));
    }
    let mut payload = None;
    let mut key = None;
    let mut headers = Headers::new();
    for (name, value) in body {
        if name == PAYLOAD {
            if payload.replace(value).is_some() {
                return Err(Malformed::Duplicate(PAYLOAD));
            }
        } else if name == KEY {
            if key.replace(value).is_some() {
                return Err(Malformed::Duplicate(KEY));
            }
        } else if name == FORM && value != FORM_NUMBER {
            let shown = &value[..value.len().min(MAX_FORM_LEN)];
            return Err(Malformed::UnknownForm(String::from_utf8_lossy(shown).into_owned()));
        } else if let Some(name) = name.strip_prefix(HEADER.as_bytes())
            && let Ok(name) = std::str::from_utf8(name)
        {
            headers.append(name, value);
        }
    }
    let payload = payload.ok_or(Malformed::NoPayload)?;
    let envelope = Envelope { key, headers, payload };
    match envelope.check(limits) {
        Ok(()) => Ok(envelope),
        Err(error) => {
            debug_assert_eq!(error.kind(), ErrorKind::TooLarge);
            Err(Malformed::TooLarge(error.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(pairs: &[(&[u8], &[u8])]) -> Fields {
        pairs.iter().map(|(n, v)| (Bytes::copy_from_slice(n), Bytes::copy_from_slice(v))).collect()
    }

    fn receipt(source: Source) -> Receipt {
        Receipt::new(source, MessageId::new(7, 1))
    }

    #[test]
    fn an_entry_of_a_later_form_is_refused_and_kept() {
        let read = |form: &[u8]| {
            let entry = fields(&[(b"payload", b"hello"), (b"mq:form", form)]);
            let decoded = decode(receipt(Source::Log), &entry, &Limits::default());
            // As a redelivery, too: the body is carried along.
            let again = redelivery(2, MessageId::new(7, 1), "", &History::default(), &entry);
            assert_eq!(decode(receipt(Source::Retry), &again, &Limits::default()).envelope, decoded.envelope);
            decoded.envelope
        };
        assert_eq!(read(b"1"), Ok(Envelope::new("hello")));
        assert_eq!(read(b"2"), Err(Malformed::UnknownForm("2".into())));
        let text = read(&[0xff; 100]).expect_err("no form").to_string();
        assert!(text.len() < 300 && text.is_ascii() || text.contains('\u{fffd}'), "{text}");
    }

    #[test]
    fn a_foreign_entry_is_a_message() {
        let entry = fields(&[(b"type", b"x"), (b"payload", b"hello"), (b"h:\xff", b"?"), (b"h:a", b"1")]);
        let decoded = decode(receipt(Source::Log), &entry, &Limits::default());
        let envelope = decoded.envelope.expect("a message");
        assert_eq!(envelope, Envelope::new("hello").with_header("a", "1"));
        assert_eq!((decoded.attempt, decoded.origin), (1, MessageId::new(7, 1)));
    }

    #[test]
    fn what_is_not_a_message_says_why() {
        let limits = Limits::default().with_payload(2);
        let cases = [
            (fields(&[(b"key", b"k")]), Malformed::NoPayload),
            (fields(&[]), Malformed::NoPayload),
            (fields(&[(b"payload", b"1"), (b"payload", b"2")]), Malformed::Duplicate(PAYLOAD)),
            (fields(&[(b"key", b"1"), (b"payload", b""), (b"key", b"2")]), Malformed::Duplicate(KEY)),
            (fields(&[(b"payload", b"123")]), Malformed::TooLarge("bytes of payload: 3, at most 2".into())),
        ];
        for (entry, why) in cases {
            assert_eq!(decode(receipt(Source::Log), &entry, &limits).envelope, Err(why));
        }
    }

    #[test]
    fn fields_named_like_ours_in_the_log_are_somebodys() {
        let ours: [(&[u8], &[u8]); 4] =
            [(b"attempt", b"9"), (b"origin", b"1-1"), (b"error", b"e"), (b"history", b"5 1 e")];
        let entry = fields(&[&ours[..], &[(b"payload", b"x")]].concat());
        let decoded = decode(receipt(Source::Log), &entry, &Limits::default());
        assert_eq!((decoded.attempt, decoded.origin, decoded.error), (1, MessageId::new(7, 1), None));
        assert!(decoded.history.is_empty());
        assert_eq!(body_of(Source::Log, &entry).len(), 5, "and they are carried along");
    }

    #[test]
    fn a_redelivery_with_damaged_numbers_is_still_read() {
        let lead: [(&[u8], &[u8]); 4] =
            [(b"attempt", b"0"), (b"origin", b"?"), (b"error", b""), (b"history", b"\xff ?\n7 1 e")];
        let entry = fields(&[&lead[..], &[(b"payload", b"x")]].concat());
        let decoded = decode(receipt(Source::Retry), &entry, &Limits::default());
        assert_eq!((decoded.attempt, decoded.origin, decoded.error), (1, MessageId::new(7, 1), None));
        assert!(decoded.envelope.is_ok());
        assert_eq!(decoded.history.to_string(), "7 1 e", "lines that are none are passed over");
    }

    #[test]
    fn an_error_is_cut_at_a_character() {
        let long = "é".repeat(MAX_ERROR_LEN);
        assert_eq!(cut(&long).len(), MAX_ERROR_LEN);
        let odd = format!("x{long}");
        assert_eq!(cut(&odd).len(), MAX_ERROR_LEN - 1);
    }

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
    }

    proptest! {
        #[test]
        fn bytes_in_are_bytes_out(
            payload in bytes(),
            key in proptest::option::of(bytes()),
            headers in proptest::collection::vec((".{0,8}", bytes()), 0..5),
        ) {
            let mut envelope = Envelope { key, payload, headers: Headers::new() };
            for (name, value) in headers {
                envelope.headers.append(name, value);
            }
            let entry = encode(&envelope);
            let first = decode(receipt(Source::Log), &entry, &Limits::default());
            prop_assert_eq!(first.envelope.expect("a message"), envelope.clone());
            let history = History::parse("5 1 boom");
            let again = redelivery(2, MessageId::new(3, 4), "boom", &history, &entry);
            let second = decode(receipt(Source::Retry), &again, &Limits::default());
            prop_assert_eq!(second.envelope.expect("a message"), envelope);
            prop_assert_eq!((second.attempt, second.origin), (2, MessageId::new(3, 4)));
            prop_assert_eq!(second.history, history);
            prop_assert_eq!(body_of(Source::Retry, &again), &entry[..]);
        }

        #[test]
        fn any_fields_at_all_are_read_without_a_panic(
            entry in proptest::collection::vec((bytes(), bytes()), 0..12),
            retry: bool,
        ) {
            let source = if retry { Source::Retry } else { Source::Log };
            let _ = decode(receipt(source), &entry, &Limits::default());
            let _ = split_dead(&entry);
        }
    }
}
