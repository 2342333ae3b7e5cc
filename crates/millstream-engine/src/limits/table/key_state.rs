//! What a process knows of one key of a limit.

use std::collections::VecDeque;

use super::AskId;

/// State of one key.
#[derive(Debug, Default)]
pub(super) struct KeyState {
    /// Units that the server knows us to have, as far as we know.
    pub(super) units: u32,
    /// Units that messages use.
    pub(super) busy: u32,
    /// Who waits for it, in the order of their turns, and requests that were given up since.
    pub(super) waiting: VecDeque<AskId>,
    /// How many of those wait.
    pub(super) alive: usize,
    /// How many of those that waited for it are being asked for.
    pub(super) asking: usize,
    /// Whether the server has us among those that wait.
    pub(super) registered: bool,
    /// Whether others wait for it.
    pub(super) wanted: bool,
    /// Whether the next exchange has to report the units that we have.
    pub(super) dirty: bool,
    /// Most units that messages used at once since the last sweep, and between the two before.
    pub(super) peak: u32,
    pub(super) needed: u32,
    /// How many units may be in use at once, as the program states it and as the rules have it.
    pub(super) stated: u32,
    pub(super) most: u32,
    /// Units that the server may not know of, or would no longer grant: as many are given back before any is kept or passed on again. From
    /// then on it knows of all: for each that is given back it learns how many are left, and it counts each that it grants.
    pub(super) doubtful: u32,
    /// Sweeps for which others count as interested in it.
    pub(super) shared: u8,
    /// Whether the next sweep looks at it.
    pub(super) swept: bool,
}

impl KeyState {
    pub(super) fn idle(&self) -> u32 {
        self.units.saturating_sub(self.busy)
    }

    /// Whether idle units are given back at once: others want them, or a message here that needs more than these.
    pub(super) fn gives_back(&self) -> bool {
        self.wanted || self.shared > 0 || self.doubtful > 0 || self.alive > 0 || self.asking > 0
    }

    /// Whether a message may use that many idle units.
    pub(super) fn has_idle(&self, units: u32) -> bool {
        // As the server decides it: also a cost above the limit may have brought units, and rules change.
        let fits = self.most > 0 && (self.busy == 0 || self.busy + units <= self.most);
        !self.wanted && self.doubtful == 0 && fits && self.idle() >= units
    }

    pub(super) fn uses(&mut self, units: u32) {
        self.busy += units;
        self.peak = self.peak.max(self.busy);
    }

    pub(super) fn is_nothing(&self) -> bool {
        let waits = self.alive > 0 || self.asking > 0 || self.registered;
        self.units == 0 && !waits && !self.dirty && !self.swept
    }
}
