//! The permits of one consumer: what its messages ask for, and what they have.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::leases::reliable;
use millstream_core::limits::{LimitRules, PermitKey};
use millstream_core::permits::{Call, PermitHolder, Permits};
use millstream_core::{LimitName, MessageId, Timestamp};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answers::Answers;
use crate::keeper::Keeper;
use crate::limits::table::{AskId, Notice, Table};
use crate::limits::{LimitSet, Need};

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
        // `None`: it was granted or refused.
        if state.tells.remove(&self.id).is_some() {
            state.table.cancel(self.id);
            self.pool.settle(state);
        }
    }
}

/// Units that a message has, of all keys that it needs. Dropping it gives them back.
pub struct Permit {
    pool: Arc<PermitPool>,
    generation: u64,
    needs: Arc<[Need]>,
    right: CancellationToken,
}

impl Permit {
    /// Returns a token that is cancelled when the units can no longer be relied on.
    #[must_use]
    pub const fn right(&self) -> &CancellationToken {
        &self.right
    }

    /// Whether the units can be relied on now, by the clock: the loop that watches the deadline may be late.
    #[must_use]
    pub fn is_live(&self) -> bool {
        let state = self.pool.state();
        let holding = state.holding.as_ref().filter(|_| state.generation == self.generation);
        !self.right.is_cancelled() && holding.is_some_and(|it| it.deadline > self.pool.keeper.clock().now())
    }

    /// Returns whether what came of the message counts, since the units were its own all the time; `None` if the next renewal shows it.
    #[must_use]
    pub fn counts(&self) -> Option<bool> {
        let state = self.pool.state();
        if state.generation != self.generation {
            return Some(false);
        }
        // By the clock too: a process that was stopped may get here before the loop that watches the deadline.
        let now = self.pool.keeper.clock().now();
        let is_certain = |holding: &Holding| !holding.right.is_cancelled() && holding.deadline > now;
        state.holding.as_ref().is_some_and(is_certain).then_some(true)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        if state.generation == self.generation {
            state.table.release(&self.needs);
            self.pool.settle(state);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("needs", &self.needs).finish_non_exhaustive()
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
    tells: HashMap<AskId, (Tell, Arc<[Need]>)>,
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

/// The permits of one consumer.
pub struct PermitPool {
    pub(super) permits: Arc<dyn Permits>,
    /// Unique to this start of the consumer.
    pub(super) name: String,
    pub(super) keeper: Keeper,
    state: Mutex<State>,
    /// Notified when there may be something to exchange.
    pub(super) work: Notify,
    /// Notified when something waits.
    pub(super) waits: Notify,
    /// Counts holders that have joined or were lost, and rights that are certain again.
    pub(super) joined: watch::Sender<u64>,
    pub(super) answers: Answers,
}

impl PermitPool {
    /// Creates the pool of a consumer with these limits. `name` is unique to this start; the units end unless `keeper` renews them.
    /// Nothing is sent before something is asked for, and nothing works unless the pool is [run](Self::run).
    #[must_use]
    pub fn new(permits: Arc<dyn Permits>, name: &str, keeper: Keeper, limits: &LimitSet) -> Arc<Self> {
        let state = State {
            table: Table::new(!limits.drops()),
            tells: HashMap::new(),
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
            name: name.to_owned(),
            answers: Answers::new(keeper.ttl()),
            keeper,
            state: Mutex::new(state),
            work: Notify::new(),
            waits: Notify::new(),
            joined: watch::Sender::new(0),
        })
    }

    /// Takes what a message needs, units of one key or more, all or none: at once if the consumer has them idle. Otherwise it asks
    /// for them, and answers are sent to `tell`, maybe before this returns. One that does not wait is refused if a key is short.
    pub fn take(self: &Arc<Self>, needs: Vec<Need>, waits: bool, tell: &Tell) -> Result<Permit, Asked> {
        let needs: Arc<[Need]> = needs.into();
        let mut state = self.state();
        let State { holding, table, generation, .. } = &mut *state;
        // By the clock too: the loop that watches the deadline may be late.
        if let Some(Holding { right, deadline, .. }) = holding
            && !right.is_cancelled()
            && *deadline > self.keeper.clock().now()
            && table.take_idle(&needs)
        {
            let (pool, generation, right) = (self.clone(), *generation, right.clone());
            return Ok(Permit { pool, generation, needs, right });
        }
        let id = state.table.ask(&needs, waits);
        state.tells.insert(id, (tell.clone(), needs));
        self.settle(state);
        Err(Asked { pool: self.clone(), id })
    }

    /// Returns a receiver that changes when [`Permit::counts`] may be known.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.joined.subscribe()
    }

    /// Returns how many messages wait for units of each of these limits, by name.
    #[must_use]
    pub fn waiting(&self, limits: &LimitSet) -> Vec<(LimitName, usize)> {
        let mut waiting: Vec<_> = limits.names().map(|name| (name.clone(), 0)).collect();
        waiting.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (key, messages) in self.state().table.waiting() {
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
        let mut answers = Vec::new();
        let mut parked = false;
        for (id, notice) in state.table.take_notices() {
            let right = state.holding.as_ref().map(|holding| holding.right.clone());
            match notice {
                Notice::Parked(key) => {
                    parked = true;
                    if let Some((tell, _)) = state.tells.get(&id) {
                        answers.push((tell.clone(), id, PermitAnswer::Parked(key)));
                    }
                }
                Notice::Refused(key) => {
                    if let Some((tell, _)) = state.tells.remove(&id) {
                        answers.push((tell, id, PermitAnswer::Refused(key)));
                    }
                }
                Notice::Granted => {
                    if let (Some((tell, needs)), Some(right)) = (state.tells.remove(&id), right) {
                        let (pool, generation) = (self.clone(), state.generation);
                        let permit = Permit { pool, generation, needs, right };
                        answers.push((tell, id, PermitAnswer::Granted(permit)));
                    }
                }
            }
        }
        let works = state.table.has_work() || state.sweep_at.is_none() && state.table.has_kept();
        drop(guard);
        if works {
            self.work.notify_one();
        }
        if parked {
            self.waits.notify_one();
        }
        // After the lock: a permit that nobody takes is dropped here, and gives back what it has.
        for (tell, id, answer) in answers {
            drop(tell.send((id, answer)));
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
        holding.right.cancel();
        self.joined.send_modify(|joined| *joined += 1);
    }

    /// Takes in calls.
    pub(super) fn called(&self, state: &mut State, calls: &[Call], missed: bool) {
        calls.iter().for_each(|call| state.table.called(call));
        if missed {
            state.table.look_again(None);
        }
    }

    pub(super) fn ruled(&self, state: &mut State, rules: LimitRules) {
        state.table.look_again(Some(rules));
    }
}

impl fmt::Debug for PermitPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitPool").field("name", &self.name).finish_non_exhaustive()
    }
}
