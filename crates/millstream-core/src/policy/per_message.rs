//! Retry policy of a single message: its producer writes it into a header.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::retry::{Decision, Exponential, Failure, RetryPolicy};

/// Header with the retry policy of a message, in the form of [`MessageRetry`].
pub const RETRY_HEADER: &str = "millstream-retry";

/// Retry policy of one message: the producer sets it, and consumers with a [`PerMessage`] policy follow it.
///
/// In the header it is text of three numbers: `<attempts> <delay in ms> <longest delay in ms>`.
///
/// ```
/// use std::time::Duration;
/// use millstream_core::policy::MessageRetry;
///
/// let retry = MessageRetry::new(20, Duration::from_secs(1)).up_to(Duration::from_secs(600));
/// assert_eq!(retry.to_string().parse(), Ok(retry));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRetry {
    attempts: u32,
    delay: Duration,
    longest: Duration,
}

impl MessageRetry {
    /// Creates a policy of this many attempts, the first included, with this delay between them.
    #[must_use]
    pub const fn new(attempts: u32, delay: Duration) -> Self {
        Self { attempts, delay, longest: delay }
    }

    /// Doubles the delay after each attempt, up to this one, with full jitter.
    #[must_use]
    pub const fn up_to(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    fn decide(&self, failure: &Failure<'_>) -> Decision {
        let growing = Exponential::from(self.delay).up_to(self.longest).attempts(self.attempts);
        if self.longest > self.delay { growing } else { growing.no_jitter() }.decide(failure)
    }
}

/// Writes the form of the header.
impl fmt::Display for MessageRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.attempts, self.delay.as_millis(), self.longest.as_millis())
    }
}

impl FromStr for MessageRetry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[attempts, delay, longest]) if attempts > 0 => Ok(Self {
                attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
                delay: Duration::from_millis(delay),
                longest: Duration::from_millis(longest.max(delay)),
            }),
            _ => Err(format!("{RETRY_HEADER} is not three numbers, the first of them above 0")),
        }
    }
}

/// Follows the [`MessageRetry`] that a message has in its header [`RETRY_HEADER`]; others by another policy.
///
/// A message that asks for more than [`at_most`](Self::at_most) is given up then: a producer cannot keep messages coming back
/// for ever. A header that cannot be read counts as none.
#[derive(Clone, Debug)]
pub struct PerMessage {
    otherwise: Arc<dyn RetryPolicy>,
    total: Duration,
}

impl PerMessage {
    /// Creates the policy, with another one for messages without the header.
    #[must_use]
    pub fn or(otherwise: impl RetryPolicy + 'static) -> Self {
        Self { otherwise: Arc::new(otherwise), total: Duration::from_secs(24 * 60 * 60) }
    }

    /// Sets the longest time from the first failure of a message to its last attempt, by the header. Default: 24 h.
    #[must_use]
    pub fn at_most(self, total: Duration) -> Self {
        Self { total, ..self }
    }
}

impl RetryPolicy for PerMessage {
    fn decide(&self, failure: &Failure<'_>) -> Decision {
        let header = failure.message.and_then(|message| message.headers.get(RETRY_HEADER));
        let own = header.and_then(|text| std::str::from_utf8(text).ok()?.parse::<MessageRetry>().ok());
        match own.map(|own| own.decide(failure)) {
            None => self.otherwise.decide(failure),
            Some(Decision::RetryAfter(delay))
                if failure.elapsed.saturating_add(failure.wish.unwrap_or(delay)) > self.total =>
            {
                Decision::GiveUp
            }
            Some(decision) => decision,
        }
    }

    fn check(&self) -> Result<(), String> {
        self.otherwise.check()
    }

    fn longest(&self) -> Option<Duration> {
        self.otherwise.longest().map(|other| other.max(self.total))
    }

    fn needs_message(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::Envelope;
    use crate::policy::{ByError, FailureKind, Fixed, Never, Within};

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_message_is_retried_by_its_header_and_within_the_bound() {
        let policy = PerMessage::or(Never).at_most(S(100));
        let decide = |header: Option<&str>, attempt, elapsed| {
            let error = std::io::Error::other("no");
            let message = Envelope::new("x");
            let message = match header {
                Some(text) => message.with_header(RETRY_HEADER, text.to_owned()),
                None => message,
            };
            let failure = Failure::new(attempt, FailureKind::Error, &error, u64::MAX).since(elapsed);
            policy.decide(&failure.of(Some(&message)))
        };
        let fixed = MessageRetry::new(3, S(7)).to_string();
        assert_eq!(decide(Some(&fixed), 2, S(0)), Decision::RetryAfter(S(7)));
        assert_eq!(decide(Some(&fixed), 3, S(0)), Decision::GiveUp);
        assert_eq!(decide(Some(&fixed), 1, S(94)), Decision::GiveUp, "the bound");
        let growing = MessageRetry::new(99, S(1)).up_to(S(30)).to_string();
        for (attempt, delay) in [(1, S(1)), (3, S(4)), (50, S(30))] {
            assert!(
                matches!(decide(Some(&growing), attempt, S(0)), Decision::RetryAfter(it) if it <= delay && it > delay * 9 / 10)
            );
        }
        for unread in
            [None, Some(""), Some("0 1 1"), Some("3 1"), Some("3 1 1 1"), Some("x 1 1"), Some("3 -1 1")]
        {
            assert_eq!(decide(unread, 1, S(0)), Decision::GiveUp, "{unread:?}");
        }
    }

    #[test]
    fn a_policy_around_it_needs_the_message_too() {
        let inner = PerMessage::or(Fixed::new(S(1)));
        assert!(Within::new(S(9), inner.clone()).needs_message());
        assert!(ByError::otherwise(Never).when(|_| true, inner.clone()).needs_message());
        assert!(ByError::otherwise(Never).with_message().needs_message());
        assert!(!ByError::otherwise(Never).needs_message());
        assert_eq!(inner.longest(), Some(S(24 * 60 * 60)));
    }
}
