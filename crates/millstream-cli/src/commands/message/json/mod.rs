//! Messages as lines of JSON: a line that is written can be read back, and results in the same message byte for byte.
//!
//! Text is a string. A payload that is a JSON object or array is embedded unchanged, so that tools can read it. Bytes
//! that are not text are base64: `key_base64`, `payload_base64`, and `{"base64": "…"}` as the value of a header.

mod read;
mod schema;
mod write;

pub(crate) use read::read;
pub(crate) use write::{fields, headers};

#[cfg(test)]
mod tests {
    use millstream::{Envelope, MessageId, TopicPartition};
    use serde_json::json;

    use super::*;
    use crate::commands::message::sanitize::is_control;
    use crate::commands::message::{Body, MessageView};

    fn view(envelope: Envelope) -> MessageView {
        let topic_partition = TopicPartition::new("orders".parse().expect("a name"), 3);
        MessageView {
            topic_partition,
            id: MessageId::new(7, 1),
            attempt: None,
            body: Body::Message(envelope),
        }
    }

    fn written(envelope: &Envelope) -> String {
        serde_json::to_string(&view(envelope.clone())).expect("JSON")
    }

    #[test]
    fn what_is_written_is_read_again_byte_for_byte() {
        let payloads: [&[u8]; 16] = [
            b"",
            b"hello",
            b"42",
            b"null",
            b"\"quoted\"",
            b"{\"a\": 1.50, \"a\":2}",
            b" {\"a\":1}",
            b"{\"a\":\n1}",
            b"[1,2",
            b"[1e400, 12345678901234567890123]",
            b"\xff\x00",
            b"line\r\n",
            b"{\"a\":\"\\ud800\"}",
            "é\u{9b}".as_bytes(),
            "{\"a\":\"\u{202e}\"}".as_bytes(),
            b"{}",
        ];
        for payload in payloads {
            let envelope = Envelope::new(payload).with_key(&b"k\xff"[..]);
            let envelope = envelope.with_header("b", "1").with_header("a", &b"\xfe"[..]).with_header("a", "");
            let line = written(&envelope);
            let safe = crate::commands::message::sanitize::json(&line);
            assert!(!safe.contains(is_control), "{safe}");
            let read = read(safe.as_bytes()).unwrap_or_else(|error| panic!("{error}: {safe}"));
            assert_eq!(read.envelope, envelope, "{safe}");
            assert_eq!(
                (read.partition, read.id),
                (Some(3), None),
                "the id of an entry is none of a new message"
            );
        }
    }

    #[test]
    fn headers_keep_their_order() {
        let apart = Envelope::new("x").with_header("a", "1").with_header("b", "2").with_header("a", "3");
        assert!(
            written(&apart).contains(r#""headers":[["a","1"],["b","2"],["a","3"]]"#),
            "{}",
            written(&apart)
        );
        assert_eq!(read(written(&apart).as_bytes()).expect("read").envelope, apart);
        let beside = Envelope::new("x").with_header("b", "1").with_header("b", "2").with_header("a", "3");
        assert!(written(&beside).contains(r#""headers":{"b":["1","2"],"a":"3"}"#), "{}", written(&beside));
    }

    #[test]
    fn payloads_that_are_structures_can_be_looked_into() {
        let value: serde_json::Value =
            serde_json::from_str(&written(&Envelope::new("{\"total\": 12}"))).expect("JSON");
        let expected = json!({
            "topic": "orders", "partition": 3, "id": "7-1", "time_ms": 7, "key": null, "headers": {},
            "payload": {"total": 12},
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn a_line_says_what_is_wrong_with_it() {
        let cases = [
            ("", "EOF while parsing a value at column 0"),
            ("{\"payload\":1", "EOF while parsing an object at column 12"),
            ("{\"payload\":1,\"haeders\":{}}", "unknown field `haeders`"),
            ("{\"key\":\"k\"}", "neither payload nor payload_base64"),
            ("{\"payload\":1,\"payload_base64\":\"\"}", "both payload and payload_base64"),
            ("{\"payload\":1,\"key\":\"\",\"key_base64\":\"\"}", "both key and key_base64"),
            ("{\"payload\":1,\"key\":7}", "invalid type: integer `7`, expected a string"),
            ("{\"payload_base64\":\"?\"}", "payload_base64: Invalid symbol"),
            ("{\"payload\":1,\"headers\":{\"a\":1}}", "the value of a header is a string"),
            ("{\"payload\":1,\"headers\":\"a\"}", "expected headers: an object, or a list of pairs"),
            ("{\"payload\":1,\"headers\":{\"a\":{\"base64\":\"?\"}}}", "a header"),
            ("{\"malformed\":\"no payload field\",\"fields\":[]}", "unknown field `malformed`"),
            ("[1]", "invalid type"),
            ("{\"payload\":\"\\ud800\"}", "payload: "),
        ];
        for (line, says) in cases {
            let error = read(line.as_bytes()).expect_err(line);
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn an_id_is_one_to_wait_under() {
        let id = |line: &str| read(line.as_bytes()).expect(line).id;
        assert_eq!(id(r#"{"payload":1,"id":"1-2","delay":"1s"}"#).as_deref(), Some("1-2"));
        assert_eq!(id(r#"{"payload":1,"id":"mine"}"#).as_deref(), Some("mine"));
        assert_eq!(id(r#"{"payload":1,"id":"1-2"}"#), None);
    }
}
