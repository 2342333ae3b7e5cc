//! JSON form of headers in a row, which programs in any language can write.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millstream_core::Headers;
use millstream_core::error::{Error, ErrorKind, Result};
use serde_json::{Value, json};

/// Name of the member that holds a value that is no text.
const BASE64: &str = "base64";

/// Writes headers as an array of pairs, which keeps their order and names that occur twice. Returns `None` if there are none.
pub(crate) fn write(headers: &Headers) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    let pair = |(name, value): (&str, &bytes::Bytes)| match std::str::from_utf8(value) {
        Ok(text) => json!([name, text]),
        Err(_) => json!([name, { BASE64: STANDARD.encode(value) }]),
    };
    Some(Value::Array(headers.iter().map(pair).collect()).to_string())
}

/// Reads headers: an object of names and values, or an array of pairs. A value is a text, or an object with the member
/// `base64`.
///
/// # Errors
/// [`ErrorKind::Decode`] for anything else. No error contains a value.
pub(crate) fn read(json: &str) -> Result<Headers> {
    let invalid =
        |why: &str| Error::new(ErrorKind::Decode, format!("the headers of the row are invalid: {why}"));
    let parsed: Value = serde_json::from_str(json).map_err(|_| invalid("they are not JSON"))?;
    let mut headers = Headers::new();
    let mut add = |name: &str, value: &Value| {
        let bytes = match value {
            Value::String(text) => text.clone().into_bytes(),
            Value::Object(members) if members.len() == 1 => {
                let text = members.get(BASE64).and_then(Value::as_str);
                let bytes = text.and_then(|text| STANDARD.decode(text).ok());
                bytes.ok_or_else(|| invalid("an object that is not {\"base64\": text}"))?
            }
            _ => return Err(invalid("a value that is neither a text nor {\"base64\": text}")),
        };
        headers.append(name, bytes);
        Ok(())
    };
    match &parsed {
        Value::Null => {}
        Value::Object(members) => {
            for (name, value) in members {
                add(name, value)?;
            }
        }
        Value::Array(pairs) => {
            for pair in pairs {
                match pair.as_array().map(Vec::as_slice) {
                    Some([Value::String(name), value]) => add(name, value)?,
                    _ => return Err(invalid("an element that is not a pair of name and value")),
                }
            }
        }
        _ => return Err(invalid("neither an object nor an array")),
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        let mut headers = Headers::new();
        for (name, value) in [("a", &b"1"[..]), ("b", b"\xff\x00"), ("a", b"2\0"), ("", b"")] {
            headers.append(name, value.to_vec());
        }
        assert_eq!(read(&write(&headers).expect("some")).expect("valid"), headers);
        assert_eq!(write(&Headers::new()), None);
    }

    #[test]
    fn other_programs_write_an_object() {
        let headers = read(r#"{"traceparent": "00-1", "raw": {"base64": "/w=="}}"#).expect("valid");
        assert_eq!(headers.get_str("traceparent"), Some("00-1"));
        assert_eq!(headers.get("raw").map(|value| &value[..]), Some(&b"\xff"[..]));
        assert!(read("null").expect("valid").is_empty());
    }

    #[test]
    fn what_is_not_headers_is_refused_without_its_text() {
        for text in [
            "",
            "7",
            "{",
            r#"{"a": 1}"#,
            r#"["a"]"#,
            r#"[["a"]]"#,
            r#"[[1, "secret"]]"#,
            r#"{"a": {"base64": "?"}}"#,
        ] {
            let error = read(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Decode, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
