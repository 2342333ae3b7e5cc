//! The report that nextest writes of a run, in the form of `JUnit`: how long each test took, and why it failed.

use std::fmt::Write as _;

/// Characters of the message of a test that failed.
const MESSAGE: usize = 1_500;

/// One test of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// The test binary, as nextest names it.
    pub(crate) binary: String,
    pub(crate) seconds: f64,
    /// Message of the panic, if it failed.
    pub(crate) failure: Option<String>,
}

/// The tests of a report. What is no test is passed over: a report that cannot be read has none.
pub(crate) fn cases(report: &str) -> Vec<Case> {
    // Output of tests has its `<` escaped, so that no test can write an element.
    let elements = report.split("<testcase ").skip(1);
    elements
        .filter_map(|element| {
            let (tag, inside) = element.split_once('>')?;
            let failure = inside.split_once("<failure ").and_then(|(_, failure)| failure.split_once('>'));
            Some(Case {
                name: attribute(tag, "name")?,
                binary: attribute(tag, "classname")?,
                seconds: attribute(tag, "time")?.parse().ok()?,
                failure: failure.map(|(tag, _)| attribute(tag, "message").unwrap_or_default()),
            })
        })
        .collect()
}

/// The value of an attribute of a tag.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let mut rest = tag;
    loop {
        let (before, after) = rest.split_once("=\"")?;
        let (value, after) = after.split_once('"')?;
        if before.trim() == name {
            return Some(unescaped(value));
        }
        rest = after;
    }
}

fn unescaped(value: &str) -> String {
    let pairs =
        [("&#10;", "\n"), ("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    pairs.iter().fold(value.to_owned(), |value, (from, to)| value.replace(from, to))
}

/// A line for each of the slowest tests, and what they took of the time of all tests. Nothing if there is no test.
pub(crate) fn slowest(mut cases: Vec<Case>, count: usize) -> String {
    cases.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    let all: f64 = cases.iter().map(|case| case.seconds).sum();
    let slow = &cases[..count.min(cases.len())];
    if slow.is_empty() {
        return String::new();
    }
    let took: f64 = slow.iter().map(|case| case.seconds).sum();
    let mut text =
        format!("the {} slowest of {} tests took {took:.0} s of {all:.0} s\n", slow.len(), cases.len());
    for Case { name, binary, seconds, .. } in slow {
        let _ = writeln!(text, "{seconds:>8.1} s  {binary} {name}");
    }
    text
}

/// Each test that failed, with the beginning of its message: what stands above may be thousands of lines away.
pub(crate) fn failed(cases: &[Case]) -> String {
    let mut text = String::new();
    for Case { name, binary, failure, .. } in cases {
        let Some(message) = failure else { continue };
        let _ = writeln!(text, "failed: {binary} {name}");
        for line in message.chars().take(MESSAGE).collect::<String>().lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Case, cases, failed, slowest};

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" time="2.5">
    <testsuite name="a::b" tests="2" disabled="0" errors="0" failures="1">
        <testcase name="shared::is_&lt;quick&gt;" classname="a::b" timestamp="2026-01-02T03:04:05.678+00:00" time="0.250">
        </testcase>
        <testcase name="is_slow" classname="a::b" timestamp="x" time="12.000">
            <failure message="thread panicked at a.rs:1:&#10;no &lt;a&gt;" type="test failure">&lt;testcase name="no" classname="no" time="99"&gt;</failure>
        </testcase>
    </testsuite>
    <testsuite name="c"><testcase name="ends" classname="c" time="1"/><testcase name="broken"/></testsuite>
</testsuites>"#;

    fn case(name: &str, binary: &str, seconds: f64) -> Case {
        Case { name: name.to_owned(), binary: binary.to_owned(), seconds, failure: None }
    }

    #[test]
    fn tests_are_read_with_their_times() {
        let failure = Some("thread panicked at a.rs:1:\nno <a>".to_owned());
        let slow = Case { failure, ..case("is_slow", "a::b", 12.0) };
        let expected = [case("shared::is_<quick>", "a::b", 0.25), slow, case("ends", "c", 1.0)];
        assert_eq!(cases(REPORT), expected);
        assert_eq!(cases("no report"), []);
    }

    #[test]
    fn what_failed_is_named_with_its_message() {
        let text = failed(&cases(REPORT));
        assert_eq!(text, "failed: a::b is_slow\n    thread panicked at a.rs:1:\n    no <a>\n");
    }

    #[test]
    fn the_slowest_come_first() {
        let text = slowest(cases(REPORT), 2);
        let expected =
            "the 2 slowest of 3 tests took 13 s of 13 s\n    12.0 s  a::b is_slow\n     1.0 s  c ends\n";
        assert_eq!(text, expected);
        assert_eq!(slowest(cases(REPORT), 20).lines().count(), 4);
        assert_eq!(slowest(Vec::new(), 20), "");
    }
}
