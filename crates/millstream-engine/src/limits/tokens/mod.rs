//! What a process knows of its tokens of rates: a state machine without tasks and requests.
//!
//! The server reserves the next tokens of a key for this process, in portions ([`Rate::chunk`]), and says when the first one is free. Each
//! is spent when it is free and a message needs it, or lost soon after. Of a limit that drops, a message has a reservation of its own: the
//! server says at once whether there are tokens. It comes first, and is given back if the message does not begin after all.

mod exchange;
mod key_tokens;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use millstream_core::limits::{LimitRules, PermitKey};
use millstream_core::permits::Rate;
use millstream_core::rates::LONGEST_PERIOD;
use tokio::time::Instant;

use crate::limits::TokenNeed;
use crate::limits::table::AskId;
use key_tokens::KeyTokens;

/// Longest time after which a process receives the call about a key that it closed itself.
const LATE: Duration = Duration::from_secs(1);

/// For whom tokens are being reserved.
#[derive(Debug)]
pub(super) enum For {
    /// For all that wait for this key, so many, by what was known of it at the time with this number.
    Key(PermitKey, u32, u64),
    /// For one message alone: the position of the key among its quotas, and what it needs of it.
    Message(AskId, usize, TokenNeed),
}

/// A message that needs tokens.
#[derive(Debug)]
struct Ask {
    /// What it waits for.
    needs: Arc<[TokenNeed]>,
    /// What it does not wait for, and the positions of those that it has.
    quotas: Vec<TokenNeed>,
    owned: Vec<usize>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// It waits for tokens of this key.
    Parked(PermitKey),
    /// Its tokens are free, and set aside while it asks for units.
    Promised,
    /// It is looked at, or waits for units. Its tokens are others' meanwhile, but for those of quotas.
    Elsewhere,
    /// So many of its quotas have no answer.
    Asking(usize),
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenNotice {
    /// Its tokens are set aside for it: it asks for units now, and [spends](Tokens::spend) them.
    Ready(AskId),
    /// It waits for this key.
    Parked(AskId, PermitKey),
    /// This key is short, and the message does not wait for it.
    Refused(AskId, PermitKey),
}

/// A key that is to be closed, or opened.
#[derive(Debug)]
struct Closing {
    rate: Rate,
    /// Until when; `None`: it is to be opened.
    until: Option<Instant>,
    /// Why a breaker is opened, if it is one.
    breaks: Option<String>,
}

/// What a process knows of its tokens.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    keys: HashMap<PermitKey, KeyTokens>,
    asks: HashMap<AskId, Ask>,
    /// Keys of which tokens are to be reserved.
    lacking: VecDeque<PermitKey>,
    /// When the first that waits for a key may go on.
    timers: BTreeSet<(Instant, PermitKey)>,
    /// Messages whose quotas are to be asked for.
    fresh: VecDeque<AskId>,
    /// What is to be charged, or given back, of each key.
    charges: BTreeMap<PermitKey, (Rate, i64)>,
    /// Until when keys are to be closed; `None`: they are to be opened.
    closes: BTreeMap<PermitKey, Closing>,
    /// Whether the rules are to be read again.
    unsure: bool,
    notices: Vec<TokenNotice>,
    rules: LimitRules,
}

impl Tokens {
    /// Spends what a message needs, if it is free and nobody waits for it.
    pub(super) fn take_free(&mut self, needs: &[TokenNeed], now: Instant) -> Option<Instant> {
        let is_free = needs.iter().all(|need| {
            let key = self.keys.get_mut(&need.key).filter(|_| !need.drops);
            key.is_some_and(|key| key.waiting() == 0 && key.is_free(need.tokens, false, now))
        });
        is_free.then(|| self.spend_all(needs, now))
    }

    /// Takes back the tokens of a message that had them since this time, and did not begin: another one may spend them while there is time.
    pub(super) fn put_back(&mut self, needs: &[TokenNeed], free_at: Instant, now: Instant) {
        for need in needs {
            if need.drops {
                self.charge(need, -i64::from(need.tokens));
            } else if let Some(key) = self.keys.get_mut(&need.key)
                // Those of before it was closed are void.
                && key.closed.is_none_or(|until| until <= free_at)
            {
                key.put_back(need.tokens, free_at);
                self.tend(&need.key, now);
            }
        }
    }

    /// Asks for what a message needs and is not [free](Self::take_free). The outcome comes as a [notice](Self::take_notices).
    pub(super) fn ask(&mut self, id: AskId, needs: &Arc<[TokenNeed]>, now: Instant) {
        let (quotas, waits): (Vec<_>, Vec<_>) = needs.iter().cloned().partition(|need| need.drops);
        // The usual case: all of one kind.
        let needs = if quotas.is_empty() { needs.clone() } else { waits.into() };
        let asks = !quotas.is_empty();
        let stage = if asks { Stage::Asking(quotas.len()) } else { Stage::Elsewhere };
        self.asks.insert(id, Ask { needs, quotas, owned: Vec::new(), stage });
        if asks {
            self.fresh.push_back(id);
        } else {
            self.park(id, now);
        }
    }

    /// Whether this process has a message that needs tokens, or had one lately.
    pub(super) fn is_used(&self) -> bool {
        !self.keys.is_empty() || !self.asks.is_empty() || self.has_others()
    }

    /// Whether there is something to reserve or to charge.
    pub(super) fn has_work(&self) -> bool {
        !self.lacking.is_empty() || !self.fresh.is_empty() || self.has_others()
    }

    fn has_others(&self) -> bool {
        !self.charges.is_empty() || !self.closes.is_empty() || self.unsure
    }

    /// Returns when the next message may go on that waits for tokens that are reserved.
    pub(super) fn next_free(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Lets messages go on whose tokens are free. [Notices](TokenNotice::Ready) name them.
    pub(super) fn let_go(&mut self, now: Instant) {
        while let Some((at, key)) = self.timers.first().cloned()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(state) = self.keys.get_mut(&key) {
                state.timer = None;
            }
            while let Some(id) = self.front_of(&key, now) {
                if let Some(state) = self.keys.get_mut(&key) {
                    state.unpark(id);
                }
                // Its other keys may be short.
                self.park(id, now);
            }
            self.tend(&key, now);
        }
    }

    fn front_of(&mut self, key: &PermitKey, now: Instant) -> Option<AskId> {
        let (id, at) = self.keys.get_mut(key)?.front_free(now)?;
        (at <= now).then_some(id)
    }

    /// Spends the tokens of a message that has its units. Returns since when they were free; `None` if they are others' by now: then it waits
    /// for tokens again, without units.
    pub(super) fn spend(&mut self, id: AskId, now: Instant) -> Option<Instant> {
        let Some(ask) = self.asks.get_mut(&id) else { return Some(now) };
        let set_aside = matches!(ask.stage, Stage::Promised);
        ask.stage = Stage::Elsewhere;
        let needs = ask.needs.clone();
        let mut is_free = true;
        for need in &*needs {
            let key = self.keys.get_mut(&need.key);
            is_free &= key.is_some_and(|key| {
                let is_free = key.is_free(need.tokens, set_aside, now);
                if set_aside {
                    key.promised = key.promised.saturating_sub(need.tokens);
                }
                is_free
            });
        }
        let mut free_at = None;
        if is_free {
            free_at = Some(self.spend_all(&needs, now));
            self.asks.remove(&id);
        } else {
            self.park(id, now);
        }
        needs.iter().for_each(|need| self.tend(&need.key, now));
        free_at
    }

    /// Leaves the tokens of a message to others while it waits for units.
    pub(super) fn unpromise(&mut self, id: AskId, now: Instant) {
        let Some(ask) = self.asks.get_mut(&id) else { return };
        if matches!(ask.stage, Stage::Promised) {
            ask.stage = Stage::Elsewhere;
            for need in &*ask.needs {
                if let Some(key) = self.keys.get_mut(&need.key) {
                    key.promised = key.promised.saturating_sub(need.tokens);
                }
            }
            let needs = ask.needs.clone();
            needs.iter().for_each(|need| self.tend(&need.key, now));
        }
    }

    /// Gives up a message.
    pub(super) fn cancel(&mut self, id: AskId, now: Instant) {
        self.unpromise(id, now);
        let Some(ask) = self.asks.remove(&id) else { return };
        if let Stage::Parked(key) = &ask.stage {
            if let Some(state) = self.keys.get_mut(key) {
                state.unpark(id);
            }
            self.tend(key, now);
        }
        self.give_back(&ask);
    }

    /// Gives back the quotas of a message.
    fn give_back(&mut self, ask: &Ask) {
        for need in ask.owned.iter().filter_map(|n| ask.quotas.get(*n)) {
            self.charge(need, -i64::from(need.tokens));
        }
    }

    /// Charges tokens more than those that were spent, or gives some back.
    pub(super) fn charge(&mut self, need: &TokenNeed, tokens: i64) {
        let rate = self.rules.rate(&need.key, need.rate);
        let charged = self.charges.entry(need.key.clone()).or_insert((rate, 0));
        *charged = (rate, charged.1.saturating_add(tokens));
    }

    /// Closes a key for all.
    pub(super) fn close(&mut self, need: &TokenNeed, time: Duration, now: Instant) {
        let (rate, until) = (self.rules.rate(&need.key, need.rate), now + time.min(LONGEST_PERIOD));
        match self.keys.get_mut(&need.key) {
            // Others of this process said so already.
            Some(state) if !time.is_zero() && state.closed.is_some_and(|known| known >= until) => return,
            Some(state) => state.close(until),
            None => {}
        }
        // A later one counts, unless both close it: then the longer one does.
        let known = self.closes.get(&need.key).and_then(|known| known.until);
        let until = (!time.is_zero()).then(|| known.map_or(until, |known| known.max(until)));
        self.closes.insert(need.key.clone(), Closing { rate, until, breaks: None });
    }

    /// Opens a breaker for all, for this reason, or closes it. The last call counts.
    pub(super) fn breaks(&mut self, need: &TokenNeed, time: Duration, reason: String, now: Instant) {
        let until = (!time.is_zero()).then(|| now + time.min(LONGEST_PERIOD));
        if let Some(state) = self.keys.get_mut(&need.key) {
            state.close(until.unwrap_or(now));
            self.tend(&need.key, now);
        }
        self.closes.insert(need.key.clone(), Closing { rate: need.rate, until, breaks: Some(reason) });
    }

    /// Gives back the token of a message that tried a breaker, and says nothing of it: another one may try at once.
    pub(super) fn try_again(&mut self, need: &TokenNeed, now: Instant) {
        self.charge(need, -i64::from(need.tokens));
        if let Some(state) = self.keys.get_mut(&need.key) {
            state.ask_at = None;
        }
        self.tend(&need.key, now);
    }

    /// Whether the key is to be closed, or opened, and the server does not know.
    pub(super) fn is_to_close(&self, key: &PermitKey) -> bool {
        self.closes.contains_key(key)
    }

    /// Takes in that a key was closed, or opened: what is reserved, or being reserved, is void.
    pub(super) fn closed(&mut self, key: &PermitKey, time: Duration, now: Instant) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let until = now + time.min(LONGEST_PERIOD);
        // What it closed itself comes back to it, a little later.
        let is_own = state.closed.is_some_and(|known| known + LATE >= until);
        if time.is_zero() || !is_own {
            state.close(until);
            self.tend(key, now);
        }
    }

    /// Takes in that calls may be lost, or what the server knew.
    pub(super) fn look_again(&mut self, now: Instant) {
        let mut keys: Vec<_> = self.keys.keys().cloned().collect();
        keys.sort_unstable();
        for key in keys {
            // What is reserved stays so: it is spent within seconds, and each time it were void a slow rate would lose it.
            if let Some(state) = self.keys.get_mut(&key) {
                state.ask_at = None;
            }
            self.tend(&key, now);
        }
        self.unsure = !self.keys.is_empty();
    }

    /// Follows new rules.
    pub(super) fn follow(&mut self, rules: LimitRules, now: Instant) {
        self.rules = rules;
        let mut changed = Vec::new();
        for (key, state) in &mut self.keys {
            let rate = self.rules.rate(key, state.stated);
            if rate != state.rate {
                state.rate = rate;
                state.void();
                changed.push(key.clone());
            }
        }
        changed.sort_unstable();
        changed.iter().for_each(|key| self.tend(key, now));
    }

    /// Whether there are notices that were not sent yet.
    pub(super) fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// Returns the notices that were not sent yet.
    pub(super) fn take_notices(&mut self) -> Vec<TokenNotice> {
        std::mem::take(&mut self.notices)
    }

    /// Forgets keys that nobody needs.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.keys.retain(|_, key| !key.is_nothing(now));
    }

    /// Returns how many messages wait for each key.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&PermitKey, usize)> {
        self.keys.iter().map(|(key, state)| (key, state.waiting())).filter(|(_, waiting)| *waiting > 0)
    }

    /// Returns since when the first of them was free.
    fn spend_all(&mut self, needs: &[TokenNeed], now: Instant) -> Instant {
        let mut earliest = now;
        for need in needs {
            if let Some(key) = self.keys.get_mut(&need.key) {
                earliest = earliest.min(key.spend(need.tokens, now));
            }
        }
        earliest
    }

    /// Sets the tokens of a message aside, or lets it wait for the key that is free last.
    fn park(&mut self, id: AskId, now: Instant) {
        let Some(needs) = self.asks.get(&id).map(|ask| ask.needs.clone()) else { return };
        let mut last: Option<(Option<Instant>, &TokenNeed)> = None;
        for need in &*needs {
            let rate = self.rules.rate(&need.key, need.rate);
            let state =
                self.keys.entry(need.key.clone()).or_insert_with(|| KeyTokens::new(need.rate, rate, now));
            let at = state.free_at(need.tokens, now);
            let is_free = at.is_some_and(|at| at <= now) && state.is_turn_of(id);
            let is_later = match (&last, at) {
                (None, _) | (Some((Some(_), _)), None) => true,
                (Some((Some(latest), _)), Some(at)) => at > *latest,
                (Some((None, _)), _) => false,
            };
            if !is_free && is_later {
                last = Some((at, need));
            }
        }
        match last {
            None => {
                for need in &*needs {
                    if let Some(key) = self.keys.get_mut(&need.key) {
                        key.promised += need.tokens;
                    }
                }
                if let Some(ask) = self.asks.get_mut(&id) {
                    ask.stage = Stage::Promised;
                }
                self.notices.push(TokenNotice::Ready(id));
            }
            Some((_, need)) => {
                if let Some(key) = self.keys.get_mut(&need.key) {
                    key.park(id, need.tokens);
                }
                if let Some(ask) = self.asks.get_mut(&id) {
                    ask.stage = Stage::Parked(need.key.clone());
                }
                self.notices.push(TokenNotice::Parked(id, need.key.clone()));
                self.tend(&need.key, now);
            }
        }
    }

    /// Takes care that tokens are reserved while something waits for them, and that it goes on once they are free.
    fn tend(&mut self, key: &PermitKey, now: Instant) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let is_short = !state.asking && !state.is_lacking && state.missing(now) > 0;
        let later = state.ask_at.filter(|at| is_short && *at > now);
        if is_short && later.is_none() {
            state.is_lacking = true;
            self.lacking.push_back(key.clone());
        }
        let at = state.front_free(now).map(|(_, at)| at);
        let at = [at, later].into_iter().flatten().min();
        let before = std::mem::replace(&mut state.timer, at);
        if at != before {
            if let Some(before) = before {
                self.timers.remove(&(before, key.clone()));
            }
            if let Some(at) = at {
                self.timers.insert((at, key.clone()));
            }
        }
    }
}
