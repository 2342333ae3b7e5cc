//! Policies for failed messages: pure functions of plain values.

mod dead_letter;
mod per_message;
mod retry;

pub use dead_letter::{DeadLetterPolicy, Discard, GivenUp, Keep, Verdict};
pub use per_message::{MessageRetry, PerMessage, RETRY_HEADER};
pub use retry::{
    ByError, Decision, Delays, Exponential, Failure, FailureKind, Fixed, Jitter, Never, RetryPolicy, Within,
};

pub use crate::history::Notes;
