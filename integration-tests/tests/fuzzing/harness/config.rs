//! Settings as text, and what they are changed to: what the command line parses, what is stored at a topic or a queue, and
//! retry policies.
//!
//! Input: five numbers, then texts with a line break between: the stored fields of a topic.

use std::time::Duration;

use millstream_core::error::{Error, ErrorKind};
use millstream_core::policy::{Decision, Exponential, Failure, FailureKind, RetryPolicy};
use millstream_core::topic::MAX_PARTITIONS;
use millstream_core::{
    DeadLetterRetention, Durability, Retention, Timestamp, TopicChange, TopicName, TopicSpec,
};
use millstream_redis::fuzzing;

use super::Input;

// The files of the command line, whose binary cannot be imported.
#[path = "../../../../crates/millstream-cli/src/human.rs"]
#[allow(dead_code, unused_imports)]
mod human;
#[path = "../../../../crates/millstream-cli/src/parse.rs"]
#[allow(dead_code)]
mod parse;

/// The longest time that is stored, in milliseconds.
const MAX_MS: u64 = 1 << 53;
/// Maximum length of an error about stored text, in bytes: the text is somebody else's data, and may be large.
const MAX_ERROR: usize = 1_024;
/// The fields of a topic, as an error names them.
const FIELDS: [&str; 10] = [
    "partitionCount",
    "format",
    "retention",
    "maxLength",
    "deleting",
    "reborn",
    "deadLetterRetention",
    "earlier",
    "packing",
    "dictionary",
];

pub(crate) fn check(input: &[u8]) {
    let mut input = Input(input);
    let numbers = [0; 5].map(|_| input.number());
    let text = String::from_utf8_lossy(input.0).into_owned();
    let lines: Vec<_> = text.split('\n').take(FIELDS.len()).collect();
    for line in &lines {
        typed(line);
        written(line);
    }
    stored(&lines);
    changed(&lines, numbers);
    retried(numbers);
}

/// What is typed is shown so that it can be typed again, and stored so that it can be read.
fn typed(text: &str) {
    if let Ok(time) = parse::duration(text) {
        assert_eq!(parse::duration(&human::exact(time)), Ok(time), "{text:?}");
    }
    if let Ok(retention) = parse::retention(text) {
        assert_eq!(parse::retention(&human::retention(retention)), Ok(retention), "{text:?}");
        assert_eq!(Retention::parse(&retention.to_string()).ok(), Some(as_stored(retention)), "{text:?}");
        assert!(changed_to(TopicChange::new().retention(retention)).is_ok(), "{text:?} keeps something");
    }
    if let Ok(retention) = parse::dead_letter_retention(text) {
        let shown = human::dead_letter_retention(retention);
        assert_eq!(parse::dead_letter_retention(&shown), Ok(retention), "{text:?}");
        let read = DeadLetterRetention::parse(&retention.to_string()).expect("what is written is read");
        assert_eq!(read.max_age(), retention.max_age().map(cut), "{text:?}");
        assert_eq!(read.max_length(), retention.max_length(), "{text:?}");
        assert!(changed_to(TopicChange::new().dead_letter_retention(retention)).is_ok(), "{text:?}");
    }
    if let Ok(position) = parse::position(text) {
        assert_eq!(parse::position(&position.to_string()), Ok(position), "{text:?} is shown as {position}");
        let now = Timestamp::from_millis(1_700_000_000_000);
        let _ = position.start(now);
    }
    if let Ok(interval) = parse::interval(text) {
        assert!((Duration::from_millis(100)..=Duration::from_secs(86_400)).contains(&interval), "{text:?}");
    }
    if let Ok(durability) = text.parse::<Durability>() {
        assert_eq!(durability.to_string().parse().ok(), Some(durability), "{text:?}");
        assert!(durability.check().is_ok(), "{text:?}");
    }
}

fn cut(time: Duration) -> Duration {
    time.min(Duration::from_millis(MAX_MS))
}

fn as_stored(retention: Retention) -> Retention {
    match retention {
        Retention::ConsumedAfter(time) => Retention::ConsumedAfter(cut(time)),
        Retention::Age(time) => Retention::Age(cut(time)),
        other => other,
    }
}

fn topic() -> TopicSpec {
    TopicSpec::new(name(), 1).expect("one partition")
}

fn name() -> TopicName {
    "orders".parse().expect("a name")
}

fn changed_to(change: TopicChange) -> Result<TopicSpec, Error> {
    change.of(topic())
}

/// A stored setting is read, and written as it is read; or the error is short and says which setting it is.
fn written(text: &str) {
    let read = Retention::parse(text).map(|read| read.to_string());
    if let Some(again) = setting(text, read, "retention") {
        assert_eq!(Retention::parse(&again).map(|read| read.to_string()).ok().as_deref(), Some(&*again));
    }
    let read = DeadLetterRetention::parse(text).map(|read| read.to_string());
    if let Some(again) = setting(text, read, "retention") {
        let read = DeadLetterRetention::parse(&again).map(|read| read.to_string());
        assert_eq!(read.ok().as_deref(), Some(&*again));
    }
}

fn setting(text: &str, read: Result<String, Error>, what: &str) -> Option<String> {
    match read {
        Ok(again) => Some(again),
        Err(error) => {
            let shown = error.to_string();
            assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unsupported), "{shown}");
            assert!(shown.contains(what) && shown.len() <= MAX_ERROR, "{} bytes of {text:?}", shown.len());
            None
        }
    }
}

/// The settings of a topic or a queue are within their limits; or the error is short, and names the topic and the field.
fn stored(lines: &[&str]) {
    let fields: Vec<_> = FIELDS.iter().enumerate().map(|(at, _)| lines.get(at).copied()).collect();
    // An empty text and a missing one are different: both are tried.
    for empty in [Some(""), None] {
        let fields: Vec<_> = fields.iter().map(|field| field.filter(|it| !it.is_empty()).or(empty)).collect();
        match fuzzing::stored_topic(&name(), &fields) {
            Ok(topic) => {
                assert!((1..=MAX_PARTITIONS).contains(&topic.partitions) && topic.max_length != Some(0));
                let earlier: Vec<_> = topic.earlier.iter().map(u32::to_string).collect();
                let again = [
                    Some(topic.partitions.to_string()),
                    Some("1".to_owned()),
                    Some(topic.retention.to_string()),
                    topic.max_length.map(|entries| entries.to_string()),
                    None,
                    Some(topic.generation.to_string()),
                    Some(topic.dead_letter_retention.to_string()),
                    Some(earlier.join(" ")),
                    topic.packing.map(|packing| packing.to_string()),
                    topic.dictionary.map(|version| version.to_string()),
                ];
                let again: Vec<_> = again.iter().map(Option::as_deref).collect();
                let again = fuzzing::stored_topic(&name(), &again).expect("what is written is read");
                assert_eq!(format!("{again:?}"), format!("{:?}", settled(topic)));
            }
            Err(error) => {
                let shown = error.to_string();
                assert!(shown.contains("orders") && shown.len() <= MAX_ERROR, "{} bytes", shown.len());
                match error.kind() {
                    ErrorKind::NotFound => {}
                    ErrorKind::Protocol | ErrorKind::Unsupported => {
                        assert!(FIELDS.iter().any(|field| shown.contains(field)), "{shown}");
                    }
                    other => panic!("{other:?}: {shown}"),
                }
            }
        }
    }
    let queue: Vec<_> = (0..3).map(|at| lines.get(at).copied()).collect();
    if let Err(error) = fuzzing::stored_queue(&queue) {
        let shown = error.to_string();
        assert!(shown.contains("queue") && shown.len() <= MAX_ERROR, "{} bytes: {shown}", shown.len());
    }
}

/// Times above the longest one are read as they are stored, and written as the longest one.
fn settled(topic: TopicSpec) -> TopicSpec {
    let retention = as_stored(topic.retention);
    let dead = topic.dead_letter_retention;
    let mut again =
        dead.max_age().map_or(DeadLetterRetention::KEEP, |age| DeadLetterRetention::age(cut(age)));
    if let Some(length) = dead.max_length() {
        again = again.and_length(length);
    }
    topic.with_retention(retention).with_dead_letter_retention(again)
}

/// A change leaves what it does not name, and a topic after it is valid; or the error names the setting.
fn changed(lines: &[&str], numbers: [u64; 5]) {
    let line = |at: usize| lines.get(at).copied().unwrap_or_default();
    let [length, bound, ms, ..] = numbers;
    let time = Duration::from_millis(ms);
    let retentions = [
        parse::retention(line(0)).ok(),
        Some(Retention::Length(length)),
        Some(Retention::Age(time)),
        Some(Retention::ConsumedAfter(time)),
        None,
    ];
    let of_dead = [
        parse::dead_letter_retention(line(1)).ok(),
        Some(DeadLetterRetention::length(length).and_age(time)),
        None,
    ];
    let before = [topic(), topic().with_max_length(bound.max(1))];
    for (retention, dead_letter_retention) in
        retentions.iter().flat_map(|one| of_dead.iter().map(move |other| (*one, *other)))
    {
        let mut change = TopicChange::new();
        (change.retention, change.dead_letter_retention) = (retention, dead_letter_retention);
        for max_length in [None, Some(None), Some(Some(bound))] {
            change.max_length = max_length;
            before.iter().for_each(|before| applied(before, &change));
        }
    }
}

fn applied(before: &TopicSpec, change: &TopicChange) {
    match change.of(before.clone()) {
        Ok(after) => {
            assert!(after.check().is_ok());
            assert_eq!((&after.name, after.partitions), (&before.name, before.partitions));
            assert_eq!(after.retention, change.retention.unwrap_or(before.retention));
            assert_eq!(after.max_length, change.max_length.unwrap_or(before.max_length));
            let dead = change.dead_letter_retention.unwrap_or(before.dead_letter_retention);
            assert_eq!(after.dead_letter_retention, dead);
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(!error.problems().is_empty());
            for problem in error.problems() {
                assert!(["retention", "max_length"].iter().any(|field| problem.contains(field)), "{problem}");
            }
        }
    }
}

/// A delay lies within the computed one, and all delays of a message within the longest time that the policy states.
fn retried(numbers: [u64; 5]) {
    let [base, longest, entropy, attempt, attempts] = numbers;
    let (attempt, attempts) = (attempt as u32, attempts as u32);
    let time = |number: u64| match number >> 62 {
        0 => Duration::from_nanos(number),
        1 => Duration::from_millis(number),
        2 => Duration::from_secs(number),
        _ => Duration::MAX.saturating_sub(Duration::from_nanos(!number)),
    };
    let policy = Exponential::from(time(base)).up_to(time(longest)).attempts(attempts);
    let computed = policy.no_jitter().delay(attempt, entropy);
    assert!(computed <= time(longest), "{policy:?}");
    assert!(policy.full_jitter().delay(attempt, entropy) <= computed, "{policy:?}");
    let equal = policy.equal_jitter().delay(attempt, entropy);
    // Half of it, as precise as a float is.
    assert!(equal <= computed && equal >= (computed / 2).mul_f64(0.999_999), "{policy:?}: {equal:?}");
    assert_eq!(policy.check().is_err(), attempts == 0);
    let stated = policy.longest().expect("it is known");
    let error = std::io::Error::other("no");
    let decide =
        |attempt| policy.no_jitter().decide(&Failure::new(attempt, FailureKind::Error, &error, entropy));
    let mut sum = Duration::ZERO;
    for attempt in 1..attempts.min(40) {
        match decide(attempt) {
            Decision::RetryAfter(delay) => sum = sum.saturating_add(delay),
            Decision::GiveUp => panic!("{policy:?} gives up after {attempt}"),
        }
    }
    assert!(sum <= stated, "{policy:?}: {sum:?}, stated {stated:?}");
    assert_eq!(decide(attempts), Decision::GiveUp);
}
