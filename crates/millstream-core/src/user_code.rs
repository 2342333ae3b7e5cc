//! Kinds of user code, and the panic of one as a value.

use std::any::Any;
use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::error::{Error, Result};

/// Kind of user code, with the fallback for its panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UserCode {
    /// A handler: the attempt has failed.
    Handler,
    /// A retry policy: the default policy ([`Exponential`](crate::policy::Exponential)) decides on this failure.
    RetryPolicy,
    /// A dead-letter policy: the message is kept.
    DeadLetterPolicy,
    /// The `Display`, `source` or `Drop` of an error: a fixed text replaces it.
    ErrorText,
    /// A codec: a message that is read is undecodable, a message that is sent fails with an error.
    Codec,
    /// A partitioner: the send fails with an error.
    Partitioner,
    /// An assignor: the default one decides.
    Assignor,
    /// An observer: it misses the event.
    Observer,
    /// Upkeep of a partition: its loop fails, and retries after a pause.
    Upkeep,
    /// A health check: it is left out.
    HealthCheck,
    /// A hook of a rebalance listener: work goes on as if it had ended.
    RebalanceListener,
    /// The key or the cost of a limit: the message does not come under it.
    Limit,
    /// The tenant, weight or cost of fairness: the message is one of the tenant without a name, the weight 1.
    Fairness,
}

impl UserCode {
    /// All variants.
    pub const ALL: [Self; 13] = [
        Self::Handler,
        Self::RetryPolicy,
        Self::DeadLetterPolicy,
        Self::ErrorText,
        Self::Codec,
        Self::Partitioner,
        Self::Assignor,
        Self::Observer,
        Self::Upkeep,
        Self::HealthCheck,
        Self::RebalanceListener,
        Self::Limit,
        Self::Fairness,
    ];

    /// Returns the word for it in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::RetryPolicy => "retry_policy",
            Self::DeadLetterPolicy => "dead_letter_policy",
            Self::ErrorText => "error_text",
            Self::Codec => "codec",
            Self::Partitioner => "partitioner",
            Self::Assignor => "assignor",
            Self::Observer => "observer",
            Self::Upkeep => "upkeep",
            Self::HealthCheck => "health_check",
            Self::RebalanceListener => "rebalance_listener",
            Self::Limit => "limit",
            Self::Fairness => "fairness",
        }
    }

    const fn noun(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::RetryPolicy => "retry policy",
            Self::DeadLetterPolicy => "dead-letter policy",
            Self::ErrorText => "error's text",
            Self::Codec => "codec",
            Self::Partitioner => "partitioner",
            Self::Assignor => "assignor",
            Self::Observer => "observer",
            Self::Upkeep => "upkeep",
            Self::HealthCheck => "health check",
            Self::RebalanceListener => "rebalance listener",
            Self::Limit => "key of a limit",
            Self::Fairness => "fairness",
        }
    }
}

/// Panic of user code, as an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {} panicked: {text}", .code.noun())]
pub struct Panicked {
    /// The code that panicked.
    pub code: UserCode,
    /// Message of the panic.
    pub text: String,
}

impl Panicked {
    /// Creates the error for a panic with this payload.
    #[must_use]
    pub fn new(code: UserCode, payload: Box<dyn Any + Send>) -> Self {
        Self { code, text: text_of(payload) }
    }

    /// Returns the panic if the error, or its direct source, is one.
    #[must_use]
    pub fn within<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        error.downcast_ref().or_else(|| error.downcast_ref::<Error>()?.source()?.downcast_ref())
    }

    /// Continues the panic, with its message as payload. The panic hook is not called again.
    pub(crate) fn resume(self) -> ! {
        resume_unwind(Box::new(self.text))
    }
}

/// Returns the message of a panic.
#[must_use]
pub fn text_of(payload: Box<dyn Any + Send>) -> String {
    let payload = match payload.downcast::<String>() {
        Ok(text) => return *text,
        Err(payload) => payload,
    };
    match payload.downcast::<&'static str>() {
        Ok(text) => (*text).to_owned(),
        Err(payload) => {
            // A value of an unknown type, whose own `Drop` may panic: leaked, since nothing would catch that panic.
            std::mem::forget(payload);
            "no message".to_owned()
        }
    }
}

/// Calls user code, and returns its result.
///
/// # Errors
/// The panic, if it panicked.
pub fn catch<T>(code: UserCode, call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| Panicked::new(code, payload))
}
