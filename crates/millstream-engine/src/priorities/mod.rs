//! Priorities: which of the lanes of a partition is next.

mod lanes;

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::Envelope;
use millstream_core::error::Problems;

use crate::fairness::{MAX_READ_AHEAD, MAX_WEIGHT};

pub use lanes::{Head, LaneQueues, Rank};

/// Header in which a message names its lane.
pub const PRIORITY_HEADER: &str = "millstream-priority";
/// Fewest and most lanes.
pub const LANES: std::ops::RangeInclusive<usize> = 2..=5;
/// Longest name of a lane, in bytes.
const MAX_NAME: usize = 64;
/// Ageing of lanes that have weights, of which none starves: bulk work may be late for long before it counts as more than that.
const AGEING: Duration = Duration::from_secs(3_600);

/// Priorities: lanes, of which the messages in higher ones start first.
///
/// A message names its lane in the header [`PRIORITY_HEADER`]. One that names none, or none of these, is in the middle one. Retries and
/// delayed messages keep their headers, and so their lanes. Order per key holds: behind a message of its key, one of a higher lane waits.
///
/// ```
/// use std::time::Duration;
/// use millstream_engine::Priorities;
///
/// let weighted = Priorities::weighted([("high", 6), ("normal", 3), ("low", 1)]);
/// let strict = Priorities::strict(["urgent", "normal", "bulk"], Duration::from_secs(600));
/// # let _ = (weighted, strict);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "priorities do nothing until a consumer has them"]
pub struct Priorities {
    lanes: Vec<String>,
    /// Of each lane; empty if they are strict.
    weights: Vec<u32>,
    ageing: Duration,
    header: String,
    otherwise: Option<String>,
    read_ahead: usize,
}

impl Default for Priorities {
    /// `high`, `normal` and `low`, with the weights 6, 3 and 1.
    fn default() -> Self {
        Self::weighted([("high", 6), ("normal", 3), ("low", 1)])
    }
}

impl Priorities {
    /// Creates lanes that share the starts of handlers by weight, 1 to 1,000, the highest lane first: 2 to 5. While all have messages that wait, a lane of weight 6 starts six
    /// for each that one of weight 1 starts. A lane that has none leaves its part to the others, so no lane starves.
    pub fn weighted(lanes: impl IntoIterator<Item = (impl Into<String>, u32)>) -> Self {
        let (lanes, weights) = lanes.into_iter().map(|(name, weight)| (name.into(), weight)).unzip();
        Self::new(lanes, weights, AGEING)
    }

    /// Creates lanes of which the highest that has messages is always next, the highest lane first: 2 to 5. `ageing` bounds what that does to the others: a message goes before
    /// those of the next higher lane that came by so much later, and so on with each lane. See [`ageing`](Self::ageing).
    pub fn strict(lanes: impl IntoIterator<Item = impl Into<String>>, ageing: Duration) -> Self {
        Self::new(lanes.into_iter().map(Into::into).collect(), Vec::new(), ageing)
    }

    fn new(lanes: Vec<String>, weights: Vec<u32>, ageing: Duration) -> Self {
        Self { lanes, weights, ageing, header: PRIORITY_HEADER.into(), otherwise: None, read_ahead: 100_000 }
    }

    /// Sets after which time a message that waits counts as one of the next higher lane, and so on: with weights, if the first message of another lane came by so
    /// much later; if lanes are strict, towards each message that did. From 1 ms on. Times are those of the ids of entries: a retry comes anew. Default: one hour.
    pub fn ageing(mut self, ageing: Duration) -> Self {
        self.ageing = ageing;
        self
    }

    /// Sets the header that names the lane. Default: [`PRIORITY_HEADER`].
    pub fn header(mut self, name: impl Into<String>) -> Self {
        self.header = name.into();
        self
    }

    /// Sets the lane of messages that name none, or none of these. Default: the middle one; of two in the middle the lower.
    pub fn otherwise(mut self, lane: impl Into<String>) -> Self {
        self.otherwise = Some(lane.into());
        self
    }

    /// Sets how many messages of a partition may be read and wait, 1 to 1,000,000: behind more of a lower lane, one of a higher lane is not found. They stay pending on the
    /// server, and do not count towards the prefetch. With fairness, the larger of both counts. Default: 100,000.
    pub fn read_ahead(mut self, messages: usize) -> Self {
        self.read_ahead = messages;
        self
    }

    /// Returns how many messages of a partition may be read and wait.
    #[must_use]
    pub fn most_read(&self) -> usize {
        self.read_ahead
    }

    /// Checks the settings.
    pub fn check(&self, problems: &mut Problems) {
        let Self { lanes, weights, ageing, header, otherwise, read_ahead } = self;
        problems.require(LANES.contains(&lanes.len()), || {
            format!("{} lanes, {} to {} are allowed", lanes.len(), LANES.start(), LANES.end())
        });
        for name in lanes {
            problems.require(!name.is_empty() && name.len() <= MAX_NAME, || {
                format!("lane {name:?}: a name has 1 to {MAX_NAME} bytes")
            });
        }
        problems.require(lanes.iter().collect::<BTreeSet<_>>().len() == lanes.len(), || {
            format!("lanes {lanes:?}: two have the same name")
        });
        for (name, weight) in lanes.iter().zip(weights) {
            problems.require((1..=MAX_WEIGHT).contains(weight), || {
                format!("lane {name}: weight {weight}, 1 to {MAX_WEIGHT} are allowed")
            });
        }
        problems.require(weights.is_sorted_by(|higher, lower| higher >= lower), || {
            format!("weights {weights:?}: a lane has no more than the one above it")
        });
        problems.require(*ageing >= Duration::from_millis(1), || {
            format!("ageing is {ageing:?}, at least 1ms is needed")
        });
        problems.require(!header.is_empty(), || "priorities: the name of the header is empty".into());
        if let Some(name) = otherwise {
            problems.require(lanes.contains(name), || format!("otherwise {name:?} is none of the lanes"));
        }
        problems.require((1..=MAX_READ_AHEAD).contains(read_ahead), || {
            format!("read_ahead is {read_ahead}, 1 to {MAX_READ_AHEAD} are allowed")
        });
    }

    /// Returns the lane of a message: 0 is the highest. `Err` with that of messages that name none: it names one that does not exist.
    ///
    /// # Errors
    /// The lane in which it is.
    pub fn lane_of(&self, message: &Envelope) -> Result<usize, usize> {
        let Some(named) = message.headers.get(&self.header) else { return Ok(self.lane_otherwise()) };
        self.lanes.iter().position(|lane| lane.as_bytes() == named).ok_or_else(|| self.lane_otherwise())
    }

    /// Returns the lane of messages that name none.
    #[must_use]
    pub fn lane_otherwise(&self) -> usize {
        let named = self.otherwise.as_ref().and_then(|name| self.lanes.iter().position(|lane| lane == name));
        named.unwrap_or(self.lanes.len() / 2)
    }
}
