//! Mistakes of the permits role.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::permits::{
    Call, Calls, Exchange, Exchanged, PermitHolder, PermitPage, Permits, PermitsRenewed, Step, Taken,
};
use millstream_core::{Continuity, ErrorKind, LimitPattern, LimitRules, MessageId, Result};

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

    async fn set_limit_rule(&self, pattern: &LimitPattern, at_most: Option<u32>) -> Result<u64> {
        let at_most = if self.is(Mutant::PermitsRuleStays) { at_most.or(Some(7)) } else { at_most };
        self.inner.permits()?.set_limit_rule(pattern, at_most).await
    }

    async fn usage(&self, from: u64, limit: usize) -> Result<PermitPage> {
        let mut page = self.inner.permits()?.usage(from, limit).await?;
        if self.is(Mutant::PermitsWaitingHidden) {
            page.keys.iter_mut().for_each(|state| state.waiting.clear());
        }
        Ok(page)
    }
}
