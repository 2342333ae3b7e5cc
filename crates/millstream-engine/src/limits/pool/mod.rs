//! The permits of one consumer or worker: what its messages ask for, and what they have.

mod alone;
mod permit;
mod requests;
mod superseding;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::error::Result;
use millstream_core::leases::reliable;
use millstream_core::limits::{LimitRules, PermitKey};
use millstream_core::permits::{Call, PermitHolder, Permits};
use millstream_core::{Backend, Envelope, LimitName, MessageId, Observer, Timestamp};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answers::Answers;
use crate::keeper::Keeper;
use crate::limits::breakers::Breakers;
use crate::limits::table::{AskId, Notice, Table};
use crate::limits::tokens::{TokenNotice, Tokens};
use crate::limits::{LimitSet, Need, Needs};
use requests::Request;
use superseding::Superseding;

pub use alone::Obtaining;
pub use permit::{Begun, CallEnd, Permit, Spent};

/// Answers go here, each with the number of its request.
type Tell = UnboundedSender<(u64, PermitAnswer)>;

/// What comes of a request.
#[derive(Debug)]
pub enum PermitAnswer {
    /// The message has all it needs, until this is dropped.
    Granted(Permit),
    /// The message waits for this key. Another answer follows.
    Parked(PermitKey),
    /// The message does not wait, and this key is short.
    Refused(PermitKey),
}

/// A request that is not answered yet. Dropping it gives it up.
#[derive(Debug)]
pub struct Asked {
    pool: Arc<PermitPool>,
    id: AskId,
}

impl Asked {
    /// Returns the number that its answers have.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.stays_out(self.id);
        // `None`: it was granted or refused.
        if let Some(request) = state.requests.remove(&self.id) {
            if !state.breakers.leave(self.id) {
                state.table.cancel(self.id);
                if !request.tokens.is_empty() {
                    state.tokens.cancel(self.id, self.pool.keeper.clock().now());
                }
            }
            self.pool.settle(state);
        }
    }
}

/// The right under which all units of the process are held.
pub(super) struct Holding {
    pub(super) holder: PermitHolder,
    /// Position behind the calls that were read.
    pub(super) seen: MessageId,
    /// Until when the right can be relied on.
    pub(super) deadline: Instant,
    pub(super) right: CancellationToken,
}

pub(super) struct State {
    pub(super) table: Table,
    pub(super) tokens: Tokens,
    pub(super) breakers: Breakers,
    requests: HashMap<AskId, Request>,
    superseding: Superseding,
    /// When records of rates that say nothing any more are dropped next.
    pub(super) drop_idle_at: Option<Instant>,
    /// When the table is swept next, if there is something to sweep.
    pub(super) sweep_at: Option<Instant>,
    /// Grows with each holder. Permits of an earlier one are lost.
    pub(super) generation: u64,
    pub(super) holding: Option<Holding>,
    /// Holders that were ended, and of which something is to be freed.
    pub(super) ended: Vec<PermitHolder>,
    /// Number of the last exchange.
    pub(super) number: u64,
    /// When another holder may have to be ended.
    pub(super) check_at: Option<Instant>,
    /// The server that answered last, and when everything that waits was last asked for.
    pub(super) looked: Option<(String, Instant)>,
}

/// The permits of one consumer or worker.
pub struct PermitPool {
    pub(super) permits: Arc<dyn Permits>,
    /// Unique to this start of the consumer.
    pub(super) name: String,
    /// The operation whose success shows that the server answers, while no units are held.
    pub(super) witness: &'static str,
    pub(super) keeper: Keeper,
    limits: LimitSet,
    state: Mutex<State>,
    /// Notified when there may be something to exchange.
    pub(super) work: Notify,
    /// Notified when something waits.
    pub(super) waits: Notify,
    /// Notified when something waits for tokens.
    pub(super) timers: Notify,
    /// Counts holders that have joined or were lost, and rights that are certain again.
    pub(super) joined: watch::Sender<u64>,
    pub(super) answers: Answers,
}

impl State {
    /// Takes in that a message does not begin for now, since it waits for something else than breakers, or ends: others may pass, and try.
    fn stays_out(&mut self, id: AskId) {
        let Some(request) = self.requests.get_mut(&id).filter(|it| !it.breakers.is_empty()) else { return };
        let epochs = std::mem::take(&mut request.epochs);
        self.breakers.end(&request.breakers, &epochs);
        self.breakers.tries_no_more(id, &request.breakers);
    }

    /// Whether something is kept for the next message.
    pub(super) fn has_kept(&self) -> bool {
        self.table.has_kept() || self.tokens.is_used() || self.breakers.is_used()
    }

    /// Whether a holder is to join: a consumer with tokens or breakers needs the calls about rules and closed keys.
    pub(super) fn joins(&self) -> bool {
        self.holding.is_none() && (self.tokens.is_used() || self.breakers.is_used())
    }
}

impl PermitPool {
    /// Creates the pool of a consumer or worker with these limits; `None` if there are none. `name` is unique to this start, and made one that
    /// holders may have; the units end unless `keeper` renews them. The success of the operation `witness` shows that the server answers,
    /// while no units are held. Nothing is sent before something is asked for, and nothing works unless the pool is
    /// [spawned](Self::spawn).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) if the backend knows no limits.
    pub fn of(
        backend: &Backend,
        name: &str,
        keeper: Keeper,
        limits: &LimitSet,
        witness: &'static str,
    ) -> Result<Option<Arc<Self>>> {
        if limits.is_empty() {
            return Ok(None);
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name = name.chars().map(|c| if is_plain(c) { c } else { '-' }).collect::<String>();
        PermitHolder::new(&*name)?;
        Ok(Some(Self::new(backend.permits()?.clone(), name, keeper, limits.clone(), witness)))
    }

    fn new(
        permits: Arc<dyn Permits>,
        name: String,
        keeper: Keeper,
        limits: LimitSet,
        witness: &'static str,
    ) -> Arc<Self> {
        let state = State {
            table: Table::new(!limits.drops()),
            tokens: Tokens::default(),
            breakers: Breakers::default(),
            requests: HashMap::new(),
            superseding: Superseding::default(),
            drop_idle_at: None,
            sweep_at: None,
            generation: 0,
            holding: None,
            ended: Vec::new(),
            number: 0,
            check_at: None,
            looked: None,
        };
        Arc::new(Self {
            permits,
            name,
            witness,
            answers: Answers::new(keeper.ttl()),
            keeper,
            limits,
            state: Mutex::new(state),
            work: Notify::new(),
            waits: Notify::new(),
            timers: Notify::new(),
            joined: watch::Sender::new(0),
        })
    }

    /// Takes units that the consumer has idle. Returns the right under which they are held, and the time.
    fn take_idle(&self, state: &mut State, needs: &[Need]) -> Option<(CancellationToken, Instant)> {
        let Holding { right, deadline, .. } = state.holding.as_ref()?;
        // By the clock too: the loop that watches the deadline may be late.
        let now = self.keeper.clock().now();
        let is_live = !right.is_cancelled() && *deadline > now;
        (is_live && state.table.take_idle(needs)).then(|| (right.clone(), now))
    }

    /// Returns a receiver that changes when [`Permit::counts`] may be known.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.joined.subscribe()
    }

    /// Returns what a message needs. The observer receives panics of keys and costs.
    #[must_use]
    pub fn needs(&self, message: &Envelope, observer: &dyn Observer) -> Needs {
        self.limits.needs(message, observer)
    }

    /// Returns how many messages wait for each limit, by name.
    #[must_use]
    pub fn waiting(&self) -> Vec<(LimitName, usize)> {
        let mut waiting: Vec<_> = self.limits.names().map(|name| (name.clone(), 0)).collect();
        waiting.sort_by(|(one, _), (other, _)| one.cmp(other));
        let state = self.state();
        let waiting_for = state.table.waiting().chain(state.tokens.waiting()).chain(state.breakers.waiting());
        for (key, messages) in waiting_for {
            let limit = key.parts().0;
            if let Some((_, all)) = waiting.iter_mut().find(|(name, _)| name.as_str() == limit) {
                *all += messages;
            }
        }
        waiting
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the pending notices, and wakes the loops.
    pub(super) fn settle(self: &Arc<Self>, mut guard: MutexGuard<'_, State>) {
        let state = &mut *guard;
        let (mut answers, mut parked) = (Vec::new(), false);
        loop {
            let notices = state.table.take_notices();
            parked |= notices.iter().any(|(_, notice)| matches!(notice, Notice::Parked(_)));
            for (id, notice) in notices {
                answers.extend(self.told(state, id, notice));
            }
            if state.tokens.is_used() {
                state.tokens.let_go(self.keeper.clock().now());
            }
            for notice in state.tokens.take_notices() {
                answers.extend(self.token_told(state, notice));
            }
            if state.breakers.has_ready() {
                self.let_pass(state, &mut answers);
            }
            // Each may lead to others: none is left, or who has units would not know.
            if !state.table.has_notices() && !state.tokens.has_notices() && !state.breakers.has_ready() {
                break;
            }
        }
        for key in state.table.take_wanted() {
            state.superseding.wants(&key);
        }
        let table = &state.table;
        state.superseding.settle(|key| table.wanting(key));
        let has_kept = state.has_kept();
        let joins = state.joins();
        let works = joins
            || state.table.has_work()
            || state.tokens.has_work()
            || state.breakers.wants_look()
            || state.sweep_at.is_none() && has_kept;
        let has_timers = state.tokens.next_free().is_some();
        drop(guard);
        if works {
            self.work.notify_one();
        }
        if parked {
            self.waits.notify_one();
        }
        if has_timers {
            self.timers.notify_one();
        }
        // After the lock: a permit that nobody takes is dropped here, and gives back what it has.
        for (tell, id, answer) in answers {
            drop(tell.send((id, answer)));
        }
    }

    /// Returns the answer that comes of a notice about units.
    fn told(
        self: &Arc<Self>,
        state: &mut State,
        id: AskId,
        notice: Notice,
    ) -> Option<(Tell, AskId, PermitAnswer)> {
        let request = state.requests.get(&id)?;
        if state.breakers.is_waiting(id) {
            // It was granted while it was taken back.
            if matches!(notice, Notice::Granted) {
                let needs = request.needs.clone();
                state.table.release(&needs);
            }
            return None;
        }
        let now = (!request.tokens.is_empty()).then(|| self.keeper.clock().now());
        match notice {
            Notice::Parked(key) => {
                state.superseding.wants(&key);
                state.stays_out(id);
                let request = state.requests.get(&id)?;
                if let Some(now) = now {
                    // Others may spend its tokens meanwhile.
                    state.tokens.unpromise(id, now);
                }
                Some((request.tell.clone(), id, PermitAnswer::Parked(key)))
            }
            Notice::Refused(key) => {
                if let Some(now) = now {
                    state.tokens.cancel(id, now);
                }
                state.stays_out(id);
                let request = state.requests.remove(&id)?;
                Some((request.tell, id, PermitAnswer::Refused(key)))
            }
            Notice::Granted => {
                let right = state.holding.as_ref().map(|holding| holding.right.clone())?;
                let at = match now {
                    None => self.keeper.clock().now(),
                    Some(now) => match state.tokens.spend(id, now) {
                        Some(free_at) => free_at,
                        None => {
                            // It waits for tokens again, without units.
                            let needs = request.needs.clone();
                            state.table.release(&needs);
                            return None;
                        }
                    },
                };
                self.granted(state, id, right, at)
            }
        }
    }

    /// Returns the answer that comes of a notice about tokens.
    fn token_told(
        self: &Arc<Self>,
        state: &mut State,
        notice: TokenNotice,
    ) -> Option<(Tell, AskId, PermitAnswer)> {
        let (TokenNotice::Ready(id) | TokenNotice::Parked(id, _) | TokenNotice::Refused(id, _)) = &notice;
        if state.breakers.is_waiting(*id) {
            // It was taken back.
            return None;
        }
        match notice {
            TokenNotice::Parked(id, key) => {
                if !state.requests.get(&id)?.tries.contains(&key) {
                    state.stays_out(id);
                }
                let request = state.requests.get(&id)?;
                Some((request.tell.clone(), id, PermitAnswer::Parked(key)))
            }
            TokenNotice::Refused(id, key) => {
                state.stays_out(id);
                let request = state.requests.remove(&id)?;
                Some((request.tell, id, PermitAnswer::Refused(key)))
            }
            TokenNotice::Ready(id) => {
                let request = state.requests.get(&id)?;
                let (needs, waits) = (request.needs.clone(), request.waits);
                let right = match needs.is_empty() {
                    true => Some(CancellationToken::new()),
                    false => self.take_idle(state, &needs).map(|(right, _)| right),
                };
                let Some(right) = right else {
                    state.table.ask_as(id, &needs, waits);
                    return None;
                };
                // They were set aside just now.
                let Some(free_at) = state.tokens.spend(id, self.keeper.clock().now()) else {
                    state.table.release(&needs);
                    return None;
                };
                self.granted(state, id, right, free_at)
            }
        }
    }

    /// Records that the server has renewed the right, by a request of the time `asked`.
    pub(super) fn renewed(&self, state: &mut State, asked: Instant, server: &str, now: Timestamp) {
        self.answers.record_answer(asked, server, now);
        if let Some(holding) = &mut state.holding {
            let before = std::mem::replace(&mut holding.deadline, asked + reliable(self.keeper.ttl()));
            let was_over = before <= self.keeper.clock().now();
            if holding.right.is_cancelled() {
                // What runs was notified. What starts from now on can rely on the right again.
                holding.right = CancellationToken::new();
                self.joined.send_modify(|joined| *joined += 1);
            } else if was_over {
                self.joined.send_modify(|joined| *joined += 1);
            }
        }
        state.table.set_certain(state.holding.is_some());
    }

    /// Records that the holder was ended.
    pub(super) fn lose(&self, state: &mut State) {
        let Some(holding) = state.holding.take() else { return };
        tracing::warn!(holder = %holding.holder, "the permits are lost: their messages are given up, and others may run");
        state.generation += 1;
        state.table.lose();
        state.breakers.lose();
        state.superseding.lose();
        holding.right.cancel();
        self.joined.send_modify(|joined| *joined += 1);
    }

    /// Takes in calls.
    pub(super) fn called(&self, state: &mut State, calls: &[Call], missed: bool) {
        for call in calls {
            match call {
                Call::Closed(key, time) => {
                    let now = self.keeper.clock().now();
                    state.tokens.closed(key, *time, now);
                    if self.is_breaker(key) {
                        state.breakers.called(key, *time, now);
                    }
                }
                call => state.table.called(call),
            }
        }
        if missed {
            state.table.look_again(None);
            state.tokens.look_again(self.keeper.clock().now());
            state.breakers.look_again();
        }
    }

    /// Whether the key is that of a breaker.
    pub(super) fn is_breaker(&self, key: &PermitKey) -> bool {
        let name = key.parts().0;
        self.limits.breakers().any(|breaker| breaker.as_str() == name)
    }

    pub(super) fn ruled(&self, state: &mut State, rules: LimitRules) {
        state.tokens.follow(rules.clone(), self.keeper.clock().now());
        state.breakers.follow(rules.clone());
        state.table.look_again(Some(rules));
    }
}

impl fmt::Debug for PermitPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitPool").field("name", &self.name).finish_non_exhaustive()
    }
}
