//! Which lane is next, among those of which something can start. Without a clock: messages are as old as the ids of their entries say.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Priorities;

/// What a start is charged, divided by the weight of its lane: even of the largest weight something is left.
const OF_START: u64 = 1 << 20;

/// Lane of a message, and when it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rank {
    /// Its lane: 0 is the highest, and the only one without priorities.
    pub lane: usize,
    /// When its entry was appended, in milliseconds since 1970.
    pub came: u64,
}

/// Something that can start. What arrived first is the first of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head {
    /// Its number in the order of arrival.
    pub number: u64,
    /// What the caller knows it by.
    pub at: usize,
    /// When its entry was appended.
    pub came: u64,
}

/// The lanes of one tenant: what can start in each, and what each has been served.
///
/// With weights, the scheme is start-time fair queueing by starts: a lane that comes begins where the others are.
#[derive(Debug, Default)]
pub struct LaneQueues {
    lanes: Vec<Lane>,
    /// The virtual time of the lane that was served last.
    now: u64,
    /// When the newest message came that was the first of a lane then.
    newest: u64,
}

#[derive(Debug, Default)]
struct Lane {
    ready: BinaryHeap<Reverse<Head>>,
    served: u64,
    waiting: usize,
}

impl LaneQueues {
    fn lane(&mut self, lane: usize) -> &mut Lane {
        self.lanes.resize_with(self.lanes.len().max(lane + 1), Lane::default);
        &mut self.lanes[lane]
    }

    /// Adds a message that waits.
    pub fn enter(&mut self, lane: usize) {
        self.lane(lane).waiting += 1;
    }

    /// Removes a message that waited, and does so no more.
    pub fn leave(&mut self, lane: usize) {
        self.lane(lane).waiting -= 1;
    }

    /// Returns how many messages of a lane wait.
    #[must_use]
    pub fn waiting(&self, lane: usize) -> usize {
        self.lanes.get(lane).map_or(0, |lane| lane.waiting)
    }

    /// Whether nothing can start.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.ready.is_empty())
    }

    /// Adds what can start.
    pub fn push(&mut self, lane: usize, head: Head) {
        let now = self.now;
        let lane = self.lane(lane);
        if lane.ready.is_empty() {
            // What it did not use meanwhile is not saved up.
            lane.served = lane.served.max(now);
        }
        lane.ready.push(Reverse(head));
    }

    /// Removes what is next. Its message [begins](Self::begin) before another one is removed.
    pub fn pop(&mut self, rules: Option<&Priorities>) -> Option<usize> {
        let mut next = 0;
        if let Some(rules) = rules {
            let heads = self.lanes.iter().enumerate();
            let heads = heads.filter_map(|(at, lane)| Some((at, lane.served, lane.ready.peek()?.0.came)));
            self.newest = heads.clone().map(|(.., came)| came).max()?;
            // Of equal ones the higher lane.
            next = heads.min_by_key(|(at, served, came)| rules.place(*at, *served, *came))?.0;
        }
        let lane = self.lanes.get_mut(next)?;
        let Reverse(head) = lane.ready.pop()?;
        self.now = self.now.max(lane.served);
        Some(head.at)
    }

    /// Records that a message is handed out. Returns what its lane is charged.
    pub fn begin(&mut self, Rank { lane, came }: Rank, rules: Option<&Priorities>) -> u64 {
        let charged = rules.map_or(0, |rules| rules.charge(lane, self.newest.saturating_sub(came)));
        let lane = self.lane(lane);
        lane.waiting -= 1;
        lane.served += charged;
        charged
    }

    /// Records that a message that was handed out waits again; what was charged is given back if it did not run.
    pub fn undo(&mut self, lane: usize, given_back: u64) {
        let lane = self.lane(lane);
        lane.waiting += 1;
        lane.served = lane.served.saturating_sub(given_back);
    }

    /// Records that nothing can start.
    pub fn clear(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.ready.clear());
    }
}

impl Priorities {
    fn ageing_ms(&self) -> u64 {
        u64::try_from(self.ageing.as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the place of a lane, of which this message is first: the least is next.
    fn place(&self, lane: usize, served: u64, came: u64) -> u64 {
        if self.weights.is_empty() {
            came.saturating_add(self.ageing_ms().saturating_mul(lane as u64))
        } else {
            served
        }
    }

    /// Returns what a lane is charged for a message that is older than the first one of another lane by so many milliseconds.
    fn charge(&self, lane: usize, behind: u64) -> u64 {
        let aged = usize::try_from(behind / self.ageing_ms()).unwrap_or(usize::MAX);
        let weight = self.weights.get(lane.saturating_sub(aged)).copied().unwrap_or(1);
        OF_START / u64::from(weight.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream_core::Envelope;

    use super::*;

    /// Adds so many messages of a lane, each its own queue, one each millisecond.
    fn send(lanes: &mut LaneQueues, lane: usize, came: std::ops::Range<u64>) {
        for came in came {
            lanes.enter(lane);
            let number = came * 10 + lane as u64;
            lanes.push(lane, Head { number, at: usize::try_from(number).expect("small"), came });
        }
    }

    /// Starts so many. Returns how many of each lane.
    fn start(lanes: &mut LaneQueues, rules: &Priorities, starts: usize) -> [usize; 3] {
        let mut of = [0; 3];
        for _ in 0..starts {
            let Some(number) = lanes.pop(Some(rules)) else { break };
            let (lane, came) = (number % 10, number as u64 / 10);
            lanes.begin(Rank { lane, came }, Some(rules));
            of[lane] += 1;
        }
        of
    }

    #[test]
    fn weights_divide_the_starts_of_those_that_wait() {
        let rules = Priorities::default();
        let mut lanes = LaneQueues::default();
        (0..3).for_each(|lane| send(&mut lanes, lane, 0..1_000));
        assert_eq!(start(&mut lanes, &rules, 1), [1, 0, 0], "the highest is first");
        assert_eq!(start(&mut lanes, &rules, 99), [59, 30, 10]);
        // One that comes back has saved nothing up.
        let mut lanes = LaneQueues::default();
        send(&mut lanes, 2, 0..1_000);
        assert_eq!(start(&mut lanes, &rules, 500), [0, 0, 500]);
        send(&mut lanes, 0, 1_000..2_000);
        assert_eq!(start(&mut lanes, &rules, 70), [61, 0, 9]);
        assert_eq!((lanes.waiting(0), lanes.waiting(1), lanes.waiting(2)), (939, 0, 491));
    }

    #[test]
    fn strict_lanes_pass_what_came_within_the_bound() {
        let rules = Priorities::strict(["a", "b", "c"], Duration::from_millis(100));
        let mut lanes = LaneQueues::default();
        send(&mut lanes, 2, 0..10);
        send(&mut lanes, 1, 0..500);
        send(&mut lanes, 0, 0..1_000);
        // The first of the lowest waits for those of lane 1 that came before 100, and for those of lane 0 that came before 200.
        assert_eq!(start(&mut lanes, &rules, 301), [201, 100, 0]);
        assert_eq!(start(&mut lanes, &rules, 1), [0, 1, 0]);
        assert_eq!(start(&mut lanes, &rules, 1), [0, 0, 1]);
        let never = Priorities::strict(["a", "b", "c"], Duration::MAX);
        assert_eq!(start(&mut lanes, &never, 2_000), [799, 399, 9]);
        assert_eq!(start(&mut lanes, &never, 1), [0; 3]);
    }

    #[test]
    fn a_lane_whose_first_is_much_older_counts_as_a_higher_one() {
        let rules = Priorities::default().ageing(Duration::from_secs(1));
        let mut lanes = LaneQueues::default();
        send(&mut lanes, 2, 0..1_000);
        send(&mut lanes, 0, 1_500..2_500);
        assert_eq!(start(&mut lanes, &rules, 300), [200, 0, 100]);
        let mut lanes = LaneQueues::default();
        send(&mut lanes, 2, 0..1_000);
        send(&mut lanes, 0, 9_000..10_000);
        assert_eq!(start(&mut lanes, &rules, 300), [150, 0, 150]);
    }

    #[test]
    fn what_did_not_run_costs_its_lane_nothing() {
        let rules = Priorities::weighted([("a", 2), ("b", 1)]);
        let mut lanes = LaneQueues::default();
        (0..2).for_each(|lane| send(&mut lanes, lane, 0..1_000));
        for _ in 0..100 {
            let at = lanes.pop(Some(&rules)).expect("something waits");
            let (lane, came) = (at % 10, at as u64 / 10);
            let charged = lanes.begin(Rank { lane, came }, Some(&rules));
            lanes.undo(lane, charged);
            lanes.push(lane, Head { number: at as u64, at, came });
        }
        assert_eq!(start(&mut lanes, &rules, 30), [20, 10, 0]);
        lanes.clear();
        assert!(lanes.is_empty() && lanes.pop(Some(&rules)).is_none());
        assert_eq!((lanes.waiting(0), lanes.waiting(1)), (980, 990));
    }

    #[test]
    fn a_lane_that_does_not_exist_is_the_middle_one() {
        let of = |rules: &Priorities, lane: &'static str| {
            rules.lane_of(&Envelope::new("").with_header("x-lane", lane))
        };
        let rules = Priorities::default().header("x-lane");
        assert_eq!((of(&rules, "high"), of(&rules, "low"), of(&rules, "High")), (Ok(0), Ok(2), Err(1)));
        assert_eq!(rules.lane_of(&Envelope::new("")), Ok(1));
        assert_eq!(of(&rules.otherwise("low"), "?"), Err(2));
    }
}
