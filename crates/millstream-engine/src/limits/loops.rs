//! The loops of a pool: exchange, calls, and the renewal of the right.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::permits::{Call, Exchange, Exchanged, PermitHolder, Reservation, Reserved};
use millstream_core::{Observer, leases::reliable};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::keeper::{Kept, Rights};
use crate::limits::PermitPool;
use crate::limits::pool::{Holding, State};
use crate::monitor::LoopMonitor;

/// Longest wait for calls, after which its connection is looked at again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Number of ttls after which everything that waits is asked for again, in case that the server has lost a part of what it knew.
const LOOKS: u32 = 6;
/// Time between two sweeps: idle units are kept for one to two of these after the last message that needed them.
const SWEEP: Duration = Duration::from_millis(500);
/// Time between two looks for records of rates that say nothing any more.
const DROP_IDLE: Duration = Duration::from_secs(10);
/// How long after the expiry of another holder it is looked at.
const AFTER_EXPIRY: Duration = Duration::from_millis(5);

impl PermitPool {
    /// The monitors are those of the three loops.
    pub(super) async fn run(self: Arc<Self>, monitors: [LoopMonitor; 3], observer: Arc<dyn Observer>) {
        let [exchanging, listening, renewing] = monitors;
        let (from, right) = (self.keeper.clock().now(), Renewed(self.clone()));
        tokio::join!(
            self.exchange_all(&exchanging, &*observer),
            self.listen(&listening, &*observer),
            self.keeper.run(from, &right, &renewing, &*observer),
            self.let_go(),
        );
    }

    pub(super) async fn free(&self, holder: &PermitHolder) -> Result<()> {
        while self.within(self.permits.end(holder)).await? {}
        Ok(())
    }

    pub(super) async fn within<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.keeper.limit();
        let late =
            |_| Error::new(ErrorKind::Unconfirmed, format!("no answer about permits within {limit:?}"));
        timeout(limit, request).await.map_err(late)?
    }

    async fn exchange_all(self: &Arc<Self>, monitor: &LoopMonitor, observer: &dyn Observer) {
        loop {
            monitor.idle();
            self.work().await;
            // What others of this thread ask for goes along.
            tokio::task::yield_now().await;
            monitor.begin_round(Duration::ZERO);
            match self.exchange_once().await {
                Ok(()) => monitor.succeeded(observer),
                Err(error) => {
                    let pause = monitor.failed(&error, observer);
                    monitor.begin_round(pause);
                    sleep(self.keeper.pause(&error, pause)).await;
                }
            }
        }
    }

    /// Lets messages go on whose tokens are free.
    async fn let_go(self: &Arc<Self>) {
        let clock = self.keeper.clock();
        loop {
            let at = self.state().tokens.next_free();
            match at {
                Some(at) if at <= clock.now() => self.settle(self.state()),
                Some(at) => tokio::select! {
                    () = clock.sleep_until(at) => {}
                    () = self.timers.notified() => {}
                },
                None => self.timers.notified().await,
            }
        }
    }

    /// Waits until there is something to do.
    async fn work(&self) {
        loop {
            let sweep_at = {
                let mut guard = self.state();
                let (state, now) = (&mut *guard, self.keeper.clock().now());
                if state.sweep_at.is_some_and(|at| at <= now) {
                    state.sweep_at = None;
                    state.table.sweep();
                    state.tokens.sweep(now);
                    state.breakers.sweep(now);
                }
                if state.sweep_at.is_none() && state.has_kept() {
                    state.sweep_at = Some(now + SWEEP);
                }
                let looks = state.breakers.wants_look();
                if state.joins()
                    || looks
                    || state.tokens.has_work()
                    || state.drop_idle_at.is_some_and(|at| at <= now)
                {
                    return;
                }
                // While it is uncertain whether the right is ours, nothing is taken. The renewal shows it.
                let certain = state.holding.as_ref().is_none_or(|holding| !holding.right.is_cancelled());
                if !state.ended.is_empty() || certain && state.table.has_work() {
                    return;
                }
                [state.sweep_at, state.drop_idle_at].into_iter().flatten().min()
            };
            match sweep_at {
                Some(at) => tokio::select! {
                    () = self.work.notified() => {}
                    () = self.keeper.clock().sleep_until(at) => {}
                },
                None => self.work.notified().await,
            }
        }
    }

    async fn exchange_once(self: &Arc<Self>) -> Result<()> {
        // A portion of one of them: what lives must not wait for all that the dead had. All survivors do this, each with another one.
        let ended = {
            let ended = &mut self.state().ended;
            let at = fastrand::usize(..ended.len().max(1));
            (!ended.is_empty()).then(|| ended.swap_remove(at))
        };
        if let Some(holder) = ended
            // If this fails, the next renewal names it again.
            && self.within(self.permits.end(&holder)).await?
        {
            self.state().ended.push(holder);
        }
        let Some(holder) = self.join().await? else { return self.reserve_tokens().await };
        self.look_at_breakers().await?;
        let (exchanged, reserved) = tokio::join!(self.exchange_units(holder), self.reserve_tokens());
        exchanged.and(reserved)
    }

    /// Reads which breakers are open, and what operators say of them, if that is not known.
    async fn look_at_breakers(self: &Arc<Self>) -> Result<()> {
        {
            let mut state = self.state();
            if !state.breakers.wants_look() {
                return Ok(());
            }
            state.breakers.looks();
        }
        let rules = self.within(self.permits.limit_rules()).await?;
        let open = self.within(self.permits.open_breakers()).await?;
        let mut state = self.state();
        self.ruled(&mut state, rules);
        let State { breakers, tokens, .. } = &mut *state;
        let now = self.keeper.clock().now();
        breakers.looked(&open, |key| self.is_breaker(key), |key| tokens.is_to_close(key), now);
        self.settle(state);
        Ok(())
    }

    /// Reserves what messages wait for.
    async fn reserve_tokens(self: &Arc<Self>) -> Result<()> {
        self.drop_idle().await?;
        let clock = self.keeper.clock();
        let (reservation, under_way) = {
            let (mut state, now) = (self.state(), clock.now());
            let (steps, under_way) = state.tokens.reservation(now);
            if steps.is_empty() {
                return Ok(());
            }
            state.drop_idle_at.get_or_insert(now + DROP_IDLE);
            (Reservation { version: state.table.version(), steps }, under_way)
        };
        let answer = self.within(self.permits.reserve(&reservation)).await;
        let (mut state, now) = (self.state(), clock.now());
        let result = match answer {
            Ok(Reserved::Done(leads)) => {
                state.tokens.reserved(under_way, leads, now);
                Ok(())
            }
            Ok(Reserved::Changed(rules)) => {
                state.tokens.changed(under_way, rules.clone(), now);
                state.breakers.follow(rules.clone());
                state.table.look_again(Some(rules));
                Ok(())
            }
            Err(error) => {
                state.tokens.failed(reservation.steps, under_way, now);
                Err(error)
            }
        };
        self.settle(state);
        result
    }

    /// Has the server drop records of rates that say nothing any more, if it is time to: a part of them.
    async fn drop_idle(&self) -> Result<()> {
        let now = self.keeper.clock().now();
        {
            let mut state = self.state();
            if state.drop_idle_at.is_none_or(|at| at > now) {
                return Ok(());
            }
            state.drop_idle_at = Some(now + DROP_IDLE);
        }
        let more = self.within(self.permits.drop_idle_rates()).await?;
        let mut state = self.state();
        if more {
            state.drop_idle_at = Some(now);
        } else if !state.tokens.is_used() {
            state.drop_idle_at = None;
        }
        Ok(())
    }

    async fn exchange_units(self: &Arc<Self>, holder: PermitHolder) -> Result<()> {
        let (exchange, under_way) = {
            let mut state = self.state();
            if state.holding.as_ref().is_none_or(|holding| holding.right.is_cancelled()) {
                // Nothing is taken before the right is certain again.
                return Ok(());
            }
            let (steps, under_way) = state.table.exchange();
            if steps.is_empty() {
                return Ok(());
            }
            state.number += 1;
            let (number, version) = (state.number, state.table.version());
            (Exchange { holder, number, version, steps }, under_way)
        };
        let answer = self.within(self.permits.exchange(&exchange)).await;
        let mut state = self.state();
        if state.holding.as_ref().map(|holding| &holding.holder) != Some(&exchange.holder) {
            // Lost meanwhile, with everything that was asked for.
            self.settle(state);
            return Ok(());
        }
        let result = match answer {
            Ok(Exchanged::Done(taken)) => {
                state.table.done(under_way, taken);
                Ok(())
            }
            Ok(Exchanged::Changed(rules)) => {
                state.tokens.follow(rules.clone(), self.keeper.clock().now());
                state.breakers.follow(rules.clone());
                state.table.changed(under_way, rules);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Fenced => {
                self.lose(&mut state);
                Ok(())
            }
            Err(error) => {
                state.table.failed(exchange.steps, under_way);
                Err(error)
            }
        };
        self.settle(state);
        result
    }

    /// Returns the holder, which joins if there is none and something is asked for.
    async fn join(&self) -> Result<Option<PermitHolder>> {
        let generation = {
            let state = self.state();
            if let Some(holding) = &state.holding {
                return Ok(Some(holding.holder.clone()));
            }
            if !state.table.has_work() && !state.joins() {
                return Ok(None);
            }
            state.generation
        };
        let holder = PermitHolder::new(format!("{}.{generation}", self.name))?;
        let (ttl, asked) = (self.keeper.ttl(), self.keeper.clock().now());
        let joined = self.within(self.permits.renew(&holder, ttl, &self.answers.continuity(), true)).await?;
        self.answers.record_answer(asked, &joined.server, joined.now);
        let mut state = self.state();
        let (deadline, right) = (asked + reliable(ttl), CancellationToken::new());
        state.holding = Some(Holding { holder: holder.clone(), seen: joined.seen, deadline, right });
        state.looked = Some((joined.server, asked));
        state.table.set_certain(true);
        // Calls before it were not heard.
        state.tokens.look_again(asked);
        state.breakers.look_again();
        drop(state);
        self.joined.send_modify(|joined| *joined += 1);
        Ok(Some(holder))
    }

    async fn listen(self: &Arc<Self>, monitor: &LoopMonitor, observer: &dyn Observer) {
        let mut joined = self.joined.subscribe();
        loop {
            let known = self.state().holding.as_ref().map(|holding| (holding.holder.clone(), holding.seen));
            let Some((holder, seen)) = known else {
                monitor.idle();
                if joined.changed().await.is_err() {
                    return;
                }
                continue;
            };
            // What is kept asks for nothing: a connection that is cut off unnoticed must not hide for long who waits.
            let wait = LONGEST_WAIT.min(self.keeper.ttl() * 2);
            monitor.begin_round(wait);
            let found = tokio::select! {
                biased;
                // Another holder has joined, whose calls are others.
                _ = joined.changed() => continue,
                found = self.permits.called(&holder, seen, wait) => found,
            };
            match self.take_calls(&holder, found).await {
                Ok(()) => monitor.succeeded(observer),
                Err(error) => sleep(monitor.failed(&error, observer)).await,
            }
        }
    }

    async fn take_calls(
        self: &Arc<Self>,
        holder: &PermitHolder,
        found: Result<millstream_core::permits::Calls>,
    ) -> Result<()> {
        let found = found?;
        let rules = match found.missed || found.calls.contains(&Call::Rules) {
            true => Some(self.within(self.permits.limit_rules()).await?),
            false => None,
        };
        let mut state = self.state();
        if let Some(holding) = &mut state.holding
            && holding.holder == *holder
        {
            holding.seen = found.seen;
            self.called(&mut state, &found.calls, found.missed);
            if let Some(rules) = rules {
                self.ruled(&mut state, rules);
            }
        }
        self.settle(state);
        Ok(())
    }
}

/// The right of the pool, as its keeper renews it.
struct Renewed(Arc<PermitPool>);

#[async_trait]
impl Rights for Renewed {
    fn witness(&self) -> &'static str {
        self.0.witness
    }

    async fn renew(&self, asked: Instant) -> Result<Kept> {
        let pool = &self.0;
        let holder = pool.state().holding.as_ref().map(|holding| holding.holder.clone());
        let Some(holder) = holder else { return Ok(Kept::Nothing) };
        let continuity = pool.answers.continuity();
        let renewed = pool.permits.renew(&holder, pool.keeper.ttl(), &continuity, false).await;
        let mut state = pool.state();
        if state.holding.as_ref().map(|holding| &holding.holder) != Some(&holder) {
            return Ok(Kept::Renewed);
        }
        match renewed {
            Ok(renewed) => {
                pool.renewed(&mut state, asked, &renewed.server, renewed.now);
                state.check_at = renewed.next_expiry.map(|next| Instant::now() + next + AFTER_EXPIRY);
                state.ended = renewed.ended;
                // A server that was restored, or another one, may not know of everything that waits, nor may one that has lost a key.
                let same = |(server, at): &(String, Instant)| {
                    *server == renewed.server && asked - *at < pool.keeper.ttl() * LOOKS
                };
                let fresh = state.looked.as_ref().is_some_and(same);
                if !fresh {
                    state.looked = Some((renewed.server, asked));
                }
                pool.called(&mut state, &[], renewed.look_again || !fresh);
            }
            Err(error) if error.kind() == ErrorKind::Fenced => pool.lose(&mut state),
            Err(error) => return Err(error),
        }
        pool.settle(state);
        // What was uncertain may go on, and what others left is to be freed.
        pool.work.notify_one();
        Ok(Kept::Renewed)
    }

    async fn held(&self) {
        let mut joined = self.0.joined.subscribe();
        if self.0.state().holding.is_none() {
            drop(joined.changed().await);
        }
    }

    /// While something waits here, other holders are looked at as soon as their right runs out: what they had is free then.
    async fn wanted(&self) {
        loop {
            let check_at = {
                let state = self.0.state();
                // Tokens are nobody's, and who waits for them waits for no holder.
                state.check_at.filter(|_| state.table.is_waiting())
            };
            match check_at {
                Some(at) => {
                    self.0.keeper.clock().sleep_until(at).await;
                    self.0.state().check_at = None;
                    return;
                }
                None => self.0.waits.notified().await,
            }
        }
    }

    fn expire(&self) -> Option<Instant> {
        let mut state = self.0.state();
        let holding = state.holding.as_ref()?;
        if holding.right.is_cancelled() {
            return None;
        }
        if holding.deadline > self.0.keeper.clock().now() {
            return Some(holding.deadline);
        }
        tracing::warn!(holder = %holding.holder, "the permits were not renewed in time: handlers are notified");
        holding.right.cancel();
        state.table.set_certain(false);
        None
    }

    async fn sooner(&self, _: Option<Instant>) {
        let mut joined = self.0.joined.subscribe();
        drop(joined.changed().await);
    }
}
