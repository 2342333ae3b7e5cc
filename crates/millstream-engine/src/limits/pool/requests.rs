//! Requests: what a message asks for, in which order, and what it gets.

use std::sync::Arc;

use millstream_core::limits::PermitKey;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::permit::Passed;
use super::{Asked, Permit, PermitAnswer, PermitPool, State, Tell};
use crate::limits::breakers::{Admission, Change};
use crate::limits::table::AskId;
use crate::limits::{BreakerNeed, Need, Needs, TokenNeed};

/// A request that is not answered yet.
pub(super) struct Request {
    pub(super) tell: Tell,
    pub(super) needs: Arc<[Need]>,
    pub(super) tokens: Arc<[TokenNeed]>,
    pub(super) breakers: Arc<[BreakerNeed]>,
    /// Breakers that it tries: it needs a token of each. They are the last of its tokens.
    pub(super) tries: Vec<PermitKey>,
    /// The epoch of each breaker, while it is counted as one that may begin.
    pub(super) epochs: Vec<u64>,
    pub(super) waits: bool,
}

impl Request {
    /// Sets the breakers that it tries.
    pub(super) fn set_tries(&mut self, tokens: Vec<TokenNeed>) {
        if self.tries.is_empty() && tokens.is_empty() {
            return;
        }
        let stated = self.tokens.len() - self.tries.len();
        self.tries = tokens.iter().map(|need| need.key.clone()).collect();
        self.tokens = self.tokens.iter().take(stated).cloned().chain(tokens).collect();
    }
}

impl PermitPool {
    /// Takes what a message needs, units and tokens of one key or more, all or none: at once if the consumer has them. Otherwise it asks
    /// for them, and answers are sent to `tell`, maybe before this returns. One that drops is refused if a key is short.
    pub fn take(self: &Arc<Self>, needs: Needs, tell: &Tell) -> Result<Permit, Asked> {
        let (waits, tokens, breakers) = (!needs.drops, needs.tokens.into(), needs.breakers.into());
        let (needs, tell, tries, epochs) = (needs.units.into(), tell.clone(), Vec::new(), Vec::new());
        let mut request = Request { tell, needs, tokens, breakers, tries, epochs, waits };
        let mut state = self.state();
        let id = state.table.new_id();
        let mut waits_for = None;
        if !request.breakers.is_empty() {
            let now = self.keeper.clock().now();
            match state.breakers.admit(id, &request.breakers, now) {
                Admission::Goes(tokens) => {
                    request.set_tries(tokens);
                    request.epochs = state.breakers.begin(&request.breakers, now);
                }
                Admission::Waits(key) => {
                    state.breakers.wait(id, &key, false, now);
                    waits_for = Some(key);
                }
            }
        }
        if let Some(key) = waits_for {
            drop(request.tell.send((id, PermitAnswer::Parked(key))));
        } else {
            if let Some((right, at)) = self.take_at_once(&mut state, &request) {
                return Ok(self.permit(&mut state, id, request, right, at));
            }
            self.ask(&mut state, id, &request);
        }
        state.requests.insert(id, request);
        self.settle(state);
        Err(Asked { pool: self.clone(), id })
    }

    /// Takes what needs no request.
    fn take_at_once(&self, state: &mut State, request: &Request) -> Option<(CancellationToken, Instant)> {
        if request.tokens.is_empty() && request.needs.is_empty() {
            Some((CancellationToken::new(), self.keeper.clock().now()))
        } else if request.tokens.is_empty() {
            self.take_idle(state, &request.needs)
        } else if request.needs.is_empty() && request.tries.is_empty() {
            let free_at = state.tokens.take_free(&request.tokens, self.keeper.clock().now())?;
            Some((CancellationToken::new(), free_at))
        } else {
            None
        }
    }

    /// Asks for what a message needs that its breakers let pass.
    fn ask(&self, state: &mut State, id: AskId, request: &Request) {
        if request.tokens.is_empty() {
            state.table.ask_as(id, &request.needs, request.waits);
        } else {
            state.tokens.ask(id, &request.tokens, self.keeper.clock().now());
        }
    }

    /// Makes the permit of a message that has all it needs.
    pub(super) fn permit(
        self: &Arc<Self>,
        state: &mut State,
        id: AskId,
        request: Request,
        right: CancellationToken,
        free_at: Instant,
    ) -> Permit {
        let Request { needs, tokens, breakers, tries, mut epochs, .. } = request;
        if !breakers.is_empty() {
            state.breakers.tries_no_more(id, &breakers);
            if epochs.is_empty() {
                epochs = state.breakers.begin(&breakers, self.keeper.clock().now());
            }
        }
        let passed = Passed { breakers, tries, epochs };
        Permit::new(self.clone(), state.generation, (needs, tokens), passed, right, free_at)
    }

    /// Lets the first messages go on for which breakers let some pass.
    pub(super) fn let_pass(
        self: &Arc<Self>,
        state: &mut State,
        answers: &mut Vec<(Tell, AskId, PermitAnswer)>,
    ) {
        let now = self.keeper.clock().now();
        for Change { need, time, reason } in state.breakers.take_changes() {
            state.tokens.breaks(&need, time, reason, now);
        }
        for key in state.breakers.take_tried_enough() {
            // They come before those that wait.
            let tries = |(id, request): (&AskId, &Request)| request.tries.contains(&key).then_some(*id);
            let mut ids: Vec<_> = state.requests.iter().filter_map(tries).collect();
            ids.retain(|id| !state.breakers.is_waiting(*id));
            ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
            for id in ids {
                state.table.cancel(id);
                state.tokens.cancel(id, now);
                state.stays_out(id);
                state.breakers.wait(id, &key, true, now);
            }
        }
        while let Some(id) = state.breakers.next_ready() {
            let Some(request) = state.requests.get_mut(&id) else {
                state.breakers.leave(id);
                continue;
            };
            match state.breakers.admit(id, &request.breakers, now) {
                Admission::Goes(tokens) => {
                    state.breakers.leave(id);
                    request.set_tries(tokens);
                    request.epochs = state.breakers.begin(&request.breakers, now);
                    let Some(request) = state.requests.remove(&id) else { continue };
                    if let Some((right, at)) = self.take_at_once(state, &request) {
                        let tell = request.tell.clone();
                        let permit = self.permit(state, id, request, right, at);
                        answers.push((tell, id, PermitAnswer::Granted(permit)));
                    } else {
                        self.ask(state, id, &request);
                        state.requests.insert(id, request);
                    }
                }
                Admission::Waits(key) => {
                    if state.breakers.waits_on(id, &key, now) {
                        answers.push((request.tell.clone(), id, PermitAnswer::Parked(key)));
                    }
                }
            }
        }
    }

    pub(super) fn granted(
        self: &Arc<Self>,
        state: &mut State,
        id: AskId,
        right: CancellationToken,
        free_at: Instant,
    ) -> Option<(Tell, AskId, PermitAnswer)> {
        let request = state.requests.remove(&id)?;
        let is_counted = !request.epochs.is_empty();
        if !state.breakers.passes(&request.breakers, &request.tries, is_counted) {
            // It opened meanwhile, or others began while it waited. It waits again, without anything.
            let now = self.keeper.clock().now();
            state.requests.insert(id, request);
            let (needs, tokens, key) = {
                let request = state.requests.get(&id)?;
                (request.needs.clone(), request.tokens.clone(), request.breakers.first()?.key.clone())
            };
            state.tokens.put_back(&tokens, free_at, now);
            state.table.release(&needs);
            state.stays_out(id);
            state.breakers.wait(id, &key, true, now);
            state.breakers.is_ready(key.clone());
            let tell = state.requests.get(&id)?.tell.clone();
            return Some((tell, id, PermitAnswer::Parked(key)));
        }
        let tell = request.tell.clone();
        let permit = self.permit(state, id, request, right, free_at);
        Some((tell, id, PermitAnswer::Granted(permit)))
    }
}
