//! Digest of a history: messages by number, deliveries, grants of partitions, lives of processes, faults as intervals.

mod read;

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::chaos::record::{End, Handling, Line, Message, Phase, Place, Rest, Scope};

use super::limits::Limits;

/// Index of a place in [`Digest::places`].
pub(crate) type PlaceId = usize;
/// Index of a life in [`Digest::lives`].
pub(crate) type LifeId = usize;

/// Moment of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    /// Position of the line.
    pub(crate) index: usize,
    /// Time in microseconds.
    pub(crate) us: u64,
}

/// Outcome of a send, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known<'a> {
    /// Confirmed, under this partition and id.
    Stored(u32, &'a str),
    /// Certainly not stored.
    Refused,
    /// Not known: so its producer says, or its producer died.
    Unknown,
}

/// A message that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) message: &'a Message,
    /// Begin of the send.
    pub(crate) from: Moment,
    /// When the outcome was known.
    pub(crate) to: Option<Moment>,
    pub(crate) known: Known<'a>,
}

impl Sent<'_> {
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.known, Known::Stored(..))
    }
}

/// End of a handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub(crate) at: Moment,
    pub(crate) end: End,
}

/// A handling that began.
#[derive(Clone, Debug)]
pub(crate) struct Delivery<'a> {
    pub(crate) handling: &'a Handling,
    pub(crate) place: PlaceId,
    pub(crate) life: LifeId,
    pub(crate) at: Moment,
    pub(crate) intact: bool,
    pub(crate) early_ms: i64,
    pub(crate) finish: Option<Finish>,
}

impl Delivery<'_> {
    pub(crate) fn ended(&self, end: End) -> bool {
        self.finish.is_some_and(|finish| finish.end == end)
    }
}

/// Life of a process: the same name and even the same process id can have several.
#[derive(Clone, Debug)]
pub(crate) struct Life<'a> {
    pub(crate) pid: u32,
    /// Name and role, if it has said that it runs.
    pub(crate) named: Option<(&'a str, &'a str)>,
    /// Its end, and whether it was orderly.
    pub(crate) gone: Option<(Moment, bool)>,
    /// Last line that shows it at work.
    pub(crate) last: Moment,
}

impl Life<'_> {
    pub(crate) fn label(&self) -> String {
        self.named.map_or_else(|| self.pid.to_string(), |(name, _)| format!("{name} ({})", self.pid))
    }
}

/// A fault as an interval.
#[derive(Clone, Debug)]
pub(crate) struct Fault<'a> {
    pub(crate) number: u32,
    pub(crate) kind: &'a str,
    pub(crate) scope: Scope,
    /// The life that it hits, if its scope is a process.
    pub(crate) life: Option<LifeId>,
    pub(crate) from: Moment,
    /// Its end; without one, a killed process stays dead and everything else stays broken.
    pub(crate) to: Option<Moment>,
}

impl Fault<'_> {
    /// Whether the interval, extended to both sides, has a moment in common with this one.
    pub(crate) fn overlaps(&self, from_us: u64, to_us: u64, before: u64, after: u64) -> bool {
        let end = self.to.map_or(u64::MAX, |to| to.us.saturating_add(after));
        self.from.us.saturating_sub(before) <= to_us && end >= from_us
    }

    pub(crate) fn hits(&self, life: LifeId) -> bool {
        self.life == Some(life)
    }

    /// Whether it is a fault of the partition of a handling, at a place whose partitions are owned.
    pub(crate) fn is_of(&self, delivery: &Delivery<'_>) -> bool {
        let Handling { partition, epoch, .. } = delivery.handling;
        *epoch > 0 && self.scope == Scope::Partition(*partition)
    }

    /// Whether it lasted for so long that a lease or claim could run out meanwhile.
    pub(crate) fn is_long(&self, limits: &Limits) -> bool {
        self.to.is_none_or(|to| to.us.saturating_sub(self.from.us) >= limits.shortest_loss_us())
    }
}

/// A grant of a partition.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) epoch: u64,
    pub(crate) life: LifeId,
    pub(crate) at: Moment,
    /// Its end, and whether it was a loss.
    pub(crate) end: Option<(Moment, bool)>,
}

/// Digest of a history.
#[derive(Clone, Debug)]
pub(crate) struct Digest<'a> {
    pub(crate) lines: &'a [Line],
    pub(crate) messages: BTreeMap<u64, Sent<'a>>,
    pub(crate) places: Vec<&'a Place>,
    place_ids: HashMap<&'a Place, PlaceId>,
    /// In the order of their begin.
    pub(crate) deliveries: Vec<Delivery<'a>>,
    /// Deliveries of each message at each place, in the order of their begin.
    pub(crate) by_message: BTreeMap<(PlaceId, u64), Vec<usize>>,
    /// Ends of handlers that never began, and outcomes of sends that never began.
    pub(crate) unmatched: Vec<usize>,
    /// Grants by partition, in the order of their lines.
    pub(crate) grants: BTreeMap<(PlaceId, u32), Vec<Grant>>,
    pub(crate) lives: Vec<Life<'a>>,
    pub(crate) faults: Vec<Fault<'a>>,
    pub(crate) phases: Vec<(Phase, Moment)>,
    /// What is left at each place, and where that stands.
    pub(crate) left: BTreeMap<PlaceId, (Moment, &'a Rest)>,
    /// The life of each line.
    pub(crate) life_of: Vec<LifeId>,
    /// Handlings whose effect the store refused.
    pub(crate) refused: HashSet<&'a Handling>,
    /// Time of the phase `Ended`, or of the last line.
    pub(crate) end_us: u64,
}

impl<'a> Digest<'a> {
    /// Returns the digest of a history.
    pub(crate) fn of(lines: &'a [Line]) -> Self {
        read::read(lines)
    }

    pub(crate) fn place(&self, place: &Place) -> Option<PlaceId> {
        self.place_ids.get(place).copied()
    }

    /// Returns the label of a place.
    pub(crate) fn label(&self, place: PlaceId) -> String {
        let Place { name, group } = self.places[place];
        if group.is_empty() { name.clone() } else { format!("{name}/{group}") }
    }

    /// Returns the deliveries of a message at a place.
    pub(crate) fn deliveries_of(&self, place: PlaceId, number: u64) -> impl Iterator<Item = &Delivery<'a>> {
        let of = self.by_message.get(&(place, number));
        of.into_iter().flatten().map(|index| &self.deliveries[*index])
    }

    /// Returns the phase of a position.
    pub(crate) fn phase_at(&self, index: usize) -> Phase {
        let before = self.phases.iter().rev().find(|(_, at)| at.index <= index);
        before.map_or(Phase::Starting, |(phase, _)| *phase)
    }

    /// Returns when a phase began.
    pub(crate) fn began(&self, phase: Phase) -> Option<Moment> {
        self.phases.iter().find(|(it, _)| *it == phase).map(|(_, at)| *at)
    }

    /// Returns begin and end of a phase, in microseconds.
    pub(crate) fn span(&self, phase: Phase) -> Option<(u64, u64)> {
        let from = self.began(phase)?.us;
        let next = self.phases.iter().find(|(it, _)| *it > phase);
        Some((from, next.map_or(self.end_us, |(_, at)| at.us)))
    }

    /// Whether a fault that meets the condition, extended to both sides, overlaps this time.
    pub(crate) fn disturbed(
        &self,
        from_us: u64,
        to_us: u64,
        after: u64,
        which: impl Fn(&Fault<'a>) -> bool,
    ) -> bool {
        self.faults.iter().any(|fault| fault.overlaps(from_us, to_us, 0, after) && which(fault))
    }

    /// Returns the grant under which a handler works.
    pub(crate) fn grant_of(&self, delivery: &Delivery<'_>) -> Option<&Grant> {
        let Handling { partition, epoch, .. } = *delivery.handling;
        let grants = self.grants.get(&(delivery.place, partition))?;
        grants.iter().rev().find(|grant| grant.epoch == epoch && grant.life == delivery.life)
    }

    /// Returns the numbers and reasons of the dead letters of a place.
    pub(crate) fn dead(&self, place: PlaceId) -> &'a [(Option<u64>, String)] {
        self.left.get(&place).map_or(&[], |(_, rest)| &rest.dead)
    }
}
