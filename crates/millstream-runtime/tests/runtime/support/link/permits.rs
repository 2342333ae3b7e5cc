//! Permits of limits over the link.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::permits::{
    Calls, Exchange, Exchanged, OpenBreaker, PermitHolder, PermitKey, PermitPage, PermitsRenewed, RateState,
    Reservation, Reserved,
};
use millstream_core::{Continuity, LimitBound, LimitPattern, LimitRules, MessageId, Permits, Result};

use super::Linked;

#[async_trait]
impl Permits for Linked<dyn Permits> {
    async fn renew(
        &self,
        holder: &PermitHolder,
        ttl: Duration,
        continuity: &Continuity,
        joining: bool,
    ) -> Result<PermitsRenewed> {
        self.link.pass("renew permits", self.role.renew(holder, ttl, continuity, joining)).await
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Exchanged> {
        self.link.pass("exchange", self.role.exchange(exchange)).await
    }

    async fn called(&self, holder: &PermitHolder, seen: MessageId, wait: Duration) -> Result<Calls> {
        self.link.pass("called", self.role.called(holder, seen, wait)).await
    }

    async fn end(&self, holder: &PermitHolder) -> Result<bool> {
        self.link.pass("end permits", self.role.end(holder)).await
    }

    async fn limit_rules(&self) -> Result<LimitRules> {
        self.link.pass("limit rules", self.role.limit_rules()).await
    }

    async fn set_limit_rule(&self, pattern: &LimitPattern, bound: Option<LimitBound>) -> Result<u64> {
        self.link.pass("set limit rule", self.role.set_limit_rule(pattern, bound)).await
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        self.link.pass("open breakers", self.role.open_breakers()).await
    }

    async fn drop_idle_rates(&self) -> Result<bool> {
        self.link.pass("drop idle rates", self.role.drop_idle_rates()).await
    }

    async fn rate_state(&self, key: &PermitKey) -> Result<Option<RateState>> {
        self.link.pass("rate state", self.role.rate_state(key)).await
    }

    async fn reserve(&self, reservation: &Reservation) -> Result<Reserved> {
        self.link.pass("reserve", self.role.reserve(reservation)).await
    }

    async fn usage(&self, from: u64, limit: usize) -> Result<PermitPage> {
        self.link.pass("usage", self.role.usage(from, limit)).await
    }
}
