//! Known mistakes, each of which a run under faults must find.
//!
//! A run that nothing fails proves nothing. So runs are repeated with every [`Mutant`]: the links to the servers are
//! [armed](Mutant::arm), and each process passes its backend through [`wrap`](Mutant::wrap). Most mistakes are changes of
//! scripts ([`patches`]), which the links make; others are made around a role, some by two requests where the product makes one
//! (`gap`).
//!
//! They are not those of the crate `mutants`, which the conformance suite finds within one process: these are the
//! same for all processes of a run, and nearly all of them are invisible as long as nothing fails.

mod clock;
mod gap;
mod leases;
mod locks;
mod log;
pub mod outbox;
pub mod patches;
mod reader;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use millstream_core::Backend;
use serde::{Deserialize, Serialize};

use crate::proxy::Proxy;

pub use gap::GAP;
pub use patches::MAXLEN;

/// Names the mistakes once: for the type, for people, and for the list of all.
macro_rules! mutants {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// A mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Mutant { $($(#[doc = $doc])* $variant,)* }

        impl Mutant {
            /// All mistakes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the name, in kebab case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns what the mistake is, in a sentence or two.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*).trim(),)* }
            }
        }
    };
}

mutants! {
    /// The owner of a partition acknowledges a failed message in one request, and stores its retry in the next one.
    AckBeforeRetry = "ack-before-retry",
    /// A settlement by the owner of a partition takes effect under any token.
    UnfencedSettlement = "unfenced-settlement",
    /// The epoch of a lease is the last one plus one, without the clock, and is the token by itself: after a fail-over two owners
    /// have the same one. The fence of a lock is counted in the same way.
    IncrEpoch = "incr-epoch",
    /// Due times of retries, delayed messages and tasks are computed by the clock of the client.
    ClientClock = "client-clock",
    /// Appends drop what is beyond a fixed length of the log, read or not.
    AppendMaxlen = "append-maxlen",
    /// A dead letter that cannot be stored is acknowledged all the same.
    DeadLetterSwallowed = "dead-letter-swallowed",
    /// A retry that is due goes to the log that all groups read: as a new message, for each of them.
    RetryToSharedLog = "retry-to-shared-log",
    /// The owner of a partition does not read the pending list again after a lost reply.
    PendingNotReread = "pending-not-reread",
    /// A renewal gives a lease or lock back that was released or has run out; and one comes right after each release.
    RenewAfterRelease = "renew-after-release",
    /// If an entry of a batch fails, the whole batch is sent again.
    WholeBatchResent = "whole-batch-resent",
    /// The relay of the outbox remembers the last id that it has read, and reads what is above it.
    IdCursorOutbox = "id-cursor-outbox",
    /// A send with a dedup id, or of an idempotent producer, records the id in one request, and appends in the next one.
    MarkerBeforeAppend = "marker-before-append",
    /// The trimmer of a log looks at the positions of groups alone, and drops what is pending.
    TrimIgnoresPending = "trim-ignores-pending",
    /// In shared mode a consumer that is dead is removed without a look at its pending entries.
    DelconsumerWithPending = "delconsumer-with-pending",
    /// An acknowledgement acknowledges everything below it, as an offset does.
    AckBelow = "ack-below",
    /// A worker of a delay queue settles and extends a task that another one has claimed since.
    UnfencedTask = "unfenced-task",
    /// A lease that has run out goes to the first client that asks for it, also if nobody could have renewed it.
    TakeoverAtOnce = "takeover-at-once",
    /// A release of a lock ends the grant of whoever has it.
    UncheckedLockRelease = "unchecked-lock-release",
}

impl Mutant {
    /// Makes all who connect by this link from now on have the mistake, as far as it is in scripts. A link with TLS hides them.
    ///
    /// # Panics
    /// If a script is not what a patch expects.
    pub fn arm(self, link: &Proxy) {
        link.replace(&patches::replacements(self));
    }

    /// Returns a backend that makes the mistake, as far as it is not in scripts: around one that is connected by a link that is
    /// [armed](Self::arm).
    ///
    /// [`IdCursorOutbox`](Self::IdCursorOutbox) is nothing of a backend: see [`outbox::relay`].
    #[must_use]
    pub fn wrap(self, backend: Backend) -> Backend {
        match self {
            Self::AckBeforeRetry
            | Self::AppendMaxlen
            | Self::PendingNotReread
            | Self::WholeBatchResent
            | Self::MarkerBeforeAppend => {
                let log = log::Mutated::new(backend.log().clone(), self);
                backend.with_log(Arc::new(log))
            }
            Self::ClientClock => {
                let log = log::Mutated::new(backend.log().clone(), self);
                let schedule = clock::Clocked(backend.schedule().clone());
                let mut backend = backend.with_log(Arc::new(log)).with_schedule(Arc::new(schedule));
                if let Ok(inner) = backend.shared().cloned() {
                    backend = backend.with_shared(Arc::new(clock::Clocked(inner)));
                }
                if let Ok(inner) = backend.tasks().cloned() {
                    backend = backend.with_tasks(Arc::new(clock::Clocked(inner)));
                }
                backend
            }
            Self::IncrEpoch => {
                let leases = leases::Mutated::new(backend.leases().clone(), self);
                backend.with_leases(Arc::new(leases))
            }
            Self::RenewAfterRelease => {
                let leases = leases::Mutated::new(backend.leases().clone(), self);
                let backend = backend.with_leases(Arc::new(leases));
                match backend.locks().cloned() {
                    Ok(inner) => backend.with_locks(Arc::new(locks::Renewing::new(inner))),
                    Err(_) => backend,
                }
            }
            Self::UnfencedSettlement
            | Self::DeadLetterSwallowed
            | Self::RetryToSharedLog
            | Self::IdCursorOutbox
            | Self::TrimIgnoresPending
            | Self::DelconsumerWithPending
            | Self::AckBelow
            | Self::UnfencedTask
            | Self::TakeoverAtOnce
            | Self::UncheckedLockRelease => backend,
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mutant {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = |mutant: &&Self| mutant.name() == name;
        Self::ALL.iter().find(named).copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|mutant| mutant.name()).collect();
            format!("no mutant is named {name:?}, there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_everywhere() {
        for mutant in Mutant::ALL {
            assert_eq!(mutant.to_string().parse(), Ok(*mutant));
            assert_eq!(serde_json::to_string(mutant).unwrap(), format!("\"{mutant}\""));
            assert!(mutant.description().ends_with('.'), "{mutant}: {}", mutant.description());
        }
        assert!("none".parse::<Mutant>().unwrap_err().contains("ack-below"));
    }
}
