//! The permits role in memory.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::permits::{
    Call, Calls, Exchange, Exchanged, OpenBreaker, PermitHolder, PermitKey, PermitPage, Permits,
    PermitsRenewed, RateState, Reservation, Reserved, Step, TokenStep, check_exchange, check_reservation,
};
use millstream_core::{Continuity, LimitBound, LimitPattern, LimitRules, MessageId, Result};
use tokio::time::{Instant, timeout_at};

use crate::MemoryBackend;
use crate::backend::breathe;

/// Keys that one call frees, as on Redis.
const FREED_AT_ONCE: usize = 250;
/// How long a breaker is listed that nobody tries, as on Redis: a day.
const BREAKER_KEPT_MS: u64 = 86_400_000;
/// Holders that a renewal names, as on Redis.
const MAX_ENDED: usize = 100;

#[async_trait]
impl Permits for MemoryBackend {
    async fn renew(
        &self,
        holder: &PermitHolder,
        ttl: Duration,
        continuity: &Continuity,
        joining: bool,
    ) -> Result<PermitsRenewed> {
        breathe().await;
        let now = self.now();
        let mut state = self.lock();
        let server = state.server();
        let permits = &mut state.permits;
        let judges_in = continuity.left(&server, now.timestamp());
        let mut renewed = PermitsRenewed::new(server, now.timestamp());
        let mut dead = Vec::new();
        for (other, its) in permits.holders.iter().filter(|(other, _)| other != holder) {
            let over_in = its.expires.since(now).min(its.ttl);
            let longer = its.ttl.saturating_sub(ttl);
            // The longer one of both ttls: one that is renewed more rarely takes longer to come back.
            let wait = if judges_in.is_zero() { over_in } else { over_in.max(judges_in + longer) };
            if wait.is_zero() {
                dead.push(other.clone());
            } else {
                renewed.next_expiry = Some(renewed.next_expiry.map_or(wait, |next| next.min(wait)));
            }
        }
        if permits.renew(holder, now.plus(ttl), ttl, joining).is_none() {
            return Err(holder.fenced());
        }
        for other in dead {
            // What it has counts no more from here on; it is freed by `end`.
            permits.end(&other, 0);
        }
        renewed.ended = permits.ended.keys().take(MAX_ENDED).cloned().collect();
        Ok(renewed)
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Exchanged> {
        breathe().await;
        check_exchange(exchange)?;
        let mut state = self.lock();
        let permits = &mut state.permits;
        let holder = &exchange.holder;
        let known = permits.holders.get_mut(holder).ok_or_else(|| holder.fenced())?;
        if exchange.number <= known.number {
            return Err(holder.stale());
        }
        known.number = exchange.number;
        let current = permits.rules.version == exchange.version;
        let mut taken = Vec::new();
        for step in &exchange.steps {
            match step {
                Step::Has(key, units) => permits.has(holder, key, *units),
                Step::Leaves(key) => permits.leaves(holder, key),
                Step::Takes(take) if current => taken.push(permits.take(holder, take)),
                Step::Takes(_) => {}
            }
        }
        Ok(if current { Exchanged::Done(taken) } else { Exchanged::Changed(permits.rules.clone()) })
    }

    async fn called(&self, holder: &PermitHolder, seen: MessageId, wait: Duration) -> Result<Calls> {
        breathe().await;
        let until = Instant::now() + wait.min(Duration::from_secs(3_600));
        let wake = self.lock().permits.wake.clone();
        loop {
            let mut woken = std::pin::pin!(wake.notified());
            // Before the look, so that a call right after it wakes this caller.
            woken.as_mut().enable();
            let mut found = Calls { seen, ..Calls::default() };
            if let Some(state) = self.lock().permits.holders.get_mut(holder) {
                state.calls.retain(|(number, _)| *number > seen.ms);
                found.calls = state.calls.iter().map(|(_, call)| call.clone()).collect();
                found.seen = state.calls.back().map_or(seen, |(number, _)| MessageId::new(*number, 0));
            }
            if !found.calls.is_empty() || timeout_at(until, woken).await.is_err() {
                return Ok(found);
            }
        }
    }

    async fn end(&self, holder: &PermitHolder) -> Result<bool> {
        breathe().await;
        Ok(self.lock().permits.end(holder, FREED_AT_ONCE))
    }

    async fn limit_rules(&self) -> Result<LimitRules> {
        breathe().await;
        Ok(self.lock().permits.rules.clone())
    }

    async fn set_limit_rule(&self, pattern: &LimitPattern, bound: Option<LimitBound>) -> Result<u64> {
        breathe().await;
        let now = self.now().timestamp().as_millis();
        let permits = &mut self.lock().permits;
        permits.rules.version = now.max(permits.rules.version + 1);
        permits.rules.rules.retain(|(other, _)| other != pattern);
        permits.rules.rules.extend(bound.map(|bound| (pattern.clone(), bound)));
        permits.tell_all(&Call::Rules);
        Ok(permits.rules.version)
    }

    async fn reserve(&self, reservation: &Reservation) -> Result<Reserved> {
        breathe().await;
        check_reservation(reservation)?;
        let now_us = self.now().timestamp().as_millis() * 1_000;
        let permits = &mut self.lock().permits;
        let current = permits.rules.version == reservation.version;
        let mut leads = Vec::new();
        for step in &reservation.steps {
            match step {
                TokenStep::Reserves { key, tokens, rate, waits } if current => {
                    let record = permits.rates.entry(key.clone()).or_default();
                    leads.push(record.reserve(now_us, rate, *tokens, *waits));
                }
                TokenStep::Reserves { .. } => {}
                TokenStep::Charges { key, tokens, rate } => {
                    permits.rates.entry(key.clone()).or_default().charge(now_us, rate, *tokens);
                }
                TokenStep::Closes { key, time, rate } => {
                    if permits.rates.entry(key.clone()).or_default().close(now_us, rate, *time) {
                        permits.tell_all(&Call::Closed(key.clone(), *time));
                    }
                }
                TokenStep::Breaks { key, time, rate, reason } => {
                    let changes = permits.rates.entry(key.clone()).or_default().close(now_us, rate, *time);
                    if permits.breaks(key, *time, reason, now_us / 1_000) || changes {
                        permits.tell_all(&Call::Closed(key.clone(), *time));
                    }
                }
            }
        }
        Ok(if current { Reserved::Done(leads) } else { Reserved::Changed(permits.rules.clone()) })
    }

    async fn drop_idle_rates(&self) -> Result<bool> {
        breathe().await;
        let now_us = self.now().timestamp().as_millis() * 1_000;
        let permits = &mut self.lock().permits;
        permits.rates.retain(|_, record| !record.is_idle(now_us));
        permits.breakers.retain(|_, it| it.until.as_millis() + BREAKER_KEPT_MS > now_us / 1_000);
        Ok(false)
    }

    async fn rate_state(&self, key: &PermitKey) -> Result<Option<RateState>> {
        breathe().await;
        let now_us = self.now().timestamp().as_millis() * 1_000;
        Ok(self.lock().permits.rates.get(key).and_then(|record| record.state(now_us)))
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        breathe().await;
        Ok(self.lock().permits.breakers.values().cloned().collect())
    }

    async fn usage(&self, from: u64, limit: usize) -> Result<PermitPage> {
        breathe().await;
        let all = self.lock().permits.usage();
        let (from, limit) = (usize::try_from(from).unwrap_or(usize::MAX), limit.max(1));
        let mut page = PermitPage::default();
        page.next = (from.saturating_add(limit) < all.len()).then(|| (from + limit) as u64);
        page.keys = all.into_iter().skip(from).take(limit).collect();
        Ok(page)
    }
}
