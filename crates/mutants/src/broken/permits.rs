//! Mistakes of the permits role.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::permits::{
    Call, Calls, Exchange, Exchanged, Lead, OpenBreaker, PermitHolder, PermitKey, PermitPage, Permits,
    PermitsRenewed, RateState, Reservation, Reserved, Step, Taken, TokenStep,
};
use millstream_core::{Continuity, ErrorKind, LimitBound, LimitPattern, LimitRules, MessageId, Result};

use super::{Broken, Mutant};

/// State that mistakes of this role need.
#[derive(Default)]
pub(super) struct PermitMemo {
    /// A call that is repeated.
    last: Option<Call>,
}

#[async_trait]
impl Permits for Broken {
    async fn renew(
        &self,
        holder: &PermitHolder,
        ttl: Duration,
        continuity: &Continuity,
        joining: bool,
    ) -> Result<PermitsRenewed> {
        let continuity = match self.sabotage {
            Mutant::PermitsJudgeAtOnce => Continuity::assured(),
            Mutant::PermitsNeverJudge => Continuity::new(ttl),
            _ => continuity.clone(),
        };
        let joining = joining || self.is(Mutant::PermitsEndedRejoin);
        if self.is(Mutant::PermitsRenewForgotten) && !joining {
            let zero = Duration::from_millis(1);
            return self.inner.permits()?.renew(holder, zero, &continuity, joining).await;
        }
        let mut renewed = self.inner.permits()?.renew(holder, ttl, &continuity, joining).await?;
        if self.is(Mutant::PermitsExpiryHidden) {
            renewed.next_expiry = None;
        }
        Ok(renewed)
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Exchanged> {
        let mut asked = exchange.clone();
        match self.sabotage {
            Mutant::PermitsUnbounded if asked.steps.len() > 250 => {
                asked.steps.truncate(1);
            }
            Mutant::PermitsNumberIgnored => {
                let mut memo = self.memo();
                memo.count += 1;
                asked.number = memo.count;
            }
            Mutant::PermitsLeaveForgotten => asked.steps.retain(|step| !matches!(step, Step::Leaves(_))),
            Mutant::PermitsRulesIgnored => {
                let version = self.inner.permits()?.limit_rules().await?.version;
                asked.version = version;
            }
            _ => {}
        }
        for step in &mut asked.steps {
            match step {
                Step::Has(_, units) if self.is(Mutant::PermitsHasFreesAll) => *units = 0,
                Step::Has(_, units) if self.is(Mutant::PermitsHasIgnored) => *units = u32::MAX,
                Step::Takes(take) => {
                    take.waits |= self.is(Mutant::PermitsAlwaysWait);
                    for want in &mut take.wants {
                        match self.sabotage {
                            Mutant::PermitsOneMore => want.at_most += 1,
                            Mutant::PermitsCostIgnored => want.units = 1,
                            Mutant::PermitsCostCut => want.units = want.units.min(want.at_most),
                            Mutant::PermitsZeroIsOne => want.at_most = want.at_most.max(1),
                            _ => {}
                        }
                    }
                    if self.is(Mutant::PermitsFirstKeyOnly) {
                        take.wants.truncate(1);
                    }
                }
                _ => {}
            }
        }
        let exchanged = self.inner.permits()?.exchange(&asked).await;
        match exchanged {
            Err(error) if error.kind() == ErrorKind::Fenced && self.is(Mutant::PermitsFenceIgnored) => {
                Ok(Exchanged::Done(Vec::new()))
            }
            Ok(Exchanged::Done(mut taken)) if self.is(Mutant::PermitsContentionHidden) => {
                for taken in &mut taken {
                    if *taken == Taken::Contended {
                        *taken = Taken::Granted;
                    }
                }
                Ok(Exchanged::Done(taken))
            }
            other => other,
        }
    }

    async fn called(&self, holder: &PermitHolder, seen: MessageId, wait: Duration) -> Result<Calls> {
        if self.is(Mutant::PermitsNeverCalled) {
            tokio::time::sleep(wait).await;
            return Ok(Calls { seen, ..Calls::default() });
        }
        let mut calls = self.inner.permits()?.called(holder, seen, wait).await?;
        match self.sabotage {
            Mutant::PermitsRulesNotTold => calls.calls.retain(|call| *call != Call::Rules),
            Mutant::RatesCloseNotTold => calls.calls.retain(|call| !matches!(call, Call::Closed(..))),
            Mutant::PermitsWantedNotTold => calls.calls.retain(|call| !matches!(call, Call::Wanted(_))),
            Mutant::PermitsCalledTwice => {
                let mut memo = self.memo();
                let again = memo.permits.last.take();
                memo.permits.last = calls.calls.last().cloned();
                if let (true, Some(again)) = (calls.calls.is_empty(), again) {
                    calls.calls.push(again);
                    calls.seen = seen;
                }
            }
            _ => {}
        }
        Ok(calls)
    }

    async fn end(&self, holder: &PermitHolder) -> Result<bool> {
        match self.sabotage {
            Mutant::PermitsEndForgotten => Ok(false),
            Mutant::PermitsEndInOnePart => self.inner.permits()?.end(holder).await.map(|_| false),
            _ => self.inner.permits()?.end(holder).await,
        }
    }

    async fn limit_rules(&self) -> Result<LimitRules> {
        self.inner.permits()?.limit_rules().await
    }

    async fn set_limit_rule(&self, pattern: &LimitPattern, bound: Option<LimitBound>) -> Result<u64> {
        let stays = self.is(Mutant::PermitsRuleStays);
        let bound = bound.or(stays.then_some(LimitBound::AtMost(7)));
        self.inner.permits()?.set_limit_rule(pattern, bound).await
    }

    async fn reserve(&self, reservation: &Reservation) -> Result<Reserved> {
        let mut asked = reservation.clone();
        for step in &mut asked.steps {
            match step {
                TokenStep::Reserves { tokens, rate, waits, .. } => match self.sabotage {
                    Mutant::RatesOneToken => *tokens = 1,
                    Mutant::RatesBurstForgotten => *rate = rate.burst(1),
                    Mutant::RatesAlwaysWait => *waits = true,
                    _ => {}
                },
                TokenStep::Charges { tokens, .. } if self.is(Mutant::RatesChargeForgotten) => *tokens = 0,
                TokenStep::Charges { tokens, .. } if self.is(Mutant::RatesChargeOnly) => {
                    *tokens = (*tokens).max(0);
                }
                TokenStep::Closes { time, .. } if self.is(Mutant::RatesCloseForgotten) => {
                    *time = Duration::ZERO;
                }
                TokenStep::Breaks { time, .. } if self.is(Mutant::BreakersNeverOpen) => {
                    *time = Duration::ZERO;
                }
                TokenStep::Breaks { time: time @ Duration::ZERO, key, rate, .. }
                    if self.is(Mutant::BreakersStayListed) =>
                {
                    *step = TokenStep::Closes { key: key.clone(), time: *time, rate: *rate };
                }
                _ => {}
            }
        }
        match self.sabotage {
            Mutant::RatesRulesIgnored => {
                asked.version = self.inner.permits()?.limit_rules().await?.version;
            }
            Mutant::RatesUnbounded => asked.steps.truncate(250),
            _ => {}
        }
        let reserved = self.inner.permits()?.reserve(&asked).await?;
        match reserved {
            Reserved::Done(mut leads) if self.is(Mutant::RatesAtOnce) => {
                leads.iter_mut().for_each(|lead| *lead = Lead::At(0));
                Ok(Reserved::Done(leads))
            }
            other => Ok(other),
        }
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        self.inner.permits()?.open_breakers().await
    }

    async fn drop_idle_rates(&self) -> Result<bool> {
        self.inner.permits()?.drop_idle_rates().await
    }

    async fn rate_state(&self, key: &PermitKey) -> Result<Option<RateState>> {
        let hidden = self.is(Mutant::RatesStateHidden);
        Ok(self.inner.permits()?.rate_state(key).await?.filter(|_| !hidden))
    }

    async fn usage(&self, from: u64, limit: usize) -> Result<PermitPage> {
        let mut page = self.inner.permits()?.usage(from, limit).await?;
        if self.is(Mutant::PermitsWaitingHidden) {
            page.keys.iter_mut().for_each(|state| state.waiting.clear());
        }
        Ok(page)
    }
}
