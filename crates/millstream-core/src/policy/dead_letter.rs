//! Policies that decide whether a message that is given up is kept.

use std::fmt;

use crate::dead_letters::Reason;
use crate::envelope::Envelope;
use crate::history::Notes;

/// Message or task that is given up, as a [`DeadLetterPolicy`] sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GivenUp<'a> {
    /// The reason.
    pub reason: &'a Reason,
    /// Number of attempts that were made.
    pub attempts: u32,
    /// Error of the last attempt, or the reason why there was none.
    pub error: &'a str,
    /// Name of its topic, or of its delay queue.
    pub topic: &'a str,
    /// Number of its partition, or of the shard of its delay queue.
    pub partition: u32,
    /// The message as it is stored: key, headers and payload, before layers and codec. `None` if the entry is no message, and
    /// for policies that [do not need it](DeadLetterPolicy::needs_message).
    pub message: Option<&'a Envelope>,
}

impl<'a> GivenUp<'a> {
    /// Creates one without a message, of topic "" and partition 0.
    #[must_use]
    pub fn new(reason: &'a Reason, attempts: u32, error: &'a str) -> Self {
        Self { reason, attempts, error, topic: "", partition: 0, message: None }
    }

    /// Returns the same of this partition of a topic, or shard of a delay queue.
    #[must_use]
    pub fn of(self, topic: &'a str, partition: u32) -> Self {
        Self { topic, partition, ..self }
    }

    /// Returns the same with its message.
    #[must_use]
    pub fn with_message(self, message: Option<&'a Envelope>) -> Self {
        Self { message, ..self }
    }
}

/// Decision about a message that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Keep it with the group's dead letters.
    Keep,
    /// Keep it, with these notes: operators see them beside its reason, and one of them can name the topic that it is to be
    /// replayed to.
    KeepWith(Notes),
    /// Drop it. It is counted as discarded and cannot be replayed.
    Discard,
}

/// Decides whether a message that is given up is kept.
///
/// ```
/// use millstream_core::history::Notes;
/// use millstream_core::policy::{GivenUp, Verdict};
/// use millstream_core::DeadLetterPolicy;
///
/// /// Previews are dropped. Of the others the tenant is noted, so that letters can be found by it.
/// #[derive(Debug)]
/// struct ByTenant;
///
/// impl DeadLetterPolicy for ByTenant {
///     fn judge(&self, given_up: &GivenUp<'_>) -> Verdict {
///         let header = |name| given_up.message.and_then(|message| message.headers.get(name));
///         match header("tenant") {
///             _ if header("preview").is_some() => Verdict::Discard,
///             Some(tenant) => {
///                 let tenant = String::from_utf8_lossy(tenant);
///                 Verdict::KeepWith(Notes::new().note("tenant", &tenant))
///             }
///             None => Verdict::Keep,
///         }
///     }
/// }
/// # let _ = ByTenant;
/// ```
pub trait DeadLetterPolicy: fmt::Debug + Send + Sync {
    /// Returns the verdict on a message that is given up.
    fn judge(&self, given_up: &GivenUp<'_>) -> Verdict;

    /// Whether [`GivenUp::message`] is needed. Then the consumer keeps each message until its handler has ended, which costs a
    /// little for each. Default: true.
    fn needs_message(&self) -> bool {
        true
    }
}

/// Keeps every dead letter. The default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep;

impl DeadLetterPolicy for Keep {
    fn judge(&self, _: &GivenUp<'_>) -> Verdict {
        Verdict::Keep
    }

    fn needs_message(&self) -> bool {
        false
    }
}

/// Drops messages that the handler failed on or rejected. Messages that could not be read are kept all the same: no
/// handler has ever seen them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discard;

impl DeadLetterPolicy for Discard {
    fn judge(&self, given_up: &GivenUp<'_>) -> Verdict {
        match given_up.reason {
            Reason::Exhausted | Reason::Rejected => Verdict::Discard,
            _ => Verdict::Keep,
        }
    }

    fn needs_message(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_could_read_is_kept() {
        let judge = |policy: &dyn DeadLetterPolicy, reason| policy.judge(&GivenUp::new(&reason, 3, "x"));
        assert_eq!(judge(&Discard, Reason::Exhausted), Verdict::Discard);
        assert_eq!(judge(&Discard, Reason::Undecodable), Verdict::Keep);
        assert_eq!(judge(&Keep, Reason::Exhausted), Verdict::Keep);
    }
}
