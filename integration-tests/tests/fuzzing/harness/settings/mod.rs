//! Settings as numbers. Those of consumers, producers, workers, locks and calls are refused, with the names of the settings,
//! or they run: on the backend in memory, under a paused clock.
//!
//! Input: what is set up, then a byte or more for each setting, in the order in which they are read here.

mod consumers;
mod others;
mod producers;

use std::cell::Cell;
use std::panic;
use std::sync::Once;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind};
use millstream_core::{Backend, Outcome, Timestamp, Topic};
use millstream_memory::MemoryBackend;

use super::Input;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// Time within which a handler gets its messages, whatever the settings: the longest linger, and room for more.
const SOON: Duration = Duration::from_secs(60);
/// The messages that are sent.
const MESSAGES: u64 = 3;
const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(2);

pub(crate) fn check(input: &[u8]) {
    count_panics();
    let before = PANICS.get();
    // The same input does the same.
    fastrand::seed(7);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut input = Input(input);
        match input.byte() % 8 {
            0..=2 => consumers::consumer(&mut input).await,
            3..=4 => producers::producer(&mut input).await,
            5 => others::worker(&mut input).await,
            6 => consumers::dead_letters(&mut input).await,
            _ => others::locks_and_calls(&mut input).await,
        }
    });
    assert_eq!(PANICS.get(), before, "a task panicked");
}

thread_local! {
    /// Panics on this thread, also those of tasks, which end nothing else.
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
}

/// A duration: one with a meaning, or any.
fn time(input: &mut Input<'_>) -> Duration {
    match input.byte() {
        0 => Duration::ZERO,
        1 => Duration::from_nanos(1),
        2 => Duration::from_millis(1),
        3 => Duration::from_millis(10),
        4 => Duration::from_millis(99),
        5 => Duration::from_millis(100),
        6 => SECOND,
        7 => 10 * SECOND,
        8 => SOON,
        9 => DAY,
        10 => DAY + Duration::from_nanos(1),
        11 => 30 * DAY,
        12 => 365 * DAY,
        13 => Duration::from_millis(1 << 53),
        14 => Duration::from_millis(u64::MAX),
        15 => Duration::MAX,
        16 => Duration::MAX / 2,
        17..40 => Duration::from_nanos(input.number()),
        40..60 => Duration::from_secs(input.number()),
        seconds => Duration::from_secs(u64::from(seconds)),
    }
}

fn count(input: &mut Input<'_>) -> usize {
    match input.byte() {
        few @ 0..128 => usize::from(few),
        128..140 => usize::MAX,
        140..160 => u32::MAX as usize,
        160..200 => 10_000,
        _ => input.number() as usize,
    }
}

fn small(input: &mut Input<'_>) -> u32 {
    u32::try_from(count(input)).unwrap_or(u32::MAX)
}

/// An error about settings: each problem names one of them.
fn refused(error: &Error, settings: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(!error.problems().is_empty(), "{error}");
    for problem in error.problems() {
        assert!(settings.iter().any(|name| problem.contains(name)), "{problem:?} names no setting");
        assert!(problem.len() < 1_024, "{} bytes", problem.len());
    }
}

/// What a handler returns the `number`th time. After many times it accepts: it may have asked for no pause and all attempts
/// that there are, and the clock stands still for as long as there is something to do.
fn outcome(of: u8, after: Duration, number: u64) -> Outcome {
    match of % 8 {
        _ if number > 1_000 => Outcome::Ack,
        0..=2 => Outcome::Ack,
        3 => Outcome::retry("no"),
        4 => Outcome::RetryAfter(after, "no".into()),
        5 => Outcome::RetryAt(Timestamp::from_millis(after.as_millis() as u64), "no".into()),
        6 => Outcome::Snooze(after),
        _ => Outcome::DeadLetter("no".into()),
    }
}

fn backend() -> Backend {
    Backend::from(MemoryBackend::at(Duration::from_secs(1_700_000_000)))
}
