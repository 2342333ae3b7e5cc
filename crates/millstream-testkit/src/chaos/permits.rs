//! Chaos for permits of limits.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::permits::{
    Calls, Exchange, Exchanged, OpenBreaker, PermitHolder, PermitKey, PermitPage, Permits, PermitsRenewed,
    RateState, Reservation, Reserved,
};
use millstream_core::{Continuity, LimitBound, LimitPattern, LimitRules, MessageId, Result};

use super::Client;
use super::faults::Role;
use super::reading::wait;
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Permits for Client {
    async fn renew(
        &self,
        holder: &PermitHolder,
        ttl: Duration,
        continuity: &Continuity,
        joining: bool,
    ) -> Result<PermitsRenewed> {
        let continuity = continuity.clone();
        call!(self, Permits, permits?.renew(holder; ttl, &continuity, joining))
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Exchanged> {
        call!(self, Permits, permits?.exchange(exchange;))
    }

    async fn called(&self, holder: &PermitHolder, seen: MessageId, for_at_most: Duration) -> Result<Calls> {
        wait(self, Role::Permits, self.0.backend.permits()?.called(holder, seen, for_at_most)).await
    }

    async fn end(&self, holder: &PermitHolder) -> Result<bool> {
        call!(self, Permits, permits?.end(holder;))
    }

    async fn limit_rules(&self) -> Result<LimitRules> {
        call!(self, Permits, permits?.limit_rules(;))
    }

    async fn set_limit_rule(&self, pattern: &LimitPattern, bound: Option<LimitBound>) -> Result<u64> {
        call!(self, Permits, permits?.set_limit_rule(pattern; bound))
    }

    async fn reserve(&self, reservation: &Reservation) -> Result<Reserved> {
        call!(self, Permits, permits?.reserve(reservation;))
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        call!(self, Permits, permits?.open_breakers(;))
    }

    async fn drop_idle_rates(&self) -> Result<bool> {
        call!(self, Permits, permits?.drop_idle_rates(;))
    }

    async fn rate_state(&self, key: &PermitKey) -> Result<Option<RateState>> {
        call!(self, Permits, permits?.rate_state(key;))
    }

    async fn usage(&self, from: u64, limit: usize) -> Result<PermitPage> {
        call!(self, Permits, permits?.usage(; from, limit))
    }
}
