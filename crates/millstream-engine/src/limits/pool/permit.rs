//! What a message has of limits: its units, and the tokens that it spends.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millstream_core::Observer;
use millstream_core::limits::PermitKey;
use millstream_core::panics::{UserCode, catch, error_text};
use millstream_core::rates::MAX_TOKENS;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Holding, PermitPool};
use crate::limits::breakers;
use crate::limits::{BreakerNeed, Need, TokenNeed};

/// Breakers that have let a message pass.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) breakers: Arc<[BreakerNeed]>,
    /// Those that it tries.
    pub(super) tries: Vec<PermitKey>,
    /// The epoch of each of them.
    pub(super) epochs: Vec<u64>,
}

/// What a message has that begins.
#[derive(Debug, Default)]
pub struct Begun {
    /// The tokens that it spends.
    pub spent: Option<Spent>,
    /// What is cancelled when a newer message waits for its units, if messages of one of its limits cancel each other.
    pub superseded: Option<CancellationToken>,
}

/// Units that a message has, of all keys that it needs, and the tokens that it has spent. Dropping it gives the units back.
pub struct Permit {
    pool: Arc<PermitPool>,
    generation: u64,
    needs: Arc<[Need]>,
    tokens: Arc<[TokenNeed]>,
    passed: Passed,
    right: CancellationToken,
    /// Since when its tokens were free.
    free_at: Instant,
    /// Its number, and what is cancelled when it is superseded, if it can be.
    superseded: Option<(u64, CancellationToken)>,
    /// Whether the message has begun.
    begun: bool,
    /// Whether it is known what came of it.
    said: bool,
}

impl Permit {
    pub(super) fn new(
        pool: Arc<PermitPool>,
        generation: u64,
        (needs, tokens): (Arc<[Need]>, Arc<[TokenNeed]>),
        passed: Passed,
        right: CancellationToken,
        free_at: Instant,
    ) -> Self {
        let (superseded, begun, said) = (None, false, false);
        Self { pool, generation, needs, tokens, passed, right, free_at, superseded, begun, said }
    }

    /// Records that the message begins.
    pub fn begin(&mut self) -> Begun {
        self.begun = true;
        if self.needs.iter().any(|need| need.cancels) {
            let mut state = self.pool.state();
            let keys = self.needs.iter().filter(|need| need.cancels).map(|need| need.key.clone());
            self.superseded = Some(state.superseding.begin(keys));
            // Others may wait already.
            self.pool.settle(state);
        }
        let superseded = self.superseded.as_ref().map(|(_, token)| token.clone());
        Begun { spent: self.spends(), superseded }
    }

    /// Returns a key for which a newer message waits, if this one was cancelled for it.
    #[must_use]
    pub fn superseded(&self) -> Option<&PermitKey> {
        self.superseded.as_ref().filter(|(_, token)| token.is_cancelled())?;
        self.needs.iter().find(|need| need.cancels).map(|need| &need.key)
    }

    fn spends(&self) -> Option<Spent> {
        // Those of breakers are the last.
        let stated = self.tokens.len() - self.passed.tries.len();
        let (pool, mut tokens) = (self.pool.clone(), self.tokens.clone());
        if stated == 0 {
            return None;
        } else if stated < tokens.len() {
            tokens = tokens.iter().take(stated).cloned().collect();
        }
        let charged = tokens.iter().map(|need| AtomicU32::new(need.tokens)).collect();
        Some(Spent { pool, tokens, charged })
    }

    /// Returns a token that is cancelled when the units can no longer be relied on.
    #[must_use]
    pub const fn right(&self) -> &CancellationToken {
        &self.right
    }

    /// Whether its message may begin: its breakers are closed, and the units can be relied on now, by the clock: the loop that watches the
    /// deadline may be late.
    #[must_use]
    pub fn is_live(&self) -> bool {
        if self.needs.is_empty() && self.passed.breakers.is_empty() {
            return true;
        }
        let state = self.pool.state();
        if !state.breakers.passes(&self.passed.breakers, &self.passed.tries, true) {
            return false;
        } else if self.needs.is_empty() {
            return true;
        }
        let holding = state.holding.as_ref().filter(|_| state.generation == self.generation);
        !self.right.is_cancelled() && holding.is_some_and(|it| it.deadline > self.pool.keeper.clock().now())
    }

    /// Returns whether what came of the message counts, since the units were its own all the time; `None` if the next renewal shows it.
    #[must_use]
    pub fn counts(&self) -> Option<bool> {
        if self.needs.is_empty() {
            // Tokens are spent, and nobody takes them away.
            return Some(true);
        }
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

/// What came of a call of a handler, for breakers.
#[derive(Clone, Copy)]
pub enum CallEnd<'a> {
    /// It succeeded.
    Succeeded,
    /// It returned this error.
    Failed(&'a (dyn StdError + Send + Sync + 'static)),
    /// It failed in another way, such as by a timeout.
    Ended(&'static str),
    /// It says nothing of whether what it calls is there.
    Other,
}

impl Permit {
    /// Records what came of its message. Returns after which time the message is handled again as if it had not failed: a breaker was opened
    /// meanwhile. The observer receives panics of the program's own code.
    pub fn ended(&mut self, end: CallEnd<'_>, observer: &dyn Observer) -> Option<Duration> {
        if self.passed.breakers.is_empty() || !self.begun {
            return None;
        }
        let (text, panicked) = match end {
            CallEnd::Failed(error) => error_text(error),
            CallEnd::Ended(how) => (how.to_owned(), None),
            CallEnd::Succeeded | CallEnd::Other => Default::default(),
        };
        if let Some(panicked) = panicked {
            observer.observe(&panicked.event());
        }
        // The program's code runs before the lock is taken.
        let of = |need: &BreakerNeed| match end {
            CallEnd::Succeeded => breakers::Counted::Succeeded,
            CallEnd::Other => breakers::Counted::Other,
            CallEnd::Ended(_) => breakers::Counted::Failed(&text),
            CallEnd::Failed(error) => {
                let counts = catch(UserCode::Limit, || need.breaker.counts_error(error));
                match counts.inspect_err(|panicked| observer.observe(&panicked.event())) {
                    Ok(false) => breakers::Counted::Other,
                    Ok(true) | Err(_) => breakers::Counted::Failed(&text),
                }
            }
        };
        let ends: Vec<_> = self.passed.breakers.iter().map(of).collect();
        let (mut state, now) = (self.pool.state(), self.pool.keeper.clock().now());
        let again = state.breakers.ended(
            &self.passed.breakers,
            (&self.passed.tries, &self.passed.epochs),
            &ends,
            now,
        );
        for (need, end) in self.passed.breakers.iter().zip(ends) {
            if end == breakers::Counted::Other && self.passed.tries.contains(&need.key) {
                state.tokens.try_again(&need.token(), now);
            }
        }
        self.said = true;
        self.pool.settle(state);
        again
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let gives_back = !self.begun && !self.tokens.is_empty();
        if self.needs.is_empty() && self.passed.breakers.is_empty() && !gives_back {
            return;
        }
        let mut state = self.pool.state();
        if let Some((number, _)) = self.superseded {
            for need in self.needs.iter().filter(|need| need.cancels) {
                state.superseding.end(&need.key, number);
            }
        }
        state.breakers.end(&self.passed.breakers, &self.passed.epochs);
        if gives_back {
            let stated = self.tokens.len() - self.passed.tries.len();
            state.tokens.put_back(&self.tokens[..stated], self.free_at, self.pool.keeper.clock().now());
        }
        if !self.said {
            // It was not tried whether the breaker can be closed.
            let now = self.pool.keeper.clock().now();
            let tried = |need: &&BreakerNeed| self.passed.tries.contains(&need.key);
            for need in self.passed.breakers.iter().filter(tried) {
                state.tokens.try_again(&need.token(), now);
            }
        }
        if state.generation == self.generation {
            state.table.release(&self.needs);
        }
        self.pool.settle(state);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("needs", &self.needs)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spent").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

/// Tokens that a message has spent.
#[derive(Clone)]
pub struct Spent {
    pool: Arc<PermitPool>,
    tokens: Arc<[TokenNeed]>,
    /// How many of each were charged.
    charged: Arc<[AtomicU32]>,
}

impl Spent {
    /// Lets no message of any process begin that needs tokens of a key of which some were spent here, for this time.
    pub fn close(&self, time: Duration) {
        let mut state = self.pool.state();
        // Over a quota messages are dropped: that is not what an API means that is busy.
        for need in self.tokens.iter().filter(|need| !need.drops) {
            state.tokens.close(need, time, self.pool.keeper.clock().now());
        }
        self.pool.settle(state);
    }

    /// Corrects how many tokens of this limit were spent: the difference to the cost is charged, or given back. False if none of a limit
    /// with this name were.
    #[must_use]
    pub fn correct(&self, limit: &str, tokens: u32) -> bool {
        let tokens = tokens.min(MAX_TOKENS);
        let mut needs = self.tokens.iter().zip(&*self.charged);
        let Some((need, charged)) = needs.find(|(need, _)| need.key.parts().0 == limit) else { return false };
        let difference = i64::from(tokens) - i64::from(charged.swap(tokens, Ordering::Relaxed));
        if difference != 0 {
            let mut state = self.pool.state();
            state.tokens.charge(need, difference);
            self.pool.settle(state);
        }
        true
    }
}
