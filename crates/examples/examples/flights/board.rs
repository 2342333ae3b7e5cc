//! The departure board: the handler's state, and the judge of what it was given.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream::{Delivery, Outcome};

use crate::events::Departure;

/// What a cancelled flight is given up with.
pub(crate) const CANCELLED: &str = "cancelled flights have no gate";

/// What has been shown, and whether it came as it should.
pub(crate) struct Board {
    state: Mutex<State>,
    fixed: AtomicBool,
    produced: AtomicU64,
    handled: AtomicUsize,
    retried: AtomicU64,
    touched: AtomicU64,
    violations: AtomicU64,
    duplicates: AtomicU64,
}

struct State {
    /// How often each departure was shown.
    shown: Vec<u8>,
    /// The departures that are given up.
    dead: HashSet<usize>,
    /// The departures that came by the straight way.
    came: HashSet<usize>,
    /// The last of them of each aircraft.
    last: HashMap<String, usize>,
    per_partition: Vec<u64>,
}

impl Board {
    pub(crate) fn new(departures: usize, partitions: usize) -> Self {
        let state = State {
            shown: vec![0; departures],
            dead: HashSet::new(),
            came: HashSet::new(),
            last: HashMap::new(),
            per_partition: vec![0; partitions],
        };
        Self {
            state: Mutex::new(state),
            fixed: AtomicBool::new(false),
            produced: AtomicU64::new(0),
            handled: AtomicUsize::new(0),
            retried: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
        }
    }

    /// The handler.
    pub(crate) fn show(&self, delivery: &Delivery<Departure>) -> Outcome {
        let departure = &delivery.payload;
        self.touched.fetch_add(1, Relaxed);
        let mut state = self.state();
        // A retry or a replay comes from elsewhere than the log, and later than its turn.
        let straight = delivery.id() == delivery.origin();
        // What comes again, after a fail-over or a repeated send, came in its turn the first time.
        if straight
            && state.came.insert(departure.n)
            && let Some(tail) = &departure.tail
            && state.last.insert(tail.clone(), departure.n).is_some_and(|last| last >= departure.n)
        {
            self.violations.fetch_add(1, Relaxed);
        }
        if departure.is_cancelled() && !self.fixed.load(Relaxed) {
            state.dead.insert(departure.n);
            return Outcome::dead_letter(CANCELLED);
        }
        if departure.n % 100 == 7 && straight {
            self.retried.fetch_add(1, Relaxed);
            return Outcome::retry("the board is dark");
        }
        let Some(shown) = state.shown.get_mut(departure.n) else {
            return Outcome::dead_letter("not a departure of this run");
        };
        *shown = shown.saturating_add(1);
        if *shown > 1 {
            self.duplicates.fetch_add(1, Relaxed);
            return Outcome::Ack;
        }
        if let Some(count) = state.per_partition.get_mut(delivery.topic_partition().partition.0 as usize) {
            *count += 1;
        }
        self.handled.fetch_add(1, Relaxed);
        Outcome::Ack
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn produced(&self) {
        self.produced.fetch_add(1, Relaxed);
    }

    /// From now on cancelled flights can be shown.
    pub(crate) fn fix(&self) {
        self.fixed.store(true, Relaxed);
    }

    /// Departures that are shown or dead.
    pub(crate) fn done(&self) -> usize {
        let dead = if self.fixed.load(Relaxed) { 0 } else { self.state().dead.len() };
        self.handled.load(Relaxed) + dead
    }

    pub(crate) fn touched(&self) -> u64 {
        self.touched.load(Relaxed)
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            produced: self.produced.load(Relaxed),
            handled: self.handled.load(Relaxed) as u64,
            retried: self.retried.load(Relaxed),
            dead: self.state().dead.len() as u64,
            duplicates: self.duplicates.load(Relaxed),
        }
    }

    pub(crate) fn per_partition(&self) -> Vec<u64> {
        self.state().per_partition.clone()
    }

    /// Departures that were never shown.
    pub(crate) fn lost(&self) -> usize {
        self.state().shown.iter().filter(|shown| **shown == 0).count()
    }

    /// Departures that came before an earlier one of the same aircraft, retries and replays aside.
    pub(crate) fn violations(&self) -> u64 {
        self.violations.load(Relaxed)
    }
}

/// A look at the counters.
pub(crate) struct Counts {
    pub(crate) produced: u64,
    pub(crate) handled: u64,
    pub(crate) retried: u64,
    pub(crate) dead: u64,
    pub(crate) duplicates: u64,
}
