//! Output templates in the style of `kcat -f`: `%p %k %s\n`.

use std::borrow::Cow;

use anyhow::{Result, bail};
use millstream::{Envelope, Headers};

use crate::commands::message::{Body, MessageView, json, sanitize};

/// The placeholders of a template, for the help.
pub(crate) const HELP: &str = "%s payload, %S its bytes, %k key, %K its bytes, %h headers (a=1,b=2), %t topic, \
%p partition, %o id, %T time in ms, %a attempt, %% a percent sign; \\n, \\r, \\t, \\0, \\\\ and \\xNN";

/// A parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(Vec<u8>),
    Payload,
    PayloadLen,
    Key,
    KeyLen,
    Headers,
    Topic,
    Partition,
    Id,
    Time,
    Attempt,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// An unknown placeholder.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let part = match (c, c == '%' || c == '\\') {
                (_, false) => {
                    literal.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
                ('\\', _) => {
                    literal.push(escape(&mut chars)?);
                    continue;
                }
                _ => match chars.next() {
                    Some('%') => {
                        literal.push(b'%');
                        continue;
                    }
                    Some('s') => Part::Payload,
                    Some('S') => Part::PayloadLen,
                    Some('k') => Part::Key,
                    Some('K') => Part::KeyLen,
                    Some('h') => Part::Headers,
                    Some('t') => Part::Topic,
                    Some('p') => Part::Partition,
                    Some('o') => Part::Id,
                    Some('T') => Part::Time,
                    Some('a') => Part::Attempt,
                    Some(other) => bail!("%{other} is not known: {HELP}"),
                    None => bail!("a template ends with %: a percent sign is %%"),
                },
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(part);
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Self(parts))
    }

    /// Formats a message. With `safe`, control characters of the message are escaped.
    pub(crate) fn fill(&self, view: &MessageView, safe: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let empty = Envelope::default();
        let (envelope, malformed) = match &view.body {
            Body::Message(envelope) => (envelope, None),
            Body::Malformed(_, fields) => (&empty, Some(json::fields(fields))),
        };
        // An entry that is not a message has its fields in place of the payload, so that no data is omitted.
        let payload = malformed.as_ref().map_or(&envelope.payload[..], String::as_bytes);
        let key = envelope.key.as_deref().unwrap_or_default();
        for part in &self.0 {
            let text: Cow<'_, [u8]> = match part {
                Part::Literal(text) => Cow::Borrowed(text),
                Part::Payload => shown(payload, safe),
                Part::Key => shown(key, safe),
                Part::PayloadLen => payload.len().to_string().into_bytes().into(),
                Part::KeyLen => key.len().to_string().into_bytes().into(),
                Part::Headers => headers(&envelope.headers).into_bytes().into(),
                Part::Topic => view.topic_partition.topic.as_str().as_bytes().into(),
                Part::Partition => view.topic_partition.partition.to_string().into_bytes().into(),
                Part::Id => view.id.to_string().into_bytes().into(),
                Part::Time => view.id.ms.to_string().into_bytes().into(),
                Part::Attempt => view.attempt.unwrap_or(1).to_string().into_bytes().into(),
            };
            out.extend_from_slice(&text);
        }
        out
    }
}

fn shown(bytes: &[u8], safe: bool) -> Cow<'_, [u8]> {
    if safe { sanitize::text(bytes).into_bytes().into() } else { bytes.into() }
}

/// Formats headers as `a=1,b=2`, in one line.
pub(crate) fn headers(headers: &Headers) -> String {
    let each = headers
        .iter()
        .map(|(name, value)| format!("{}={}", sanitize::line(name.as_bytes()), sanitize::line(value)));
    each.collect::<Vec<_>>().join(",")
}

fn escape(chars: &mut std::str::Chars<'_>) -> Result<u8> {
    Ok(match chars.next() {
        Some('n') => b'\n',
        Some('r') => b'\r',
        Some('t') => b'\t',
        Some('0') => 0,
        Some('\\') => b'\\',
        Some('x') => {
            let digits: String = chars.take(2).collect();
            let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            match u8::from_str_radix(&digits, 16) {
                Ok(byte) if is_byte => byte,
                _ => bail!("\\x{digits} is no byte: \\x and two digits are, as \\x1f"),
            }
        }
        Some(other) => bail!("\\{other} is not known: {HELP}"),
        None => bail!("a template ends with \\: a backslash is \\\\"),
    })
}

#[cfg(test)]
mod tests {
    use millstream::{MessageId, TopicPartition};

    use super::*;

    fn view() -> MessageView {
        let topic_partition = TopicPartition::new("orders".parse().expect("a name"), 3);
        let body = Body::Message(
            Envelope::new("a\x1bé").with_key("k").with_header("x", "1").with_header("y", "2\n"),
        );
        MessageView { topic_partition, id: MessageId::new(7, 1), attempt: Some(2), body }
    }

    fn filled(template: &str, safe: bool) -> String {
        let template = Template::parse(template).expect(template);
        String::from_utf8(template.fill(&view(), safe)).expect("UTF-8")
    }

    #[test]
    fn every_part_has_its_letter() {
        let all = filled(r"%t/%p %o %T %a|%k (%K)|%s (%S)|%h|100%%\t\x41\\é\n", false);
        assert_eq!(all, "orders/3 7-1 7 2|k (1)|a\x1bé (4)|x=1,y=2\\n|100%\tA\\é\n");
        assert_eq!(filled("%s", true), "a\\x1bé");
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        for (wrong, says) in [
            ("%q", "%q is not known"),
            ("%", "ends with %"),
            (r"\", "ends with \\"),
            (r"\q", "\\q is not known"),
            (r"\x1", "\\x1 is no byte"),
            (r"\xzz", "no byte"),
            (r"\x+1", "no byte"),
        ] {
            let error = Template::parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_is_no_message_is_shown_all_the_same() {
        let fields = vec![("type".into(), "x".into())];
        let view = MessageView { body: Body::Malformed("no payload field".into(), fields), ..view() };
        let template = Template::parse("%k|%s").expect("a template");
        assert_eq!(template.fill(&view, false), br#"|[["type","x"]]"#);
    }
}
