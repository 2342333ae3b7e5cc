//! Dead letters as lines of JSON: exported byte for byte, and parsed again.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use millstream_core::dead_letters::check_body;
use millstream_core::wire::Fields;
use millstream_core::{
    DeadLetter, Error, ErrorKind, GroupName, History, MessageId, Reason, Result, TopicName, TopicPartition,
};
use serde::{Deserialize, Serialize};

/// Version of the line format. A change that only adds members keeps this version; removing one, or changing its
/// meaning, needs a new one.
const FORMAT: u32 = 1;

/// Dead letter, as one line.
#[derive(Serialize, Deserialize)]
struct Line {
    format: u32,
    topic: String,
    partition: u32,
    group: String,
    id: String,
    reason: String,
    attempts: u32,
    error: String,
    origin: String,
    history: String,
    /// Names and values in base64: they need not be text, may be empty, and may be repeated.
    body: Vec<(String, String)>,
}

/// Returns a dead letter as one line of JSON, without a line break: `format` (1), `topic`, `partition`, `group`, `id`,
/// `reason`, `attempts`, `error`, `origin`, `history` (as in an entry), and `body`, the names and values of the
/// original entry in base64 and in order.
///
/// # Errors
/// No error is known to occur.
pub fn to_line(letter: &DeadLetter) -> Result<String> {
    let line = Line {
        format: FORMAT,
        topic: letter.topic_partition.topic.to_string(),
        partition: letter.topic_partition.partition.0,
        group: letter.group.to_string(),
        id: letter.id.to_string(),
        reason: letter.reason.as_str().to_owned(),
        attempts: letter.attempts,
        error: letter.error.clone(),
        origin: letter.origin.to_string(),
        history: letter.history.to_string(),
        body: letter
            .body
            .iter()
            .map(|(name, value)| (STANDARD.encode(name), STANDARD.encode(value)))
            .collect(),
    };
    serde_json::to_string(&line).map_err(|error| bad(format_args!("dead letter {}: {error}", letter.id)))
}

/// Parses a line written by [`to_line`]. Unknown members are ignored.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a line that is not a dead letter; [`ErrorKind::InvalidName`];
/// [`ErrorKind::TooLarge`] for one with too many fields; [`ErrorKind::Unsupported`] for one of a later format.
pub fn from_line(text: &str) -> Result<DeadLetter> {
    let format: Format = serde_json::from_str(text).map_err(bad)?;
    if format.format != FORMAT {
        let message = format!("a dead letter of format {}: {FORMAT} is known", format.format);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let line: Line = serde_json::from_str(text).map_err(bad)?;
    let decode = |text: &str| STANDARD.decode(text).map(Bytes::from).map_err(bad);
    let body: Fields =
        line.body.iter().map(|(name, value)| Ok((decode(name)?, decode(value)?))).collect::<Result<_>>()?;
    check_body(&body)?;
    let id = |text: &str| text.parse::<MessageId>().map_err(bad);
    Ok(DeadLetter {
        id: id(&line.id)?,
        reason: Reason::parse(&line.reason),
        attempts: line.attempts,
        error: line.error.clone(),
        origin: id(&line.origin)?,
        topic_partition: TopicPartition::new(TopicName::new(line.topic)?, line.partition),
        group: GroupName::new(line.group)?,
        history: History::parse(&line.history),
        body,
    })
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

fn bad(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("not a dead letter: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
    }

    proptest! {
        #[test]
        fn nothing_is_lost_on_the_way(
            ms in any::<u64>(),
            seq in any::<u64>(),
            attempts in any::<u32>(),
            error in ".{0,40}",
            reason in "[a-z]{0,12}",
            body in proptest::collection::vec((bytes(), bytes()), 0..6),
        ) {
            let letter = DeadLetter {
                id: MessageId::new(ms, seq),
                reason: Reason::parse(&reason),
                attempts,
                error,
                origin: MessageId::new(seq, ms),
                topic_partition: TopicPartition::new("orders".parse().expect("a name"), 7),
                group: "billing".parse().expect("a name"),
                history: History::parse("5 1 no gate\n9 3 no such flight"),
                body,
            };
            let line = to_line(&letter).expect("a line");
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(format!("{:?}", from_line(&line).expect("read")), format!("{letter:?}"));
        }

        #[test]
        fn whatever_is_read_is_a_letter_or_an_error(text in ".{0,80}") {
            let _ = from_line(&text);
        }
    }

    #[test]
    fn what_is_none_is_told_so() {
        let good = r#"{"format":1,"topic":"t","partition":0,"group":"g","id":"1-0","reason":"","attempts":0,"error":"","origin":"1-0","history":"","body":[],"later":1}"#;
        assert_eq!(from_line(good).expect("a letter").id, MessageId::new(1, 0));
        for (from, to, kind) in [
            (r#""format":1"#, r#""format":2"#, ErrorKind::Unsupported),
            (r#""id":"1-0""#, r#""id":"one""#, ErrorKind::InvalidConfig),
            (r#""topic":"t""#, r#""topic":"a b""#, ErrorKind::InvalidName),
            (r#""body":[]"#, r#""body":[["?","eA=="]]"#, ErrorKind::InvalidConfig),
            (r#","history":"""#, "", ErrorKind::InvalidConfig),
            ("{", "", ErrorKind::InvalidConfig),
        ] {
            assert_eq!(from_line(&good.replace(from, to)).expect_err(to).kind(), kind, "{to}");
        }
    }
}
