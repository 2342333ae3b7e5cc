//! What a monitoring system does: ask over HTTP, and read Prometheus text strictly, as version 0.0.4 has it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer over HTTP.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The type of the content.
    pub content_type: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.content_type, "application/json");
        serde_json::from_str(&self.body).expect("JSON")
    }
}

/// Asks for a path.
///
/// # Errors
/// If nobody is there.
///
/// # Panics
/// If the answer is no HTTP.
pub async fn get(address: SocketAddr, path: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let header = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    };
    let length = header("content-length").and_then(|length| length.parse::<usize>().ok());
    assert_eq!(length, Some(body.len()), "the whole body");
    Ok(Answer { status, content_type: header("content-type").unwrap_or_default(), body: body.to_owned() })
}

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// One scrape.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    /// The type of each metric.
    pub types: BTreeMap<String, String>,
    /// The help text of each metric.
    pub helps: BTreeMap<String, String>,
    /// Values by name (with `_bucket`, `_sum`, `_count`) and labels.
    pub samples: BTreeMap<(String, Labels), f64>,
}

impl Scrape {
    /// Reads the text.
    ///
    /// # Panics
    /// If it is not what the format wants.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut scrape = Self::default();
        assert!(text.is_empty() || text.ends_with('\n'), "the last line ends");
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("a name and a text");
                assert!(scrape.helps.insert(name.into(), help.into()).is_none(), "helped twice: {line}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a name and a type");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(scrape.types.insert(name.into(), kind.into()).is_none(), "typed twice: {line}");
            } else {
                assert!(!line.starts_with('#'), "{line}");
                let (name, labels, value) = sample(line);
                let family = scrape.family(&name).unwrap_or_else(|| panic!("no type before it: {line}"));
                assert!(scrape.helps.contains_key(&family), "no help: {line}");
                assert!(scrape.samples.insert((name, labels), value).is_none(), "there twice: {line}");
            }
        }
        scrape.check_histograms();
        scrape
    }

    /// The metric that a sample belongs to.
    #[must_use]
    pub fn family(&self, name: &str) -> Option<String> {
        let parts = ["_bucket", "_sum", "_count"].iter().filter_map(|part| name.strip_suffix(part));
        let histogram =
            parts.into_iter().find(|name| self.types.get(*name).is_some_and(|kind| kind == "histogram"));
        histogram.or_else(|| self.types.contains_key(name).then_some(name)).map(str::to_owned)
    }

    /// Buckets grow, and the last one is the count.
    fn check_histograms(&self) {
        let mut buckets: BTreeMap<(String, Labels), Vec<(f64, f64)>> = BTreeMap::new();
        for ((name, labels), value) in &self.samples {
            let Some(family) = name.strip_suffix("_bucket") else { continue };
            let mut labels = labels.clone();
            let bound = labels.remove("le").expect("a bound");
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a bound") };
            buckets.entry((family.to_owned(), labels)).or_default().push((bound, *value));
        }
        for ((family, labels), mut buckets) in buckets {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{family}: {buckets:?}");
            let count = self.samples[&(format!("{family}_count"), labels.clone())];
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{family}");
            assert!(self.samples.contains_key(&(format!("{family}_sum"), labels)), "{family}");
        }
    }

    /// The sum of a metric over the series that have these labels; `None` if there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has =
            |set: &Labels| labels.iter().all(|(name, value)| set.get(*name).is_some_and(|it| it == value));
        let found =
            self.samples.iter().filter(|((it, set), _)| it == name && has(set)).map(|(_, value)| *value);
        found.reduce(|sum, value| sum + value)
    }

    /// The names of the metrics.
    #[must_use]
    pub fn families(&self) -> Vec<String> {
        let mut families: Vec<_> = self.samples.keys().filter_map(|(name, _)| self.family(name)).collect();
        families.dedup();
        families
    }
}

/// One line per value, buckets left out.
impl fmt::Display for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = self.samples.iter().filter(|((name, _), _)| !name.ends_with("_bucket"));
        samples.into_iter().try_for_each(|((name, labels), value)| {
            let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            writeln!(f, "{name} {} {value}", labels.join(" "))
        })
    }
}

/// `name{label="value",…} value`
fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).expect("a value");
    let (name, mut rest) = line.split_at(end);
    let valid = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    assert!(valid(name) && !name.is_empty(), "{line}");
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").expect("a label");
            assert!(valid(label), "{line}");
            let (value, after) = quoted(after);
            assert!(labels.insert(label.to_owned(), value).is_none(), "there twice: {line}");
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').expect("a space");
    let value = match value {
        "NaN" => f64::NAN,
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        value => value.parse().unwrap_or_else(|_| panic!("{line}")),
    };
    (name.to_owned(), labels, value)
}

/// The text up to the closing quote, and what comes after it.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('"' | '\\'))) => value.push(c),
                other => panic!("escaped {other:?} in {text}"),
            },
            c => value.push(c),
        }
    }
    panic!("no closing quote: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_format_allows_is_read() {
        let text = "# HELP h about\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 1.5\nh_count 2\n\n\
                    # HELP c with\n# TYPE c counter\nc{a=\"x \\\"\\\\\\n}\",b=\"\"} 3\nc{a=\"y\"} NaN\n";
        let scrape = Scrape::parse(text);
        assert_eq!(scrape.sum("c", &[("a", "x \"\\\n}")]), Some(3.0));
        assert!(scrape.sum("c", &[]).is_some_and(f64::is_nan));
        assert_eq!((scrape.sum("h_count", &[]), scrape.sum("no", &[])), (Some(2.0), None));
        assert_eq!(scrape.families(), ["c", "h"]);
    }

    #[test]
    fn what_it_does_not_allow_is_not() {
        for bad in [
            "c 1\n",
            "# HELP c x\n# TYPE c counter\nc 1",
            "# HELP c x\n# TYPE c counter\nc 1\nc 2\n",
            "# HELP c x\n# TYPE c counter\nc{a=\"1} 1\n",
            "# HELP c x\n# TYPE c counter\nc one\n",
            "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        ] {
            assert!(std::panic::catch_unwind(|| Scrape::parse(bad)).is_err(), "{bad}");
        }
    }
}
