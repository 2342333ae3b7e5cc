//! Payloads as text: JSON is indented without being parsed into numbers, so that large integers stay as they are.

use serde::de::IgnoredAny;

/// Depth up to which JSON is indented. Each level indents all that is in it: without a limit a payload of 200 kB that is only
/// brackets would become 20 GB.
const MAX_DEPTH: usize = 64;
/// Number of times that indented JSON may be as large as it was, beside 64 KiB.
const MAX_GROWTH: usize = 4;

/// Returns valid JSON with line breaks and indentation; every token is unchanged. `None` if it is no JSON object or array, is
/// nested too deeply, or would become too large.
pub(crate) fn indented(text: &str) -> Option<String> {
    let trimmed = text.trim();
    if !trimmed.starts_with(['{', '[']) || serde_json::from_str::<IgnoredAny>(trimmed).is_err() {
        return None;
    }
    let (mut out, mut depth) = (String::with_capacity(trimmed.len() * 2), 0_usize);
    let mut chars = trimmed.chars().peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    let most = trimmed.len() * MAX_GROWTH + (64 << 10);
    while let Some(c) = chars.next() {
        if depth > MAX_DEPTH || out.len() > most {
            return None;
        }
        match c {
            '"' => {
                out.push('"');
                let mut escaped = false;
                for c in chars.by_ref() {
                    out.push(c);
                    match c {
                        '"' if !escaped => break,
                        '\\' => escaped = !escaped,
                        _ => escaped = false,
                    }
                }
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(end) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_every_digit() {
        let text = r#"{"id":123456789012345678901234567890,"x":[1.10,{}, [ ] ],"s":"a,\"b{\\"}"#;
        let expected = "{\n  \"id\": 123456789012345678901234567890,\n  \"x\": [\n    1.10,\n    {},\n    []\n  ],\n  \"s\": \
                        \"a,\\\"b{\\\\\"\n}";
        assert_eq!(indented(text).as_deref(), Some(expected));
    }

    #[test]
    fn nesting_does_not_multiply_the_size() {
        let nested = |depth: usize, inside: &str| "[".repeat(depth) + inside + &"]".repeat(depth);
        assert!(indented(&nested(MAX_DEPTH, "1")).is_some());
        assert_eq!(indented(&nested(MAX_DEPTH + 1, "1")), None);
        assert_eq!(indented(&nested(100_000, "1")), None);
        // Each of many items is indented as far.
        let wide = nested(MAX_DEPTH, &vec!["1"; 100_000].join(","));
        assert_eq!(indented(&wide), None);
        assert!(indented(&nested(2, &vec!["1"; 10_000].join(","))).is_some());
    }

    #[test]
    fn what_is_no_json_stays_as_it_is() {
        for text in ["", "12", "{", "{\"a\":}", "[1,]", "plain"] {
            assert_eq!(indented(text), None, "{text}");
        }
    }
}
