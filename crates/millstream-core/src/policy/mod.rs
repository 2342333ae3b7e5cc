//! Policies for failed messages: pure functions of plain values.

mod dead_letter;
mod retry;

pub use dead_letter::{DeadLetterPolicy, Discard, Keep, Verdict};
pub use retry::{
    ByError, Decision, Delays, Exponential, Failure, FailureKind, Fixed, Jitter, Never, RetryPolicy, Within,
};
