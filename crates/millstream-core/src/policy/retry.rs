//! Retry policies: whether and when a failed message is tried again.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::envelope::Envelope;

/// Kind of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The handler returned an error.
    Error,
    /// The handler panicked.
    Panic,
    /// The handler exceeded its time limit.
    Timeout,
}

/// Failed attempt, as a policy sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Failure<'a> {
    /// Number of the attempt that failed, from 1.
    pub attempt: u32,
    /// Kind of the failure.
    pub kind: FailureKind,
    /// Error of the attempt. `downcast_ref` returns the handler's own type.
    pub error: &'a (dyn StdError + 'static),
    /// Time since the first attempt failed, by the server's clock; zero if this is the first failure.
    ///
    /// Where a failed message waits in its place, it is counted up to now. Elsewhere it is counted up to the due time of
    /// this attempt, plus the time since the message was received: the time that it waited to be read is then missing.
    pub elapsed: Duration,
    /// Delay that the handler asked for, if it did and the delay is known.
    pub wish: Option<Duration>,
    /// The message as it is stored: key, headers and payload, before layers and codec. `None` for policies that
    /// [do not need it](RetryPolicy::needs_message).
    pub message: Option<&'a Envelope>,
    /// Random number: the only source of jitter, so that a policy stays a pure function.
    pub entropy: u64,
}

impl<'a> Failure<'a> {
    /// Creates the failure of attempt `attempt`, as the first failure of its message.
    #[must_use]
    pub fn new(attempt: u32, kind: FailureKind, error: &'a (dyn StdError + 'static), entropy: u64) -> Self {
        Self { attempt, kind, error, elapsed: Duration::ZERO, wish: None, message: None, entropy }
    }

    /// Returns the same failure, with the first one this long ago.
    #[must_use]
    pub fn since(self, elapsed: Duration) -> Self {
        Self { elapsed, ..self }
    }

    /// Returns the same failure, with the delay that the handler asked for.
    #[must_use]
    pub fn wishing(self, wish: Option<Duration>) -> Self {
        Self { wish, ..self }
    }

    /// Returns the same failure, of this message.
    #[must_use]
    pub fn of(self, message: Option<&'a Envelope>) -> Self {
        Self { message, ..self }
    }
}

/// Decision about a message that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Retry, not before this time has passed.
    RetryAfter(Duration),
    /// Give the message up: it becomes a dead letter.
    GiveUp,
}

/// Decides whether and when a failed message is tried again.
///
/// Implement it for custom rules. An implementation must not read a clock or keep state.
pub trait RetryPolicy: fmt::Debug + Send + Sync {
    /// Returns the decision about `failure`.
    fn decide(&self, failure: &Failure<'_>) -> Decision;

    /// Checks the settings of the policy. It is called once, when a consumer or worker starts. Default: `Ok`.
    ///
    /// # Errors
    /// A description of the problem, as a text for people.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the longest time from the first failure of a message to its last attempt, as far as this policy decides: without
    /// the time that handlers take, that messages wait to be read, and that handlers ask for. `None` if there is no limit, or
    /// if it is not known. Default: `None`.
    ///
    /// What has to be remembered for as long as a message can come back is checked against it.
    fn longest(&self) -> Option<Duration> {
        None
    }

    /// Whether [`Failure::message`] is needed. Then each message is kept until its handler has ended, which costs a little for
    /// each. Default: false.
    fn needs_message(&self) -> bool {
        false
    }
}

fn some(attempts: u32) -> Result<(), String> {
    if attempts > 0 { Ok(()) } else { Err("attempts is 0, at least 1 is made".into()) }
}

/// Random part of a delay, so that many messages that failed together do not come back together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jitter {
    /// No jitter: the delay as computed.
    None,
    /// Between half of the computed delay and all of it.
    Equal,
    /// Between zero and the computed delay. The default: it spreads best ("Exponential Backoff And Jitter", AWS
    /// Architecture Blog, 2015).
    #[default]
    Full,
}

impl Jitter {
    fn apply(self, delay: Duration, entropy: u64) -> Duration {
        // 53 bits make every f64 in [0, 1) of that precision equally likely.
        let random = (entropy >> 11) as f64 / (1u64 << 53) as f64;
        let factor = match self {
            Self::None => return delay,
            Self::Equal => random.mul_add(0.5, 0.5),
            Self::Full => random,
        };
        // Rounding must not make a delay longer than the computed one, nor than the longest duration.
        Duration::try_from_secs_f64(delay.as_secs_f64() * factor).unwrap_or(delay).min(delay)
    }
}

/// Exponential back-off: delays of `base`, 2 × `base`, 4 × `base`, … up to a maximum.
///
/// ```
/// use std::time::Duration;
/// use millstream_core::policy::Exponential;
///
/// let policy = Exponential::from(Duration::from_millis(200))
///     .up_to(Duration::from_secs(60))
///     .full_jitter()
///     .attempts(8);
/// # let _ = policy;
/// ```
///
/// The default is 500 ms up to 60 s with full jitter and 10 attempts: three minutes in total at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exponential {
    base: Duration,
    longest: Duration,
    jitter: Jitter,
    attempts: u32,
}

impl Exponential {
    /// Creates a policy whose first delay is `base`.
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "`Exponential::from(ms(200))` reads as it is meant")]
    pub fn from(base: Duration) -> Self {
        Self { base, ..Self::default() }
    }

    /// Sets the longest delay before jitter. Default: 60 s.
    #[must_use]
    pub fn up_to(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// Draws each delay between zero and the computed one. The default.
    #[must_use]
    pub fn full_jitter(self) -> Self {
        Self { jitter: Jitter::Full, ..self }
    }

    /// Draws each delay between half of the computed one and all of it.
    #[must_use]
    pub fn equal_jitter(self) -> Self {
        Self { jitter: Jitter::Equal, ..self }
    }

    /// Uses the computed delays without jitter.
    #[must_use]
    pub fn no_jitter(self) -> Self {
        Self { jitter: Jitter::None, ..self }
    }

    /// Sets the total number of attempts, the first included: at least 1, which means no retry. Default: 10.
    #[must_use]
    pub fn attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Returns the delay after a failed attempt.
    #[must_use]
    pub fn delay(&self, attempt: u32, entropy: u64) -> Duration {
        let factor = 1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let delay = self.base.saturating_mul(factor).min(self.longest);
        self.jitter.apply(delay, entropy)
    }
}

impl Default for Exponential {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(500),
            longest: Duration::from_secs(60),
            jitter: Jitter::Full,
            attempts: 10,
        }
    }
}

impl RetryPolicy for Exponential {
    fn decide(&self, failure: &Failure<'_>) -> Decision {
        if failure.attempt >= self.attempts {
            return Decision::GiveUp;
        }
        Decision::RetryAfter(self.delay(failure.attempt, failure.entropy))
    }

    fn check(&self) -> Result<(), String> {
        some(self.attempts)
    }

    fn longest(&self) -> Option<Duration> {
        let whole = Self { jitter: Jitter::None, ..*self };
        let retries = self.attempts.saturating_sub(1);
        // From the 33rd on, the delays are all the same.
        let growing = retries.min(32);
        let sum = (1..=growing)
            .map(|attempt| whole.delay(attempt, 0))
            .fold(Duration::ZERO, Duration::saturating_add);
        Some(sum.saturating_add(whole.delay(33, 0).saturating_mul(retries - growing)))
    }
}

/// The same delay every time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    delay: Duration,
    attempts: u32,
}

impl Fixed {
    /// Creates a policy with `delay` between attempts and 10 attempts in total.
    #[must_use]
    pub fn new(delay: Duration) -> Self {
        Self { delay, attempts: 10 }
    }

    /// Sets the total number of attempts, the first included: at least 1, which means no retry. Default: 10.
    #[must_use]
    pub fn attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }
}

impl RetryPolicy for Fixed {
    fn decide(&self, failure: &Failure<'_>) -> Decision {
        if failure.attempt >= self.attempts { Decision::GiveUp } else { Decision::RetryAfter(self.delay) }
    }

    fn check(&self) -> Result<(), String> {
        some(self.attempts)
    }

    fn longest(&self) -> Option<Duration> {
        Some(self.delay.saturating_mul(self.attempts.saturating_sub(1)))
    }
}

/// List of delays, used one after the other; after the last one the message is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delays(Vec<Duration>);

impl Delays {
    /// Creates a policy with as many retries as there are delays.
    #[must_use]
    pub fn new(delays: impl IntoIterator<Item = Duration>) -> Self {
        Self(delays.into_iter().collect())
    }
}

impl RetryPolicy for Delays {
    fn decide(&self, failure: &Failure<'_>) -> Decision {
        let retry = failure.attempt.checked_sub(1).and_then(|index| self.0.get(index as usize));
        retry.map_or(Decision::GiveUp, |delay| Decision::RetryAfter(*delay))
    }

    fn longest(&self) -> Option<Duration> {
        Some(self.0.iter().fold(Duration::ZERO, |sum, delay| sum.saturating_add(*delay)))
    }
}

/// No retry: the first failure makes the message a dead letter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Never;

impl RetryPolicy for Never {
    fn decide(&self, _: &Failure<'_>) -> Decision {
        Decision::GiveUp
    }

    fn longest(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

/// Limit of total time around another policy. It gives up when the time since the first failure, plus the delay to the
/// next attempt, would exceed the total. When the inner policy gives up earlier, so does this one.
///
/// ```
/// use std::time::Duration;
/// use millstream_core::policy::{Exponential, Within};
///
/// let policy = Within::new(Duration::from_secs(3_600), Exponential::default().attempts(u32::MAX));
/// # let _ = policy;
/// ```
///
/// The first attempt is always made, and so is a snoozed one: the time counts from the first failure. For the precision
/// of that time see [`Failure::elapsed`].
#[derive(Clone, Debug)]
pub struct Within {
    total: Duration,
    policy: Arc<dyn RetryPolicy>,
}

impl Within {
    /// Limits `policy` to `total`.
    #[must_use]
    pub fn new(total: Duration, policy: impl RetryPolicy + 'static) -> Self {
        Self { total, policy: Arc::new(policy) }
    }
}

impl RetryPolicy for Within {
    fn decide(&self, failure: &Failure<'_>) -> Decision {
        match self.policy.decide(failure) {
            Decision::RetryAfter(delay)
                if failure.elapsed.saturating_add(failure.wish.unwrap_or(delay)) > self.total =>
            {
                Decision::GiveUp
            }
            decision => decision,
        }
    }

    fn check(&self) -> Result<(), String> {
        self.policy.check()
    }

    fn longest(&self) -> Option<Duration> {
        Some(self.policy.longest().map_or(self.total, |inner| inner.min(self.total)))
    }

    fn needs_message(&self) -> bool {
        self.policy.needs_message()
    }
}

type Test = dyn Fn(&Failure<'_>) -> bool + Send + Sync;

/// Choice of a policy by error. The first rule that matches decides; without a match, the policy of
/// [`otherwise`](Self::otherwise) does.
///
/// ```
/// use std::time::Duration;
/// use millstream_core::policy::{ByError, Exponential, Fixed, Never};
///
/// let policy = ByError::otherwise(Exponential::default())
///     .on::<std::num::ParseIntError>(Never)
///     .when(|failure| failure.error.to_string().contains("429"), Fixed::new(Duration::from_secs(30)));
/// # let _ = policy;
/// ```
#[derive(Clone)]
pub struct ByError {
    rules: Vec<(Arc<Test>, Arc<dyn RetryPolicy>)>,
    otherwise: Arc<dyn RetryPolicy>,
    with_message: bool,
}

impl ByError {
    /// Creates a choice with `policy` for every error without a rule.
    #[must_use]
    pub fn otherwise(policy: impl RetryPolicy + 'static) -> Self {
        Self { rules: Vec::new(), otherwise: Arc::new(policy), with_message: false }
    }

    /// Adds `policy` for errors of type `E`, at any depth of the chain of sources.
    #[must_use]
    pub fn on<E: StdError + 'static>(self, policy: impl RetryPolicy + 'static) -> Self {
        self.when(|failure| chain_has::<E>(failure.error), policy)
    }

    /// Adds `policy` for failures for which `test` returns true.
    #[must_use]
    pub fn when(
        mut self,
        test: impl Fn(&Failure<'_>) -> bool + Send + Sync + 'static,
        policy: impl RetryPolicy + 'static,
    ) -> Self {
        self.rules.push((Arc::new(test), Arc::new(policy)));
        self
    }

    /// Lets tests see [`Failure::message`], for rules by key or header.
    #[must_use]
    pub fn with_message(self) -> Self {
        Self { with_message: true, ..self }
    }
}

fn chain_has<E: StdError + 'static>(error: &(dyn StdError + 'static)) -> bool {
    error.is::<E>() || error.source().is_some_and(chain_has::<E>)
}

impl fmt::Debug for ByError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByError")
            .field("rules", &self.rules.iter().map(|(_, policy)| policy).collect::<Vec<_>>())
            .field("otherwise", &self.otherwise)
            .finish()
    }
}

impl RetryPolicy for ByError {
    fn decide(&self, failure: &Failure<'_>) -> Decision {
        let rule = self.rules.iter().find(|(test, _)| test(failure));
        rule.map_or(&self.otherwise, |(_, policy)| policy).decide(failure)
    }

    fn check(&self) -> Result<(), String> {
        let mut all = self.rules.iter().map(|(_, policy)| policy).chain([&self.otherwise]);
        all.try_for_each(|policy| policy.check())
    }

    fn longest(&self) -> Option<Duration> {
        let mut all = self.rules.iter().map(|(_, policy)| policy).chain([&self.otherwise]);
        // A message can fail by one rule after the other, but each attempt counts for all of them.
        all.try_fold(Duration::ZERO, |longest, policy| Some(longest.max(policy.longest()?)))
    }

    fn needs_message(&self) -> bool {
        let mut all = self.rules.iter().map(|(_, policy)| policy).chain([&self.otherwise]);
        self.with_message || all.any(|policy| policy.needs_message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn decide(policy: &dyn RetryPolicy, attempt: u32, error: &(dyn StdError + 'static)) -> Decision {
        policy.decide(&Failure::new(attempt, FailureKind::Error, error, 0))
    }

    #[test]
    fn a_policy_that_would_not_even_try_once_is_refused_wherever_it_stands() {
        let none = Fixed::new(MS(1)).attempts(0);
        let refused: [&dyn RetryPolicy; 5] = [
            &none,
            &Exponential::default().attempts(0),
            &Within::new(MS(1), none),
            &ByError::otherwise(none),
            &ByError::otherwise(Never).when(|_| true, none),
        ];
        for policy in refused {
            assert!(policy.check().expect_err("no attempt").contains("attempts is 0"), "{policy:?}");
        }
        let fine: [&dyn RetryPolicy; 4] = [
            &Fixed::new(MS(1)).attempts(1),
            &Never,
            &Delays::new([]),
            &ByError::otherwise(Exponential::default()),
        ];
        assert!(fine.iter().all(|policy| policy.check().is_ok()));
    }

    #[test]
    fn no_delay_is_too_long_for_its_jitter() {
        for jitter in [Jitter::None, Jitter::Equal, Jitter::Full] {
            for entropy in [0, 1, u64::MAX / 2, u64::MAX] {
                assert!(jitter.apply(Duration::MAX, entropy) <= Duration::MAX, "{jitter:?}");
            }
            assert_eq!(jitter.apply(Duration::ZERO, u64::MAX), Duration::ZERO);
        }
        assert_eq!(Jitter::Equal.apply(Duration::MAX, u64::MAX), Duration::MAX, "rounded up");
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let policy = Exponential::from(MS(100)).up_to(MS(1000)).no_jitter().attempts(7);
        let error = std::io::Error::other("x");
        let delays: Vec<_> = (1..=7).map(|attempt| decide(&policy, attempt, &error)).collect();
        let after = |ms| Decision::RetryAfter(MS(ms));
        let want = [after(100), after(200), after(400), after(800), after(1000), after(1000)];
        assert_eq!(delays[..6], want);
        assert_eq!(delays[6], Decision::GiveUp);
    }

    #[test]
    fn a_list_ends_and_never_is_never() {
        let error = std::io::Error::other("x");
        let policy = Delays::new([MS(1), MS(5)]);
        assert_eq!(decide(&policy, 1, &error), Decision::RetryAfter(MS(1)));
        assert_eq!(decide(&policy, 2, &error), Decision::RetryAfter(MS(5)));
        assert_eq!(decide(&policy, 3, &error), Decision::GiveUp);
        assert_eq!(decide(&Never, 1, &error), Decision::GiveUp);
        assert_eq!(decide(&Fixed::new(MS(3)).attempts(2), 1, &error), Decision::RetryAfter(MS(3)));
        assert_eq!(decide(&Fixed::new(MS(3)).attempts(2), 2, &error), Decision::GiveUp);
    }

    #[test]
    fn a_budget_counts_from_the_first_failure_to_the_next_attempt() {
        let error = std::io::Error::other("x");
        let after = |elapsed, wish: Option<Duration>| {
            let failure = Failure::new(2, FailureKind::Error, &error, 0).since(MS(elapsed)).wishing(wish);
            Within::new(MS(100), Fixed::new(MS(30)).attempts(3)).decide(&failure)
        };
        assert_eq!(after(70, None), Decision::RetryAfter(MS(30)));
        assert_eq!(after(71, None), Decision::GiveUp);
        assert_eq!(after(70, Some(MS(31))), Decision::GiveUp, "what the handler asks for counts");
        assert_eq!(after(100, Some(MS(0))), Decision::RetryAfter(MS(30)));
        assert_eq!(after(u64::MAX, Some(Duration::MAX)), Decision::GiveUp);
        let last = Failure::new(3, FailureKind::Error, &error, 0);
        assert_eq!(Within::new(MS(100), Fixed::new(MS(30)).attempts(3)).decide(&last), Decision::GiveUp);
    }

    #[test]
    fn the_longest_time_is_the_sum_of_all_delays_or_the_budget() {
        let longest = |policy: &dyn RetryPolicy| policy.longest();
        assert_eq!(longest(&Never), Some(MS(0)));
        assert_eq!(longest(&Fixed::new(MS(7)).attempts(4)), Some(MS(21)));
        assert_eq!(longest(&Delays::new([MS(1), MS(5)])), Some(MS(6)));
        let policy = Exponential::from(MS(100)).up_to(MS(1000)).attempts(7);
        assert_eq!(longest(&policy), Some(MS(100 + 200 + 400 + 800 + 1000 + 1000)), "whatever the jitter");
        assert_eq!(longest(&policy.attempts(1)), Some(MS(0)));
        assert_eq!(longest(&policy.attempts(107)), Some(MS(1500 + 102 * 1000)));
        let for_ever = Exponential::default().attempts(u32::MAX);
        assert!(longest(&for_ever) > Some(Duration::from_secs(1 << 37)));
        assert_eq!(longest(&Within::new(MS(100), for_ever)), Some(MS(100)));
        assert_eq!(longest(&Within::new(MS(100), Fixed::new(MS(1)).attempts(3))), Some(MS(2)));
        let by_error = ByError::otherwise(Never).when(|_| true, Fixed::new(MS(5)).attempts(2));
        assert_eq!(longest(&by_error), Some(MS(5)));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = ByError::otherwise(Fixed::new(MS(1)))
            .on::<std::num::ParseIntError>(Never)
            .when(|failure| failure.kind == FailureKind::Panic, Fixed::new(MS(9)));
        let inner = "x".parse::<u8>().expect_err("no number");
        assert_eq!(decide(&policy, 1, &Outer(inner)), Decision::GiveUp, "found beneath the outer error");
        let other = std::io::Error::other("x");
        assert_eq!(decide(&policy, 1, &other), Decision::RetryAfter(MS(1)));
        let panic = Failure::new(1, FailureKind::Panic, &other, 0);
        assert_eq!(policy.decide(&panic), Decision::RetryAfter(MS(9)));
    }

    proptest! {
        #[test]
        fn a_delay_keeps_its_bounds(base in 0u64..1 << 40, longest in 0u64..1 << 40, attempt: u32, entropy: u64) {
            let policy = Exponential::from(MS(base)).up_to(MS(longest));
            let whole = policy.no_jitter().delay(attempt, entropy);
            prop_assert!(whole <= MS(longest));
            prop_assert!(policy.full_jitter().delay(attempt, entropy) <= whole);
            let equal = policy.equal_jitter().delay(attempt, entropy);
            prop_assert!(equal <= whole && equal + MS(1) >= whole / 2);
            prop_assert_eq!(policy.delay(attempt, entropy), policy.delay(attempt, entropy), "pure");
        }
    }
}
