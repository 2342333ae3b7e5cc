//! Parses a line of input into a message.

use bytes::Bytes;
use millstream::delay::{Due, ScheduleId};
use millstream::{Envelope, Limits};

use crate::commands::message::{content, json};
use crate::commands::produce::field::Field;
use crate::commands::produce::once::{Once, OnceField};
use crate::commands::produce::{MissingKey, Produce, ProduceFormat};
use crate::exit::MORE_PAYLOAD;

/// A message that is ready to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The number of its line.
    pub(super) line: u64,
    pub(super) envelope: Envelope,
    pub(super) partition: Option<u32>,
    /// The due time of a delayed message.
    pub(super) due: Option<Due>,
    /// The id under which it waits.
    pub(super) id: Option<String>,
    /// The id by which it is stored once.
    pub(super) once: Option<Once>,
}

impl Outgoing {
    fn new(line: u64, envelope: Envelope) -> Self {
        Self { line, envelope, partition: None, due: None, id: None, once: None }
    }
}

/// The options that apply to every message.
#[derive(Debug)]
pub(super) struct Parser {
    format: ProduceFormat,
    key: Option<Bytes>,
    key_field: Option<Field>,
    missing_key: MissingKey,
    headers: Vec<(String, Bytes)>,
    partition: Option<u32>,
    ignore_partition: bool,
    due: Option<Due>,
    id: Option<String>,
    /// Whether each message must have an id: another one is to meet it.
    needs_id: bool,
    once_field: Option<OnceField>,
    limits: Limits,
}

impl Parser {
    pub(super) fn new(options: &Produce) -> Self {
        Self {
            format: options.format,
            key: options.key.clone().map(Bytes::from),
            key_field: options.key_field.as_deref().map(Field::new),
            missing_key: options.missing_key,
            headers: options.header.clone(),
            partition: options.partition,
            ignore_partition: options.ignore_partition,
            due: options.due.due(),
            id: options.id.clone(),
            needs_id: options.replace || options.debounce || options.keep_last,
            once_field: OnceField::new(options),
            limits: options.max_payload.limits(),
        }
    }

    /// Returns the message of a line; `None` for a blank line if lines are JSON.
    ///
    /// # Errors
    /// The fault in the line.
    pub(super) fn parse(&self, number: u64, line: Bytes) -> Result<Option<Outgoing>, String> {
        let mut message = match self.format {
            ProduceFormat::Lines | ProduceFormat::Raw => Outgoing::new(number, Envelope::new(line)),
            ProduceFormat::Json if line.trim_ascii().is_empty() => return Ok(None),
            ProduceFormat::Json => {
                let read = json::read(&line)?;
                let due = match (read.delay, read.at) {
                    (Some(_), Some(_)) => return Err("both delay and at".into()),
                    (Some(delay), None) => Some(Due::In(content::delay(&delay)?)),
                    (None, Some(at)) => Some(content::due_at(content::at(&at)?)),
                    (None, None) => None,
                };
                let partition = read.partition.filter(|_| !self.ignore_partition);
                let once = Once::of_line(read.dedup, read.unique)?;
                Outgoing { partition, due, id: read.id, once, ..Outgoing::new(number, read.envelope) }
            }
        };
        self.complete(&mut message)?;
        Ok(Some(message))
    }

    /// Adds the values of options where the line has none.
    fn complete(&self, message: &mut Outgoing) -> Result<(), String> {
        if message.envelope.key.is_none() {
            message.envelope.key = match &self.key_field {
                Some(field) => match (field.of(&message.envelope.payload)?, self.missing_key) {
                    (Ok(key), _) => Some(key.into()),
                    (Err(_), MissingKey::None) => None,
                    (Err(missing), MissingKey::Fail) => return Err(missing),
                },
                None => self.key.clone(),
            };
        }
        for (name, value) in &self.headers {
            message.envelope.headers.append(name.clone(), value.clone());
        }
        message.partition = message.partition.or(self.partition);
        message.due = message.due.or(self.due);
        message.id = message.id.take().or_else(|| self.id.clone());
        if let Some(id) = &message.id {
            if message.due.is_none() {
                return Err(format!(
                    "id {id:?}, and no delay or at: only what is sent for later has an id of its own"
                ));
            }
            ScheduleId::new(id).map_err(|error| error.to_string())?;
        } else if self.needs_id {
            return Err(
                "--replace, --debounce and --keep-last need an id: --id, or the id of a line of JSON".into(),
            );
        }
        if let (None, Some(field)) = (&message.once, &self.once_field) {
            message.once = Some(field.of(&message.envelope.payload)?);
        }
        if message.once.is_some() && message.due.is_some() {
            return Err(
                "a dedup id or unique id, and a delay or at: what is sent for later has an id (--id)".into(),
            );
        }
        message.envelope.check(&self.limits).map_err(|error| {
            let is_payload = message.envelope.payload.len() > self.limits.payload;
            if is_payload { format!("{error}; {MORE_PAYLOAD}") } else { error.to_string() }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        produce: Produce,
    }

    fn parser(options: &str) -> Parser {
        let words = ["produce", "orders"].into_iter().chain(options.split_whitespace());
        Parser::new(&Only::try_parse_from(words).expect(options).produce)
    }

    fn parsed(options: &str, line: &'static str) -> Result<Option<Outgoing>, String> {
        parser(options).parse(7, line.into())
    }

    #[test]
    fn what_a_line_says_goes_before_options() {
        let options = "--format json --key k --header a=1 --partition 2 --delay 1s --id x";
        let own = r#"{"payload":1,"key":"own","headers":{"b":"2"},"partition":0,"delay":"2s","id":"mine"}"#;
        let own = parsed(options, own).expect("a message").expect("one");
        assert_eq!(own.envelope.key.as_deref(), Some(&b"own"[..]));
        assert_eq!((own.partition, own.due), (Some(0), Some(Due::In(Duration::from_secs(2)))));
        assert_eq!((own.id.as_deref(), own.envelope.headers.len(), own.line), (Some("mine"), 2, 7));
        let bare = parsed(options, r#"{"payload":"p"}"#).expect("a message").expect("one");
        assert_eq!(bare.envelope, Envelope::new("p").with_key("k").with_header("a", "1"));
        assert_eq!((bare.partition, bare.due), (Some(2), Some(Due::In(Duration::from_secs(1)))));
        assert_eq!(bare.id.as_deref(), Some("x"));
    }

    #[test]
    fn an_id_by_which_it_is_stored_once_is_the_lines_or_from_a_field() {
        let once = |options, line| parsed(options, line).map(|it| it.expect("one").once);
        let (dedup, unique) =
            (|id: &str| Some(Once::Dedup(id.into())), |id: &str| Some(Once::Unique(id.into())));
        assert_eq!(once("--format json", r#"{"payload":1,"dedup":"d"}"#), Ok(dedup("d")));
        assert_eq!(once("--format json", r#"{"payload":1,"unique":"u"}"#), Ok(unique("u")));
        assert_eq!(once("--format json", r#"{"payload":1}"#), Ok(None));
        assert_eq!(once("--dedup-field a.b", r#"{"a":{"b":7}}"#), Ok(dedup("7")));
        assert_eq!(once("--unique-field a", r#"{"a":"x"}"#), Ok(unique("x")));
        let own = r#"{"payload":{"a":"x"},"unique":"u"}"#;
        assert_eq!(once("--format json --dedup-field a", own), Ok(unique("u")));
    }

    #[test]
    fn a_line_of_text_is_its_bytes() {
        let it = parsed("", "{\"a\": 1}\r").expect("a message").expect("one");
        assert_eq!(it.envelope, Envelope::new("{\"a\": 1}\r"));
        assert!(parsed("", "").expect("a message").is_some(), "an empty line is an empty message");
        assert!(parsed("--format json", " \t").expect("nothing").is_none());
        for line in ["{}", "{\"a\":null}", "{\"b\": 1}"] {
            let it = parsed("--key-field a --missing-key none", line).expect("a message").expect("one");
            assert_eq!(it.envelope.key, None, "{line}");
        }
        let keyed = parsed("--key-field a", "{\"a\": 1}").expect("a message").expect("one");
        assert_eq!(keyed.envelope.key.as_deref(), Some(&b"1"[..]));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let cases = [
            ("--key-field a", "no json", "not JSON: "),
            ("--key-field a", "[1]", "not a JSON object"),
            ("--key-field a", "{\"a\":null}", "field \"a\" is null"),
            ("--format json", "no json", "not JSON: "),
            ("--format json", "{\"payload\":1,\"delay\":\"36600d\"}", "more than 100 years"),
            ("--key-field a", "{}", "no field \"a\""),
            ("--format json", "{\"payload\":1,\"delay\":\"soon\"}", "\"soon\" is not a time"),
            ("--format json", "{\"payload\":1,\"at\":\"soon\"}", "\"soon\" is not a point in time"),
            ("--format json", "{\"payload\":1,\"at\":\"in 1s\",\"delay\":\"1s\"}", "both delay and at"),
            ("--format json", "{\"payload\":1,\"dedup\":\"x\",\"unique\":\"x\"}", "both dedup and unique"),
            (
                "--format json --delay 1s",
                "{\"payload\":1,\"dedup\":\"x\"}",
                "what is sent for later has an id",
            ),
            ("--dedup-field a", "{\"b\":1}", "no field \"a\""),
            ("--format json", "{\"payload\":1,\"id\":\"x\"}", "only what is sent for later"),
            ("--format json", "{\"payload\":1,\"id\":\"\",\"delay\":\"1s\"}", "schedule id is empty"),
            ("--delay 1s --debounce", "x", "need an id"),
            ("--format json --replace", "{\"payload\":1}", "need an id"),
        ];
        for (options, line, says) in cases {
            let error = parsed(options, line).expect_err(line);
            assert!(error.contains(says), "{line}: {error}");
        }
        let large = parser("").parse(1, vec![b'x'; (1 << 20) + 1].into()).expect_err("too large");
        assert_eq!(large, "bytes of payload: 1048577, at most 1048576; --max-payload allows more");
        let allowed = parser("--max-payload 2MiB").parse(1, vec![b'x'; (1 << 20) + 1].into());
        assert!(allowed.is_ok_and(|it| it.is_some()));
    }
}
