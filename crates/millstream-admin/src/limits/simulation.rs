//! What limits would do: flows of messages, rules, and who waits how long. Without a server and without a clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use millstream_core::limits::{LimitRules, PermitKey};
use millstream_core::rates::{Lead, Rate, RateRecord};
use millstream_core::{Error, ErrorKind, Result};

/// Parts of the time for each of which the longest wait is kept.
const PARTS: usize = 40;
/// Most flows, and most messages of all of them.
const MOST_FLOWS: usize = 64;
const MOST_MESSAGES: f64 = 2_000_000.0;
/// Where simulated time begins, in microseconds: what rates keep of a time before it is not zero.
const BEGIN: u64 = 1_000_000_000_000;

/// Messages that come evenly, or a burst at a time, and that all need the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Limits and keys under which each message comes.
    pub needs: Vec<PermitKey>,
    /// How many come in a time; its burst comes at once.
    pub rate: Rate,
    /// How long a handler takes.
    pub takes: Duration,
}

/// A simulation of limits.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The messages that come.
    pub flows: Vec<Flow>,
    /// What is allowed of each key.
    pub rules: LimitRules,
    /// How many handlers run at once, in all.
    pub handlers: usize,
    /// How long messages come.
    pub time: Duration,
    /// Whether flows take turns by the time of their handlers. Otherwise the message that came first is next.
    pub fair: bool,
}

/// What a flow waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Short {
    /// For units or tokens of this key.
    Key(PermitKey),
    /// For a handler.
    Handlers,
}

/// What became of the messages of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowOutcome {
    /// Messages that came.
    pub sent: u64,
    /// Messages that began.
    pub begun: u64,
    /// Wait within which half of those began.
    pub p50: Duration,
    /// Wait within which 99 of 100 of those began.
    pub p99: Duration,
    /// Longest wait, also of those that have not begun.
    pub longest: Duration,
    /// Messages that had not begun at the end.
    pub waiting: u64,
    /// What they were short of last before they began, by the time that they had waited; `None` if none waited.
    pub short: Option<Short>,
    /// Longest wait in each part of the time, of those that began or were the first that waited.
    pub course: Vec<Duration>,
}

struct Key {
    at_most: Option<u32>,
    used: u32,
    rate: Option<Rate>,
    record: RateRecord,
}

#[derive(Default)]
struct State {
    /// Indexes of keys.
    needs: Vec<usize>,
    waiting: VecDeque<u64>,
    groups: u64,
    waits: Vec<u64>,
    /// By the index of the key, and handlers behind the last one: the time that messages waited for it.
    short: Vec<u128>,
    /// Longest wait of those that began since the last part was over.
    longest_of_part: u64,
    last_short: usize,
    served: u64,
    outcome: FlowOutcome,
}

fn wrong(why: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, why)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

impl Simulation {
    /// Runs it, and returns what became of each flow.
    ///
    /// # Errors
    /// `InvalidConfig`: no flow or more than 64, no handler, no time, a key without a rule, more than 2,000,000 messages.
    pub fn run(&self) -> Result<Vec<FlowOutcome>> {
        let (mut keys, mut flows, names) = self.check()?;
        let (end, part) = (BEGIN + micros(self.time), micros(self.time).div_ceil(PARTS as u64).max(1));
        let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let (mut wake, mut virtual_now, mut parts) = (None, 0, 0);
        loop {
            let comes = self.flows.iter().zip(&flows).map(|(flow, state)| next_group(flow, state.groups));
            let ended = ends.peek().map(|Reverse((at, _))| *at);
            let Some(now) = comes.chain(ended).chain(wake.take()).min().filter(|now| *now < end) else {
                break;
            };
            parts = passed(&mut flows, parts, now, part);
            while let Some(Reverse((at, flow))) = ends.peek().copied()
                && at <= now
            {
                ends.pop();
                for key in &flows[flow].needs {
                    keys[*key].used -= u32::from(keys[*key].at_most.is_some());
                }
            }
            for (flow, state) in self.flows.iter().zip(&mut flows) {
                while next_group(flow, state.groups) <= now {
                    if state.waiting.is_empty() {
                        // What it did not use is not saved up.
                        state.served = state.served.max(virtual_now);
                    }
                    state.waiting.extend((0..flow.rate.most_saved()).map(|_| now));
                    state.outcome.sent += u64::from(flow.rate.most_saved());
                    state.groups += 1;
                }
            }
            wake = self.start(&mut keys, &mut flows, &mut ends, (now, &mut virtual_now));
        }
        passed(&mut flows, parts, BEGIN + part * PARTS as u64, part);
        Ok(flows.into_iter().map(|state| state.end(end, &names)).collect())
    }

    fn check(&self) -> Result<(Vec<Key>, Vec<State>, Vec<PermitKey>)> {
        if self.flows.is_empty() || self.flows.len() > MOST_FLOWS {
            return Err(wrong(format!("{} flows, 1 to {MOST_FLOWS} are allowed", self.flows.len())));
        }
        if self.handlers == 0 || self.time.is_zero() {
            return Err(wrong("nothing runs without handlers and time".into()));
        }
        let messages = |flow: &Flow| {
            let burst = f64::from(flow.rate.most_saved());
            let bursts = flow.rate.interval_us().map_or(0.0, |us| micros(self.time) as f64 / (us * burst));
            (bursts.floor() + 1.0) * burst
        };
        let messages = self.flows.iter().map(messages).sum::<f64>();
        if messages > MOST_MESSAGES {
            return Err(wrong(format!("{messages:.0} messages, at most {MOST_MESSAGES:.0}: take less time")));
        }
        let (mut keys, mut names) = (Vec::<Key>::new(), Vec::<PermitKey>::new());
        let mut states = Vec::new();
        for flow in &self.flows {
            flow.rate.check()?;
            let mut state = State::default();
            for need in &flow.needs {
                let known = names.iter().position(|name| name == need);
                let at = match known {
                    Some(at) => at,
                    None => {
                        // As consumers follow them; neither default can be a rule.
                        let no_rate = Rate::new(0, Duration::MAX);
                        let at_most = Some(self.rules.at_most(need, u32::MAX)).filter(|it| *it < u32::MAX);
                        let rate = Some(self.rules.rate(need, no_rate)).filter(|it| *it != no_rate);
                        if at_most.is_none() && rate.is_none() {
                            return Err(wrong(format!("no rule is for {need}")));
                        }
                        names.push(need.clone());
                        keys.push(Key { at_most, used: 0, rate, record: RateRecord::default() });
                        keys.len() - 1
                    }
                };
                // One that is named twice is needed once.
                if !state.needs.contains(&at) {
                    state.needs.push(at);
                }
            }
            states.push(state);
        }
        for state in &mut states {
            (state.short, state.last_short) = (vec![0; keys.len() + 1], keys.len());
            state.outcome.course = vec![Duration::ZERO; PARTS];
        }
        Ok((keys, states, names))
    }

    /// Starts what can start. Returns when a token becomes free for which something waits.
    fn start(
        &self,
        keys: &mut [Key],
        flows: &mut [State],
        ends: &mut BinaryHeap<Reverse<(u64, usize)>>,
        (now, virtual_now): (u64, &mut u64),
    ) -> Option<u64> {
        let (mut wake, mut passed) = (None::<u64>, vec![false; flows.len()]);
        loop {
            let waits = flows.iter().enumerate().filter(|(at, it)| !passed[*at] && !it.waiting.is_empty());
            let place = |state: &State| if self.fair { state.served } else { 0 };
            let Some((next, _)) = waits.min_by_key(|(at, it)| (place(it), it.waiting[0], *at)) else {
                return wake;
            };
            if ends.len() >= self.handlers {
                for (state, passed) in flows.iter_mut().zip(passed) {
                    if !passed {
                        state.last_short = keys.len();
                    }
                }
                return wake;
            }
            let state = &mut flows[next];
            let mut reserved = Vec::new();
            let short = state.needs.iter().copied().find(|at| {
                let key = &keys[*at];
                if key.at_most.is_some_and(|most| key.used >= most) {
                    return true;
                }
                let Some(rate) = &key.rate else { return false };
                let mut record = key.record;
                match record.reserve(now, rate, 1, false) {
                    Lead::At(_) => reserved.push((*at, record)),
                    Lead::Later(us) => {
                        let at = now + us.max(1);
                        wake = Some(wake.map_or(at, |wake| wake.min(at)));
                        return true;
                    }
                    Lead::Never => return true,
                }
                false
            });
            if let Some(short) = short {
                (state.last_short, passed[next]) = (short, true);
                continue;
            }
            for (at, record) in reserved {
                keys[at].record = record;
            }
            for at in &state.needs {
                keys[*at].used += u32::from(keys[*at].at_most.is_some());
            }
            let takes = micros(self.flows[next].takes);
            state.begin(now);
            *virtual_now = (*virtual_now).max(state.served);
            state.served = state.served.saturating_add(takes.max(1));
            ends.push(Reverse((now + takes, next)));
        }
    }
}

/// When the next messages of a flow come, of which so many bursts have come.
fn next_group(flow: &Flow, groups: u64) -> u64 {
    let Some(interval) = flow.rate.interval_us() else { return u64::MAX };
    BEGIN.saturating_add((groups as f64 * f64::from(flow.rate.most_saved()) * interval) as u64)
}

/// Notes how long the first one of each flow has waited at the end of the parts that are over now. Returns how many are.
fn passed(flows: &mut [State], parts: usize, now: u64, part: u64) -> usize {
    let over = usize::try_from((now - BEGIN) / part).unwrap_or(PARTS).min(PARTS);
    for state in flows {
        for at in parts..over {
            let until = BEGIN + part * (at as u64 + 1);
            let waited = state.waiting.front().map_or(0, |came| until.saturating_sub(*came));
            let longest = waited.max(std::mem::take(&mut state.longest_of_part));
            state.outcome.course[at] = Duration::from_micros(longest);
        }
    }
    over.max(parts)
}

impl State {
    fn begin(&mut self, now: u64) {
        let Some(came) = self.waiting.pop_front() else { return };
        let wait = now - came;
        self.waits.push(wait);
        self.longest_of_part = self.longest_of_part.max(wait);
        self.short[self.last_short] += u128::from(wait);
    }

    fn end(mut self, end: u64, names: &[PermitKey]) -> FlowOutcome {
        let left: Vec<u64> = self.waiting.drain(..).collect();
        for came in &left {
            self.short[self.last_short] += u128::from(end - came);
        }
        self.waits.sort_unstable();
        let within = |percent: usize| {
            let at = (self.waits.len() * percent).div_ceil(100).saturating_sub(1);
            Duration::from_micros(self.waits.get(at).copied().unwrap_or(0))
        };
        let longest = self.waits.last().copied().max(left.first().map(|came| end - came));
        let most = self.short.iter().enumerate().max_by_key(|(_, waited)| **waited);
        let short = most.filter(|(_, waited)| **waited > 0).map(|(at, _)| match names.get(at) {
            Some(key) => Short::Key(key.clone()),
            None => Short::Handlers,
        });
        let (p50, p99) = (within(50), within(99));
        FlowOutcome {
            begun: self.waits.len() as u64,
            p50,
            p99,
            longest: Duration::from_micros(longest.unwrap_or(0)),
            waiting: left.len() as u64,
            short,
            ..self.outcome
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(needs: &[&str], rate: &str, takes: u64) -> Flow {
        let needs = needs.iter().map(|key| key.parse().expect("a key")).collect();
        Flow { needs, rate: rate.parse().expect("a rate"), takes: Duration::from_millis(takes) }
    }

    fn simulation(rules: &[(&str, &str)], flows: Vec<Flow>) -> Simulation {
        let rule = |(pattern, bound): &(&str, &str)| {
            (pattern.parse().expect("a pattern"), bound.parse().expect("a bound"))
        };
        let rules = LimitRules { version: 1, rules: rules.iter().map(rule).collect() };
        Simulation { flows, rules, handlers: 100, time: Duration::from_secs(60), fair: false }
    }

    #[test]
    fn the_most_specific_rule_counts_and_each_key_has_its_units() {
        let rules = [("tenant", "2"), ("tenant:gold", "10")];
        let flows = vec![flow(&["tenant:acme"], "50/s", 100), flow(&["tenant:gold"], "50/s", 100)];
        let outcomes = simulation(&rules, flows).run().expect("runs");
        // Two at a time take 20 a second, of 50; ten take 100.
        assert_eq!((outcomes[0].sent, outcomes[0].begun), (3_000, 1_200));
        assert_eq!(outcomes[0].short, Some(Short::Key("tenant:acme".parse().expect("a key"))));
        assert_eq!(outcomes[0].waiting, 1_800);
        assert!(outcomes[0].longest > Duration::from_secs(35) && outcomes[0].course.is_sorted());
        assert_eq!(
            (outcomes[1].begun, outcomes[1].longest, &outcomes[1].short),
            (3_000, Duration::ZERO, &None)
        );
    }

    #[test]
    fn rates_bursts_and_shared_limits() {
        let outcomes = simulation(&[("api", "10/s burst 5")], vec![flow(&["api:all"], "8/s burst 8", 10)]);
        let outcome = &outcomes.run().expect("runs")[0];
        // Of eight, five begin at once, and the others 100 ms after each other.
        assert_eq!((outcome.sent, outcome.begun, outcome.p50), (480, 480, Duration::ZERO));
        let longest = outcome.longest.as_millis();
        assert!((290..=400).contains(&longest), "{longest}");
        // Those that share a limit are served in the order in which they came.
        let shared = vec![flow(&["api:all"], "100/s", 10), flow(&["api:all"], "1/s", 10)];
        let outcomes = simulation(&[("api", "10/s")], shared).run().expect("runs");
        assert!(outcomes[1].p99 > Duration::from_secs(30), "{:?}", outcomes[1]);
        let all: u64 = outcomes.iter().map(|it| it.begun).sum();
        assert!((599..=601).contains(&all), "{all}");
    }

    /// The next token wakes a flow, whatever another one did meanwhile.
    #[test]
    fn a_token_is_not_missed() {
        let flows = vec![flow(&["api:all"], "1/h burst 10", 1), flow(&[], "1/h", 10_000)];
        let outcomes = simulation(&[("api", "10/s")], flows).run().expect("runs");
        let longest = outcomes[0].longest.as_millis();
        assert!(outcomes[0].begun == 10 && (895..=910).contains(&longest), "{:?}", outcomes[0]);
    }

    #[test]
    fn without_handlers_flows_wait_for_each_other_unless_they_take_turns() {
        let flows = vec![flow(&[], "100/s", 100), flow(&[], "1/s", 100)];
        let mut simulation = simulation(&[], flows);
        simulation.handlers = 5;
        let late = simulation.run().expect("runs");
        assert!(late[1].longest > Duration::from_secs(20), "{:?}", late[1]);
        assert_eq!(late[1].short, Some(Short::Handlers));
        simulation.fair = true;
        let fair = simulation.run().expect("runs");
        assert!(fair[1].longest <= Duration::from_millis(100), "{:?}", fair[1]);
        assert_eq!(fair[0].begun + fair[1].begun, late[0].begun + late[1].begun);
    }

    #[test]
    fn what_cannot_be_simulated_is_refused() {
        let none = simulation(&[("tenant", "1")], vec![flow(&["other:a"], "1/s", 1)]).run();
        assert!(none.expect_err("no rule").to_string().contains("no rule is for other:a"));
        let many = simulation(&[], vec![flow(&[], "100000/s", 1)]).run();
        assert!(many.expect_err("too many").to_string().contains("messages, at most 2000000"));
        assert!(simulation(&[], Vec::new()).run().is_err());
        let burst = simulation(&[], vec![flow(&[], "1/d burst 1000000", 1); 3]).run();
        assert!(burst.expect_err("too many").to_string().contains("3000000 messages"));
        let nothing = simulation(&[("a", "0")], vec![flow(&["a:b"], "1/s", 1)]).run().expect("runs");
        assert_eq!((nothing[0].begun, nothing[0].waiting), (0, 60));
    }
}
