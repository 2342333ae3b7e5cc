//! Links, relative to the page that they are on: so they are right under any prefix, also one that a proxy removes.

use std::fmt::{self, Write as _};

/// Path and query of a link within the dashboard, without the way to its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Href(String);

/// Stands before a value that would not arrive as it is.
const MARK: char = '~';

/// Returns the value of a segment of a path.
pub(crate) fn segment(text: &str) -> &str {
    text.strip_prefix(MARK).unwrap_or(text)
}

fn encode(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

impl Href {
    /// Fills the placeholders of a route's path with values, in their order: `/topics/{topic}` with `orders`.
    pub(crate) fn of(path: &str, values: &[&str]) -> Self {
        let (mut out, mut values) = (String::new(), values.iter());
        for segment in path.split('/').filter(|segment| !segment.is_empty()) {
            if !out.is_empty() {
                out.push('/');
            }
            if segment.starts_with('{') {
                let value = values.next().copied().unwrap_or_default();
                // Browsers take `.` and `..` for steps in the path, also in the form `%2E`.
                if value.starts_with(MARK) || matches!(value, "." | "..") {
                    out.push(MARK);
                }
                encode(&mut out, value);
            } else {
                out.push_str(segment);
            }
        }
        Self(out)
    }

    /// Adds a parameter to the query.
    pub(crate) fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        encode(&mut self.0, name);
        self.0.push('=');
        encode(&mut self.0, &value.to_string());
        self
    }

    /// Returns the link from a page whose path has so many slashes.
    pub(crate) fn at_depth(&self, depth: usize) -> String {
        let up = "../".repeat(depth.saturating_sub(1));
        if up.is_empty() { format!("./{}", self.0) } else { up + &self.0 }
    }

    /// Returns whether it leads to a change by which something is lost.
    pub(crate) fn loses(&self) -> bool {
        let path = self.0.split('?').next().unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        matches!(last, "purge" | "kill" | "delete" | "cancel" | "close" | "release") && path.contains('/')
    }

    pub(crate) fn path(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_and_links_are_relative() {
        let href = Href::of("/topics/{topic}/groups/{group}", &["orders", "a/b?c#d"]);
        assert_eq!(href.path(), "topics/orders/groups/a%2Fb%3Fc%23d");
        assert_eq!(href.at_depth(1), "./topics/orders/groups/a%2Fb%3Fc%23d");
        assert_eq!(href.at_depth(4), "../../../topics/orders/groups/a%2Fb%3Fc%23d");
        for name in [".", "..", "...", "~", "~.", "a.b"] {
            let href = Href::of("/topics/{topic}", &[name]);
            let last = href.path().trim_start_matches("topics/");
            assert!(!matches!(last, "." | "..") && segment(last) == name, "{name}: {last}");
        }
        let query = Href::of("/topics/{topic}", &["x"]).with("key", "a&b=\"c").with("n", 1);
        assert_eq!(query.path(), "topics/x?key=a%26b%3D%22c&n=1");
    }
}
