//! Sizes of a model: how many there are of everything, and of each fault.

use super::server::Set;

/// How often each fault occurs at most, and how large the rest is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sizes {
    pub(crate) owners: u8,
    pub(crate) messages: u8,
    /// Messages that are in the log from the beginning: the others may come at any time.
    pub(crate) stored: u8,
    /// Messages whose first attempt fails, each bit one.
    pub(crate) failing: Set,
    /// Entries that an owner takes in advance.
    pub(crate) prefetch: u8,
    pub(crate) faults: Faults,
    /// Whether another group reads the log too.
    pub(crate) other_group: bool,
}

/// Faults that are left. They are part of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// Requests that are given up: they may arrive later or never, and their answers are lost.
    pub(crate) losses: u8,
    pub(crate) crashes: u8,
    /// Leases that run out while their owner lives: it is paused, or cut off.
    pub(crate) pauses: u8,
    pub(crate) renewals: u8,
    pub(crate) releases: u8,
    /// Fail-overs that lose the end of what the old primary had replied to.
    pub(crate) fail_overs: u8,
    /// Whether the clock of the new primary may be behind.
    pub(crate) behind: bool,
}

impl Faults {
    /// Whether an owner can lose its lease without having released it.
    pub(crate) fn make_former_owners(&self) -> bool {
        self.pauses + self.crashes + self.fail_overs > 0
    }
}
