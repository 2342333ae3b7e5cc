//! Panics of user code: the one place where they are caught, described and counted.
//!
//! Policies, codecs, partitioners, assignors, observers and errors are user code. A panic in it must not end a loop, lose
//! a message or repeat the same failure for ever. So each is called through this module, which turns a panic into a
//! value, and the caller uses the fallback that the [kind of code](UserCode) documents. This has no effect in a program
//! that is built with `panic = "abort"`.

use std::error::Error as StdError;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::codec::Codec;
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::event::{Event, Observer};
use crate::partition::Partition;
use crate::partitioner::Partitioner;
use crate::policy::{DeadLetterPolicy, Decision, Exponential, Failure, GivenUp, RetryPolicy, Verdict};
use crate::span::Tracer;

pub use crate::user_code::{Panicked, UserCode, catch, text_of};

/// Drops a value that may contain a user's error, whose `Drop` may panic.
pub fn discard<T>(value: T, observer: &dyn Observer) {
    if let Err(panicked) = catch(UserCode::ErrorText, || drop(value)) {
        observer.observe(&panicked.event());
    }
}

/// Decodes the value of a payload.
///
/// # Errors
/// The error of the codec, or its panic as a [`Panicked`].
pub fn decode<T>(codec: &dyn Codec<T>, payload: &Bytes) -> Result<T, BoxError> {
    catch(UserCode::Codec, || codec.decode(payload)).unwrap_or_else(|panicked| Err(panicked.into()))
}

/// Encodes a value.
///
/// # Errors
/// [`ErrorKind::Encode`], with the codec's error or its panic as the source.
pub fn encode<T>(codec: &dyn Codec<T>, value: &T) -> Result<Bytes> {
    let encoded = catch(UserCode::Codec, || {
        codec.encode(value).map_err(|source| {
            let (name, (text, _)) = (codec.name(), error_text(&*source));
            Error::new(ErrorKind::Encode, format!("cannot encode as {name}: {text}")).with_source(source)
        })
    });
    encoded.unwrap_or_else(|panicked| {
        let message = format!("cannot encode: {panicked}");
        Err(Error::new(ErrorKind::Encode, message).with_source(panicked))
    })
}

/// Chooses the partition of a message, of `count`. The observer receives a panic of the partitioner.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] if the partitioner panics, or chooses a partition that does not exist.
pub fn choose_partition(
    partitioner: &dyn Partitioner,
    key: Option<&[u8]>,
    count: NonZeroU32,
    observer: &dyn Observer,
) -> Result<Partition> {
    let chosen = catch(UserCode::Partitioner, || partitioner.partition(key, count));
    let partition = chosen.map_err(|panicked| {
        observer.observe(&panicked.event());
        Error::new(ErrorKind::InvalidConfig, panicked.to_string()).with_source(panicked)
    })?;
    if partition.0 < count.get() {
        return Ok(partition);
    }
    let why = format!("the partitioner chose partition {partition} of a topic with {count}");
    Err(Error::new(ErrorKind::InvalidConfig, why))
}

/// Returns the text of an error and its causes in one line. If that panics, it returns a fixed text and the panic.
#[must_use]
pub fn error_text(error: &(dyn StdError + 'static)) -> (String, Option<Panicked>) {
    let text = catch(UserCode::ErrorText, || {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            let cause = error.to_string();
            // Many errors print their source themselves.
            if !text.ends_with(&cause) {
                text = format!("{text}: {cause}");
            }
            source = error.source();
        }
        text
    });
    match text {
        Ok(text) => (text, None),
        Err(panicked) => (format!("an error without a text: {panicked}"), Some(panicked)),
    }
}

/// Policies of a consumer or worker, with their fallbacks: a panic of one never reaches the caller.
#[derive(Clone, Copy)]
pub struct Policies<'a> {
    /// Decides whether and when a failed message is retried.
    pub retry: &'a dyn RetryPolicy,
    /// Decides whether a message that is given up is kept.
    pub dead_letters: &'a dyn DeadLetterPolicy,
    /// Receives the panics as events.
    pub observer: &'a dyn Observer,
}

impl Policies<'_> {
    /// Returns whether a policy needs the messages that it decides about. One that panics gets them.
    #[must_use]
    pub fn need_message(&self) -> bool {
        let needs = catch(UserCode::RetryPolicy, || self.retry.needs_message()).and_then(|retry| {
            Ok(retry || catch(UserCode::DeadLetterPolicy, || self.dead_letters.needs_message())?)
        });
        needs.unwrap_or_else(|panicked| {
            self.observer.observe(&panicked.event());
            true
        })
    }

    /// Returns the decision about `failure`, whose text is `error`. If the policy panics, the default one decides, so
    /// that the number of attempts stays bounded, and the panic is added to the text.
    pub fn decide(&self, failure: &Failure<'_>, error: &mut String) -> Decision {
        catch(UserCode::RetryPolicy, || self.retry.decide(failure)).unwrap_or_else(|panicked| {
            self.observer.observe(&panicked.event());
            *error = format!("{error} ({panicked})");
            Exponential::default().decide(failure)
        })
    }

    /// Returns whether a message is kept. It is kept if the policy panics.
    #[must_use]
    pub fn judge(&self, given_up: &GivenUp<'_>) -> Verdict {
        let judged = catch(UserCode::DeadLetterPolicy, || self.dead_letters.judge(given_up));
        judged.unwrap_or_else(|panicked| {
            self.observer.observe(&panicked.event());
            Verdict::Keep
        })
    }

    /// Returns the text of an error and its causes in one line. Emits an event if that panicked, and if the error is a
    /// panic.
    #[must_use]
    pub fn text_of(&self, error: &BoxError) -> String {
        let (text, panicked) = error_text(&**error);
        for panicked in panicked.iter().chain(Panicked::within(&**error)) {
            self.observer.observe(&panicked.event());
        }
        text
    }
}

impl fmt::Debug for Policies<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies").finish_non_exhaustive()
    }
}

/// Observer whose panics are caught, and that logs all panics of user code.
///
/// Each kind of code is logged at its 1st, 2nd, 4th, 8th, … panic with their number: code that panics on every message
/// does not flood the log. [`Event::Panicked`] is passed on each time.
pub struct Careful {
    observer: Arc<dyn Observer>,
    panics: [AtomicU64; UserCode::ALL.len()],
}

impl Careful {
    /// Wraps an observer.
    #[must_use]
    pub fn over(observer: Arc<dyn Observer>) -> Arc<dyn Observer> {
        Arc::new(Self { observer, panics: Default::default() })
    }

    fn log(&self, code: UserCode, text: &str) {
        let nth = self.panics[code as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if nth.is_power_of_two() {
            tracing::error!(code = code.as_str(), panic = text, panics = nth, "user code panicked");
        }
    }
}

impl Observer for Careful {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Panicked { code, text } = *event {
            self.log(code, text);
        }
        if let Err(Panicked { code, text }) = catch(UserCode::Observer, || self.observer.observe(event)) {
            self.log(code, &text);
        }
    }

    fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        self.observer.tracer()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::event::Ignore;
    use crate::message::dead_letter::Reason;
    use crate::policy::{FailureKind, Keep, Never};

    #[derive(Debug)]
    struct Chooses(u32);

    impl Partitioner for Chooses {
        fn partition(&self, key: Option<&[u8]>, _: NonZeroU32) -> Partition {
            Partition(key.map_or(self.0, |_| panic!("no key is expected")))
        }
    }

    #[test]
    fn a_partition_that_does_not_exist_is_an_error() {
        let choose = |chooses, key| {
            let count = NonZeroU32::new(4).expect("above 0");
            choose_partition(&Chooses(chooses), key, count, &Ignore).map_err(|error| error.kind())
        };
        assert_eq!(choose(3, None), Ok(Partition(3)));
        assert_eq!(choose(4, None), Err(ErrorKind::InvalidConfig));
        assert_eq!(choose(0, Some(b"k")), Err(ErrorKind::InvalidConfig));
    }

    #[derive(Debug)]
    struct Broken;

    impl fmt::Display for Broken {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("no text")
        }
    }

    impl StdError for Broken {}

    impl RetryPolicy for Broken {
        fn decide(&self, _: &Failure<'_>) -> Decision {
            panic!("no decision")
        }
    }

    impl DeadLetterPolicy for Broken {
        fn judge(&self, _: &GivenUp<'_>) -> Verdict {
            panic!("no verdict")
        }
    }

    #[derive(Default)]
    struct Counts([AtomicU64; UserCode::ALL.len()]);

    impl Observer for Counts {
        fn observe(&self, event: &Event<'_>) {
            if let Event::Panicked { code, .. } = *event {
                self.0[code as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    impl Counts {
        fn of(&self, code: UserCode) -> u64 {
            self.0[code as usize].load(Ordering::Relaxed)
        }
    }

    #[test]
    fn all_kinds_are_in_the_order_of_their_counters() {
        for (index, code) in UserCode::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, index, "{code:?}");
        }
    }

    #[test]
    fn policies_that_panic_are_replaced_and_told() {
        let counts = Counts::default();
        let policies = Policies { retry: &Broken, dead_letters: &Broken, observer: &counts };
        let error: BoxError = Box::new(Broken);
        let mut text = policies.text_of(&error);
        assert_eq!(text, "an error without a text: the error's text panicked: no text");
        let failure = Failure::new(10, FailureKind::Error, &*error, 0);
        assert_eq!(policies.decide(&failure, &mut text), Decision::GiveUp, "the default's last attempt");
        assert!(text.ends_with("(the retry policy panicked: no decision)"), "{text}");
        assert_eq!(policies.judge(&GivenUp::new(&Reason::Exhausted, 10, &text)), Verdict::Keep);
        for code in [UserCode::ErrorText, UserCode::RetryPolicy, UserCode::DeadLetterPolicy] {
            assert_eq!(counts.of(code), 1, "{code:?}");
        }
        let policies = Policies { retry: &Never, dead_letters: &Keep, observer: &counts };
        let decoded = decode::<u64>(&Nothing, &Bytes::new()).expect_err("it panics");
        assert_eq!(policies.text_of(&decoded), "the codec panicked: nothing is read");
        assert_eq!((counts.of(UserCode::Codec), counts.of(UserCode::ErrorText)), (1, 1));
    }

    struct Nothing;

    impl Codec<u64> for Nothing {
        fn name(&self) -> &'static str {
            panic!("no name")
        }

        fn encode(&self, value: &u64) -> Result<Bytes, BoxError> {
            if *value == 0 { panic!("nothing is written") } else { Err(Box::new(Broken)) }
        }

        fn decode(&self, _: &Bytes) -> Result<u64, BoxError> {
            panic!("nothing is read")
        }
    }

    #[test]
    fn a_codec_that_panics_is_an_error_of_the_kind_encode() {
        for (value, why) in [(0, "nothing is written"), (1, "no name")] {
            let error = encode(&Nothing, &value).expect_err("it panics");
            assert_eq!(error.kind(), ErrorKind::Encode);
            assert!(error.to_string().ends_with(why), "{error}");
            assert!(Panicked::within(&error).is_some_and(|panicked| panicked.code == UserCode::Codec));
        }
    }

    #[test]
    fn one_observer_that_panics_keeps_no_other_from_its_events() {
        let counts = Arc::new(Counts::default());
        let broken = |_: &Event<'_>| panic!("an observer panics");
        let event = Event::Recovered { operation: "fetch", topic_partition: None };
        for pair in [
            Careful::over(Arc::new((broken, counts.clone()))),
            Careful::over(Arc::new((counts.clone(), broken))),
            Careful::over(Arc::new((counts.clone(), (broken, Ignore)))),
        ] {
            let before = counts.of(UserCode::Observer);
            pair.observe(&event);
            assert_eq!(counts.of(UserCode::Observer), before + 1);
        }
        Careful::over(Arc::new((broken, broken))).observe(&event);
    }

    #[test]
    fn a_payload_whose_drop_panics_is_leaked_and_an_error_whose_drop_panics_is_told() {
        struct Heavy;
        impl Drop for Heavy {
            fn drop(&mut self) {
                panic!("too heavy")
            }
        }
        let caught = catch(UserCode::Handler, || std::panic::panic_any(Heavy));
        assert_eq!(caught.expect_err("it panics").text, "no message");
        let counts = Counts::default();
        discard(Heavy, &counts);
        assert_eq!(counts.of(UserCode::ErrorText), 1);
    }

    #[test]
    fn the_log_has_a_line_for_powers_of_two_alone() {
        // Emitted each time, logged at 1, 2 and 4.
        let logged = Arc::new(Lines::default());
        let careful = Careful::over(Arc::new(|_: &Event<'_>| panic!("again")));
        tracing::subscriber::with_default(logged.clone(), || {
            for _ in 0..7 {
                careful.observe(&Event::Recovered { operation: "fetch", topic_partition: None });
            }
        });
        assert_eq!(logged.0.lock().expect("lock").len(), 3);

        // Panics that arrive as events are counted by their kind, whatever the observer does with them.
        let (logged, counts) = (Arc::new(Lines::default()), Arc::new(Counts::default()));
        let careful = Careful::over(counts.clone());
        tracing::subscriber::with_default(logged.clone(), || {
            for _ in 0..7 {
                careful.observe(&Event::Panicked { code: UserCode::Codec, text: "again" });
            }
            careful.observe(&Event::Panicked { code: UserCode::Assignor, text: "the first of its kind" });
        });
        assert_eq!(logged.0.lock().expect("lock").len(), 3 + 1);
        assert_eq!((counts.of(UserCode::Codec), counts.of(UserCode::Assignor)), (7, 1), "each is passed on");
    }

    /// Collects the levels of log lines.
    #[derive(Default)]
    struct Lines(Mutex<Vec<tracing::Level>>);

    impl tracing::Subscriber for Lines {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            self.0.lock().expect("lock").push(*event.metadata().level());
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }
}
