//! What is asked of the server, and what comes of it.

use std::time::Duration;

use millstream_core::limits::LimitRules;
use millstream_core::limits::PermitKey;
use millstream_core::permits::{Lead, MAX_KEYS, MAX_STEPS, Rate, TokenStep};
use tokio::time::Instant;

use super::{Closing, For, Stage, TokenNotice, Tokens};
use crate::limits::table::AskId;

impl Tokens {
    /// Returns the steps of the next reservation, and for whom it is.
    pub(in crate::limits) fn reservation(&mut self, now: Instant) -> (Vec<TokenStep>, Vec<For>) {
        let (mut steps, mut under_way) = (Vec::new(), Vec::new());
        // What closes a key comes before what is reserved of it.
        while steps.len() < MAX_STEPS / 4
            && let Some((key, Closing { rate, until, breaks })) = self.closes.pop_first()
        {
            let time = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
            // One whose time is over meanwhile would open what others have closed.
            if until.is_none() || !time.is_zero() {
                steps.push(match breaks {
                    None => TokenStep::Closes { key, time, rate },
                    Some(reason) => TokenStep::Breaks { key, time, rate, reason },
                });
            }
        }
        while steps.len() < MAX_STEPS / 2
            && let Some((key, (rate, tokens))) = self.charges.pop_first()
        {
            steps.push(TokenStep::Charges { key, tokens, rate });
        }
        // Any step brings new rules.
        if std::mem::take(&mut self.unsure)
            && let Some((key, state)) = self.keys.iter().next()
        {
            steps.push(TokenStep::Charges { key: key.clone(), tokens: 0, rate: state.rate });
        }
        // Keys without end must not keep messages from their quotas.
        let most = if self.fresh.is_empty() { MAX_STEPS - MAX_KEYS } else { MAX_STEPS * 3 / 4 };
        let mut later = Vec::new();
        while steps.len() < most
            && let Some(key) = self.lacking.pop_front()
        {
            if self.closes.contains_key(&key) {
                // There were too many to close.
                later.push(key);
                continue;
            }
            let Some(state) = self.keys.get_mut(&key) else { continue };
            state.is_lacking = false;
            let tokens = state.missing(now);
            if tokens > 0 && !state.asking {
                state.asking = true;
                steps.push(TokenStep::Reserves { key: key.clone(), tokens, rate: state.rate, waits: true });
                under_way.push(For::Key(key, tokens, state.number));
            }
        }
        self.lacking.extend(later);
        while steps.len() < MAX_STEPS - MAX_KEYS
            && let Some(id) = self.fresh.pop_front()
        {
            let Some(ask) = self.asks.get(&id) else { continue };
            for (n, need) in ask.quotas.iter().enumerate() {
                let (rate, key, tokens) =
                    (self.rules.rate(&need.key, need.rate), need.key.clone(), need.tokens);
                steps.push(TokenStep::Reserves { key, tokens, rate, waits: false });
                under_way.push(For::Message(id, n, need.clone()));
            }
        }
        (steps, under_way)
    }

    /// Takes in what was reserved, by a reply of this time.
    pub(in crate::limits) fn reserved(&mut self, under_way: Vec<For>, leads: Vec<Lead>, now: Instant) {
        for (whom, lead) in under_way.into_iter().zip(leads) {
            match whom {
                For::Key(key, tokens, number) => {
                    if let Some(state) = self.keys.get_mut(&key) {
                        state.asking = false;
                        if state.number == number {
                            state.reserved(now, lead, tokens);
                        }
                    }
                    self.tend(&key, now);
                }
                For::Message(id, n, need) => {
                    let has_tokens = matches!(lead, Lead::At(_));
                    if has_tokens && !self.asks.contains_key(&id) {
                        // Given up meanwhile.
                        self.charge(&need, -i64::from(need.tokens));
                    }
                    self.answered(id, n, has_tokens, now);
                }
            }
        }
    }

    /// Takes in the answer about one quota of a message.
    fn answered(&mut self, id: AskId, n: usize, has_tokens: bool, now: Instant) {
        let Some(ask) = self.asks.get_mut(&id) else { return };
        let Stage::Asking(left) = &mut ask.stage else { return };
        *left = left.saturating_sub(1);
        let is_last = *left == 0;
        if has_tokens {
            ask.owned.push(n);
        }
        if !is_last {
            return;
        }
        let short = (0..ask.quotas.len()).find(|n| !ask.owned.contains(n));
        match short.and_then(|n| ask.quotas.get(n)).map(|need| need.key.clone()) {
            None => self.park(id, now),
            Some(key) => {
                self.cancel(id, now);
                self.notices.push(TokenNotice::Refused(id, key));
            }
        }
    }

    /// Takes in that the rules have changed, so that nothing was reserved.
    pub(in crate::limits) fn changed(&mut self, under_way: Vec<For>, rules: LimitRules, now: Instant) {
        self.again(under_way, now);
        self.follow(rules, now);
    }

    /// Takes in that a reservation failed: what it may have reserved is lost, and what it charged may have to be charged again.
    pub(in crate::limits) fn failed(&mut self, steps: Vec<TokenStep>, under_way: Vec<For>, now: Instant) {
        self.again(under_way, now);
        for step in steps {
            match step {
                TokenStep::Closes { key, time, rate } => self.closes_again(key, time, rate, None, now),
                TokenStep::Breaks { key, time, rate, reason } => {
                    self.closes_again(key, time, rate, Some(reason), now);
                }
                // What is charged twice makes its key slower; what is given back twice would make tokens.
                TokenStep::Charges { key, tokens, rate } if tokens > 0 => {
                    let charged = self.charges.entry(key).or_insert((rate, 0));
                    charged.1 = charged.1.saturating_add(tokens);
                }
                TokenStep::Charges { .. } | TokenStep::Reserves { .. } => {}
            }
        }
    }

    fn closes_again(
        &mut self,
        key: PermitKey,
        time: Duration,
        rate: Rate,
        breaks: Option<String>,
        now: Instant,
    ) {
        let until = (!time.is_zero()).then(|| now + time);
        self.closes.entry(key).or_insert(Closing { rate, until, breaks });
    }

    fn again(&mut self, under_way: Vec<For>, now: Instant) {
        for whom in under_way {
            match whom {
                For::Key(key, ..) => {
                    if let Some(state) = self.keys.get_mut(&key) {
                        state.asking = false;
                    }
                    self.tend(&key, now);
                }
                // The first of its keys stands for all.
                For::Message(id, 0, _) => {
                    if let Some(ask) = self.asks.get_mut(&id) {
                        ask.stage = Stage::Asking(ask.quotas.len());
                        self.fresh.push_back(id);
                    }
                }
                For::Message(..) => {}
            }
        }
    }
}
