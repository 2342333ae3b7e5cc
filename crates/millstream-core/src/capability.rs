//! Capabilities: the parts of the contract that a backend may leave out.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// Names the capabilities once, for the type, the list of all and their texts.
macro_rules! capabilities {
    ($($(#[$doc:meta])* $name:ident: $role:literal, $what:literal, [$($operation:literal),*];)*) => {
        /// Part of the contract that a backend may leave out: an optional role, or optional operations of a required role.
        ///
        /// A [`Backend`](crate::Backend) [states](crate::Backend::capabilities) which it supports. All of its other
        /// operations fail with [`ErrorKind::Unsupported`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Capability { $($(#[$doc])* $name,)* }

        impl Capability {
            /// All capabilities.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the name of the role that it is, or that its operations belong to: `log`, `dead_letters`.
            #[must_use]
            pub const fn role(self) -> &'static str {
                match self { $(Self::$name => $role,)* }
            }

            /// Returns the optional operations: `Log::seek`, or a part of one. Empty for an optional role.
            #[must_use]
            pub const fn operations(self) -> &'static [&'static str] {
                match self { $(Self::$name => &[$($operation),*],)* }
            }

            const fn what(self) -> &'static str {
                match self { $(Self::$name => $what,)* }
            }
        }
    };
}

capabilities! {
    /// The role [`DeadLetters`](crate::DeadLetters): to list, replay and delete dead letters. Without it
    /// [`Settlement::DeadLetter`](crate::Settlement::DeadLetter) stores them all the same.
    DeadLetters: "dead_letters", "dead letters", [];
    /// The role [`Recurring`](crate::Recurring): recurring messages.
    Recurring: "recurring", "recurring schedules", [];
    /// The role [`Tasks`](crate::Tasks): delay queues. Without it [`Schedule`](crate::Schedule) takes no
    /// [`Place::Shard`](crate::Place::Shard).
    Tasks: "tasks", "delay queues", [];
    /// The role [`Shared`](crate::Shared): many consumers of one partition, and entries that such consumers left behind.
    Shared: "shared", "shared mode", [];
    /// The role [`Locks`](crate::Locks): locks on named resources.
    Locks: "locks", "locks", [];
    /// The role [`Inspect`](crate::Inspect): to list stored data.
    Inspect: "inspect", "inspection of stored data", [];
    /// The role [`Audit`](crate::Audit): to find and repair inconsistencies.
    Audit: "audit", "audit of stored data", [];
    /// The role [`Idempotency`](crate::Idempotency): markers of operations that are to take effect once.
    Idempotency: "idempotency", "markers of operations", [];
    /// The role [`Permits`](crate::Permits): limits on how much is handled at once, across processes.
    Permits: "permits", "limits across processes", [];
    /// The role [`Cancels`](crate::Cancels): messages and tasks that are cancelled from outside.
    Cancels: "cancels", "cancelling from outside", [];
    /// The role [`Batches`](crate::Batches): messages that are counted together.
    Batches: "batches", "batches of messages", [];
    /// The role [`Steps`](crate::Steps): what handlers have done, for the run after a crash or a wait.
    Steps: "steps", "steps of handlers", [];

    /// To move the position of a group.
    Seek: "log", "moving the position of a group", ["Log::seek"];
    /// To count the entries of logs; needed for topics with a bound.
    Lengths: "log", "lengths of logs", ["Log::lengths"];
    /// To store entries with a [durability](crate::Durability) of more than `Stored`.
    Durability: "log", "durability of single messages", ["Log::appender"];
    /// To recognise entries that are appended again.
    Dedup: "log", "deduplication of sends", ["Log::append with a dedup id or a number"];
    /// To store no second entry with an id while the first one has still to be settled.
    Unique: "log", "unique ids of messages", ["Log::append with a unique id"];
    /// To keep results of messages, which are stored with their settlements, and their progress until then.
    Results: "log", "results of messages",
        ["Log::result", "Settlement::AckWith", "Log::report_progress", "Log::progress"];
    /// To drop entries of a log without a lease; needed where a lossy retention is to hold without consumers.
    UnleasedTrim: "log", "trimming without a lease", ["Log::trim_unleased"];
    /// To count the [ends](crate::Lease::ends) of owners that did not release their lease. Without it leases have no ends,
    /// and messages that kill processes are not detected.
    Ends: "leases", "counting the ends of owners", ["Leases::withdraw_end"];
    /// To drop dead letters by age and number. A backend that claims it has the role [`DeadLetters`](crate::DeadLetters).
    TrimDeadLetters: "dead_letters", "retention of dead letters", ["DeadLetters::trim"];
    /// To store a retention of dead tasks with a delay queue, to change it, and to drop dead tasks by it. A backend that claims
    /// it has the role [`Tasks`](crate::Tasks).
    TrimDeadTasks: "tasks", "retention of dead tasks", ["Tasks::alter_queue", "Tasks::trim_dead"];
    /// To delete a delay queue. A backend that claims it has the role [`Tasks`](crate::Tasks).
    DeleteQueue: "tasks", "deleting delay queues", ["Tasks::delete_queue"];
    /// To pause a delay queue. A backend that claims it has the role [`Tasks`](crate::Tasks).
    PauseQueue: "tasks", "pausing delay queues", ["Tasks::set_paused"];
    /// To find a task by its id, also while a worker has it. A backend that claims it has the role [`Tasks`](crate::Tasks).
    FindTasks: "tasks", "finding tasks", ["Tasks::find"];
    /// To change the due time of messages that wait.
    Reschedule: "schedule", "rescheduling", ["Schedule::reschedule"];
    /// To list messages that wait.
    ListScheduled: "schedule", "listing of scheduled messages",
        ["Schedule::scheduled", "Schedule::get", "Schedule::waiting"];
    /// To promote delayed messages without a lease, and to wait for new ones.
    PromoteDelayed: "schedule", "promotion without a lease", ["Schedule::promote_delayed", "Schedule::wait"];
    /// To release retries that wait, and to give them up.
    SettleRetries: "schedule", "changing retries that wait", ["Schedule::settle_retries"];
    /// To create topics and groups again that were lost with the data, but not those that were deleted.
    Restore: "catalog", "restoring lost topics and groups", ["Catalog::restore_topic", "Catalog::restore_group"];
    /// To add partitions to a topic.
    Expand: "catalog", "expanding topics", ["Catalog::expand"];
    /// To change the settings of a topic.
    AlterTopic: "catalog", "changing the settings of topics", ["Catalog::alter_topic"];
    /// To store dictionaries for the packs of a topic.
    Dictionaries: "catalog", "dictionaries of packs", ["Catalog::store_dictionary", "Catalog::dictionary"];
    /// To count entries of a log between two positions.
    Count: "catalog", "counting entries", ["Catalog::count"];
    /// To pause a group as a whole.
    Pause: "catalog", "pausing groups", ["Catalog::set_paused"];
    /// The state of the partitions for a group.
    Stats: "catalog", "statistics", ["Catalog::stats"];
    /// Which groups keep entries from being dropped.
    Pins: "catalog", "retention pins", ["Catalog::pins"];
}

impl Capability {
    /// Whether it is an optional role, as opposed to optional operations of a required one.
    #[must_use]
    pub const fn is_role(self) -> bool {
        self.operations().is_empty()
    }

    /// Returns the error of a backend without this capability.
    #[must_use]
    pub fn missing(self) -> Error {
        let what = self.what();
        let message = if self.is_role() {
            format!("this backend has no {what} (role `{}`)", self.role())
        } else {
            format!("this backend does not support {what} ({})", self.operations().join(", "))
        };
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Returns the error of a backend that has this capability where its crate is compiled with `feature`.
    #[must_use]
    pub fn left_out(self, feature: &str) -> Error {
        self.missing().during(format_args!("compiled without the feature `{feature}`"))
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what())
    }
}

/// Returns the error of an optional operation that a backend does not implement: `this backend does not support
/// Log::seek`.
#[must_use]
pub fn unsupported(operation: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this backend does not support {operation}"))
}

/// Set of capabilities.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// No capability.
    pub const NONE: Self = Self(0);

    /// Returns all capabilities.
    #[must_use]
    pub fn all() -> Self {
        Capability::ALL.iter().copied().collect()
    }

    /// Returns the same set with this capability.
    #[must_use]
    pub const fn with(self, capability: Capability) -> Self {
        Self(self.0 | 1u64 << capability as u32)
    }

    /// Returns the same set without this capability.
    #[must_use]
    pub const fn without(self, capability: Capability) -> Self {
        Self(self.0 & !(1u64 << capability as u32))
    }

    /// Whether this capability is in the set.
    #[must_use]
    pub const fn contains(self, capability: Capability) -> bool {
        self.0 & 1u64 << capability as u32 != 0
    }

    /// Returns the capabilities, in the order of [`Capability::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Capability> {
        Capability::ALL.iter().copied().filter(move |capability| self.contains(*capability))
    }
}

impl FromIterator<Capability> for Capabilities {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        capabilities.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_what_was_added_and_not_what_was_removed() {
        assert_eq!(Capabilities::all().iter().collect::<Vec<_>>(), Capability::ALL);
        for capability in Capability::ALL {
            assert!(!Capabilities::NONE.contains(*capability), "{capability}");
            let one = Capabilities::NONE.with(*capability);
            assert_eq!(one.iter().collect::<Vec<_>>(), [*capability]);
            assert_eq!(one.without(*capability), Capabilities::NONE);
            assert!(!Capabilities::all().without(*capability).contains(*capability), "{capability}");
        }
    }

    #[test]
    fn the_error_names_the_role_or_the_operations() {
        let error = Capability::Tasks.missing();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.to_string(), "this backend has no delay queues (role `tasks`)");
        let error = Capability::Seek.missing();
        assert_eq!(
            error.to_string(),
            "this backend does not support moving the position of a group (Log::seek)"
        );
    }
}
