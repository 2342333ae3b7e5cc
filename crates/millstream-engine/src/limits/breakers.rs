//! What a process knows of its breakers: a state machine without tasks and requests.
//!
//! The server stores which breakers are open, and closes their keys as those of rates: whoever tries needs a token of the key, of which there
//! is one in each [time that it stays open](super::Breaker::open_for), for all processes together. Whether calls fail each process counts for
//! itself; what one of them finds, the others learn by a call.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use millstream_core::limits::{LimitRules, PermitKey};
use millstream_core::permits::OpenBreaker;
use millstream_core::rates::LONGEST_PERIOD;
use tokio::time::Instant;

use crate::limits::breaker::Window;
use crate::limits::table::AskId;
use crate::limits::{BreakerNeed, TokenNeed};

/// Messages at once when a breaker has been closed again.
const FIRST_ROOM: u32 = 2;
/// Messages at once from which on it does not matter any more that the breaker was open.
const ENOUGH_ROOM: u32 = 64;
/// How long it is remembered of a key that nobody uses that it was open.
const RAMPING_KEPT: Duration = Duration::from_secs(60);
/// After which time a message is looked at again that failed while operators hold a breaker open.
const HELD: Duration = Duration::from_secs(1);

/// How a call counts for a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted<'a> {
    /// It succeeded.
    Succeeded,
    /// It failed, for this reason.
    Failed(&'a str),
    /// Neither.
    Other,
}

/// What a message may do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may go on, with these tokens: those of breakers that it tries.
    Goes(Vec<TokenNeed>),
    /// It waits for this key.
    Waits(PermitKey),
}

/// What the server is to be told of a breaker.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) need: TokenNeed,
    /// How long it is open from now on; no time: it is closed.
    pub(super) time: Duration,
    pub(super) reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// Until about then. From then on messages try.
    Open(Instant),
    /// It was open: so many may run at once.
    Ramping(u32),
}

#[derive(Debug)]
struct KeyBreaker {
    state: State,
    window: Window,
    /// Until when calls may be in it.
    counts_until: Instant,
    /// Messages that have begun in this epoch, or may begin.
    running: u32,
    /// Grows when it is closed. What began before may take long, and is not counted any more.
    epoch: u64,
    /// Those that wait, in their order.
    waiting: VecDeque<AskId>,
    /// The one that waits for the token with which it tries.
    trying: Option<AskId>,
}

impl KeyBreaker {
    fn new(epoch: u64, now: Instant) -> Self {
        let (waiting, window) = (VecDeque::new(), Window::default());
        let (state, counts_until) = (State::Closed, now);
        Self { state, window, counts_until, running: 0, epoch, waiting, trying: None }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    fn open(&mut self, until: Instant) {
        self.state = State::Open(until);
        self.window.clear();
    }
}

/// What a process knows of its breakers.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    keys: HashMap<PermitKey, KeyBreaker>,
    /// The key for which each message waits.
    asks: HashMap<AskId, PermitKey>,
    /// Whether it was ever read which are open. Before that nothing begins.
    known: bool,
    /// Whether it is to be read.
    unsure: bool,
    /// Keys of which the first that waits may go on.
    ready: BTreeSet<PermitKey>,
    /// Keys that nobody has to try any more.
    tried_enough: Vec<PermitKey>,
    /// Keys of which a call came since it was last read which are open.
    called_since_look: BTreeSet<PermitKey>,
    changes: Vec<Change>,
    /// The last epoch of a key.
    epochs: u64,
    rules: LimitRules,
}

impl Breakers {
    fn key(&mut self, key: &PermitKey, now: Instant) -> &mut KeyBreaker {
        let epochs = &mut self.epochs;
        self.keys.entry(key.clone()).or_insert_with(|| {
            // Unique, since a key may be forgotten while something of it runs.
            *epochs += 1;
            KeyBreaker::new(*epochs, now)
        })
    }

    /// Returns what a message may do that needs these keys.
    pub(super) fn admit(&mut self, id: AskId, needs: &[BreakerNeed], now: Instant) -> Admission {
        let mut tries = Vec::new();
        for need in needs {
            let held = self.rules.holds_open(&need.key);
            if held == Some(false) {
                continue;
            }
            // One that waits for a later key has had its turn.
            let elsewhere = self.asks.get(&id).is_some_and(|key| *key != need.key);
            let is_known = self.known;
            let state = self.key(&need.key, now);
            let is_turn = elsewhere || state.waiting.front().is_none_or(|first| *first == id);
            let passes = held.is_none()
                && is_known
                && match state.state {
                    State::Closed => true,
                    State::Ramping(room) => is_turn && state.running < room,
                    State::Open(_) => state.trying == Some(id) || is_turn && state.trying.is_none(),
                };
            if !passes {
                self.unsure |= !is_known;
                // Another one may try while it waits.
                self.tries_no_more(id, needs);
                return Admission::Waits(need.key.clone());
            }
            if matches!(state.state, State::Open(_)) {
                tries.push(need);
            }
        }
        for need in &tries {
            self.key(&need.key, now).trying = Some(id);
        }
        Admission::Goes(tries.into_iter().map(BreakerNeed::token).collect())
    }

    /// Lets a message wait for a key, behind the others or before them.
    pub(super) fn wait(&mut self, id: AskId, key: &PermitKey, first: bool, now: Instant) {
        // It may have tried two that were closed together.
        self.leave(id);
        let state = self.key(key, now);
        if first {
            state.waiting.push_front(id);
        } else {
            state.waiting.push_back(id);
        }
        self.asks.insert(id, key.clone());
    }

    /// Whether this message waits.
    pub(super) fn is_waiting(&self, id: AskId) -> bool {
        self.asks.contains_key(&id)
    }

    /// Takes a message out of its line. Returns whether it waited.
    pub(super) fn leave(&mut self, id: AskId) -> bool {
        let Some(key) = self.asks.remove(&id) else { return false };
        if let Some(state) = self.keys.get_mut(&key) {
            state.waiting.retain(|other| *other != id);
            self.ready.insert(key);
        }
        true
    }

    /// Takes in that a message is given up, or begins: the next one may try after it.
    pub(super) fn tries_no_more(&mut self, id: AskId, needs: &[BreakerNeed]) {
        for need in needs {
            if let Some(state) = self.keys.get_mut(&need.key).filter(|it| it.trying == Some(id)) {
                state.trying = None;
                self.ready.insert(need.key.clone());
            }
        }
    }

    /// Whether a message may begin now: of what it tries it has tokens. One that is not counted needs room.
    pub(super) fn passes(&self, needs: &[BreakerNeed], tried: &[PermitKey], is_counted: bool) -> bool {
        needs.iter().all(|need| match self.rules.holds_open(&need.key) {
            Some(is_open) => !is_open,
            None => self.keys.get(&need.key).is_none_or(|it| match it.state {
                State::Open(_) => tried.contains(&need.key),
                State::Ramping(room) => is_counted || it.running < room,
                State::Closed => true,
            }),
        })
    }

    /// Counts a message that begins, or may begin. Returns the epoch of each key.
    pub(super) fn begin(&mut self, needs: &[BreakerNeed], now: Instant) -> Vec<u64> {
        let mut epochs = Vec::with_capacity(needs.len());
        for need in needs {
            let state = self.key(&need.key, now);
            state.running += 1;
            epochs.push(state.epoch);
        }
        epochs
    }

    /// Takes in that a message of these epochs has ended, or does not begin after all.
    pub(super) fn end(&mut self, needs: &[BreakerNeed], epochs: &[u64]) {
        for (need, epoch) in needs.iter().zip(epochs) {
            let Some(state) = self.keys.get_mut(&need.key) else { continue };
            if state.epoch == *epoch {
                state.running = state.running.saturating_sub(1);
            }
            if !state.waiting.is_empty() {
                self.ready.insert(need.key.clone());
            }
        }
    }

    /// Records what came of a message that passed these keys: `tried` are those of which it had a token, and of each key `ends` says how it
    /// counts. Returns after which time it is handled again as if it had not failed: a breaker was opened meanwhile.
    pub(super) fn ended(
        &mut self,
        needs: &[BreakerNeed],
        (tried, epochs): (&[PermitKey], &[u64]),
        ends: &[Counted<'_>],
        now: Instant,
    ) -> Option<Duration> {
        let mut again: Option<Duration> = None;
        for ((need, end), epoch) in needs.iter().zip(ends).zip(epochs) {
            let failed = matches!(end, Counted::Failed(_));
            match self.rules.holds_open(&need.key) {
                Some(false) => continue,
                Some(true) if failed => again = again.max(Some(HELD)),
                Some(true) => {}
                None => {
                    let is_tried = tried.contains(&need.key);
                    if let Some(after) = self.count(need, is_tried, *epoch, *end, now) {
                        again = again.max(Some(after));
                    }
                }
            }
        }
        again
    }

    fn count(
        &mut self,
        need: &BreakerNeed,
        tried: bool,
        epoch: u64,
        end: Counted<'_>,
        now: Instant,
    ) -> Option<Duration> {
        let state = self.keys.get_mut(&need.key)?;
        let is_ramping = matches!(state.state, State::Ramping(_));
        match (state.state, end) {
            (State::Open(_), Counted::Succeeded) if tried => {
                self.close(&need.key, now);
                let (need, time, reason) = (need.token(), Duration::ZERO, String::new());
                self.changes.push(Change { need, time, reason });
            }
            (State::Open(_), Counted::Failed(why)) if tried => {
                self.opens(need, format!("tried again: {why}"), now);
            }
            (State::Open(until), Counted::Failed(_)) => return Some(until.saturating_duration_since(now)),
            (State::Open(_), _) | (_, Counted::Other) => {}
            // It began before an outage that is over, and says nothing of now.
            (_, Counted::Failed(_)) if state.epoch != epoch => return Some(Duration::ZERO),
            (_, Counted::Succeeded) if state.epoch != epoch => {}
            (State::Closed | State::Ramping(_), end) => {
                state.counts_until = now + need.breaker.counts_for();
                state.window.record(&need.breaker, now, end != Counted::Succeeded);
                let trips = state.window.trips(&need.breaker, is_ramping);
                match (end, trips) {
                    (Counted::Failed(why), Some((calls, failures))) => {
                        self.opens(need, format!("{failures} of {calls} failed: {why}"), now);
                    }
                    (Counted::Succeeded, _) => {
                        if let State::Ramping(room) = &mut state.state {
                            *room += 1;
                            if *room > ENOUGH_ROOM {
                                state.state = State::Closed;
                            }
                            self.ready.insert(need.key.clone());
                        }
                    }
                    _ => {}
                }
            }
        }
        None
    }

    fn opens(&mut self, need: &BreakerNeed, reason: String, now: Instant) {
        let time = need.breaker.open_time();
        if let Some(state) = self.keys.get_mut(&need.key) {
            if !matches!(state.state, State::Open(_)) {
                tracing::warn!(key = %need.key, reason, "a breaker opens");
            }
            state.open(now + time);
            self.ready.insert(need.key.clone());
        }
        self.changes.push(Change { need: need.token(), time, reason });
    }

    fn close(&mut self, key: &PermitKey, now: Instant) {
        tracing::info!(%key, "a breaker is closed again");
        self.epochs += 1;
        let epoch = self.epochs;
        let Some(state) = self.keys.get_mut(key) else { return };
        (state.state, state.epoch, state.running) = (State::Ramping(FIRST_ROOM), epoch, 0);
        (state.trying, state.counts_until) = (None, now + RAMPING_KEPT);
        state.window.clear();
        self.tried_enough.push(key.clone());
        self.ready.insert(key.clone());
    }

    /// Takes in that a breaker was opened for this time, or closed.
    pub(super) fn called(&mut self, key: &PermitKey, time: Duration, now: Instant) {
        self.called_since_look.insert(key.clone());
        if !time.is_zero() {
            self.key(key, now).open(now + time.min(LONGEST_PERIOD));
            self.ready.insert(key.clone());
        } else if self.keys.get(key).is_some_and(KeyBreaker::is_open) {
            self.close(key, now);
        }
    }

    /// Whether it is to be read which are open.
    pub(super) fn wants_look(&self) -> bool {
        self.unsure && self.is_used()
    }

    /// Takes in that it is being read which are open: calls that come meanwhile are newer.
    pub(super) fn looks(&mut self) {
        self.called_since_look.clear();
    }

    /// Takes in that calls are no longer received.
    pub(super) fn lose(&mut self) {
        self.known = false;
    }

    /// Takes in that calls may be lost.
    pub(super) fn look_again(&mut self) {
        self.unsure = !self.keys.is_empty();
    }

    /// Takes in which are open. What the server does not know yet of a key counts more.
    pub(super) fn looked(
        &mut self,
        open: &[OpenBreaker],
        is_ours: impl Fn(&PermitKey) -> bool,
        is_unsaid: impl Fn(&PermitKey) -> bool,
        now: Instant,
    ) {
        (self.known, self.unsure) = (true, false);
        let newer = std::mem::take(&mut self.called_since_look);
        let is_newer = |key: &PermitKey| newer.contains(key) || is_unsaid(key);
        let listed: BTreeSet<_> = open.iter().map(|it| &it.key).filter(|key| is_ours(key)).collect();
        let stale = self.keys.iter().filter(|(key, it)| it.is_open() && !listed.contains(key));
        let stale: Vec<_> = stale.map(|(key, _)| key.clone()).filter(|key| !is_newer(key)).collect();
        stale.iter().for_each(|key| self.close(key, now));
        for key in listed.into_iter().filter(|key| !is_newer(key)) {
            let state = self.key(key, now);
            if !state.is_open() {
                // Its key says when a message may try.
                state.open(now);
            }
        }
        self.ready.extend(self.keys.keys().cloned());
    }

    /// Follows new rules.
    pub(super) fn follow(&mut self, rules: LimitRules) {
        self.rules = rules;
        // What tries one that is held closed need not.
        let held = self.keys.keys().filter(|key| self.rules.holds_open(key) == Some(false));
        self.tried_enough.extend(held.cloned());
        self.ready.extend(self.keys.keys().cloned());
    }

    /// Whether this process has a message that needs a breaker, or had one lately.
    pub(super) fn is_used(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Returns the next message that may be able to go on. It is still in its line.
    pub(super) fn next_ready(&mut self) -> Option<AskId> {
        while let Some(key) = self.ready.first() {
            if let Some(id) = self.keys.get(key).and_then(|it| it.waiting.front()) {
                return Some(*id);
            }
            self.ready.pop_first();
        }
        None
    }

    /// Takes in that the [next one](Self::next_ready) waits for this key. Returns whether it is another one than before.
    pub(super) fn waits_on(&mut self, id: AskId, key: &PermitKey, now: Instant) -> bool {
        let before = self.asks.get(&id).cloned();
        // Those behind it wait with it.
        let is_other = before.as_ref() != Some(key);
        if is_other {
            self.wait(id, key, false, now);
        } else if let Some(key) = before {
            self.ready.remove(&key);
        }
        is_other
    }

    /// Takes in that the first message of a key may go on.
    pub(super) fn is_ready(&mut self, key: PermitKey) {
        self.ready.insert(key);
    }

    /// Whether there may be a message that can go on, or something to be told.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.tried_enough.is_empty() || !self.changes.is_empty()
    }

    /// Returns keys that nobody has to try any more.
    pub(super) fn take_tried_enough(&mut self) -> Vec<PermitKey> {
        std::mem::take(&mut self.tried_enough)
    }

    /// Returns what the server is to be told.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Returns how many messages wait for each key.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&PermitKey, usize)> {
        self.keys.iter().map(|(key, it)| (key, it.waiting.len())).filter(|(_, waiting)| *waiting > 0)
    }

    /// Forgets keys that nobody needs.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.keys.retain(|_, it| {
            let is_idle = it.running == 0 && it.waiting.is_empty() && it.trying.is_none();
            !is_idle || it.is_open() || it.counts_until > now
        });
    }
}
