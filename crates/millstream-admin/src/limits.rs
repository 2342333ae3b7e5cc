//! Limits: what is in use, who waits, and the rules of operators.

pub(crate) mod simulation;

use std::time::Duration;

use millstream_core::Result;
use millstream_core::limits::{LimitBound, LimitPattern, LimitRules, PermitKey};
use millstream_core::permits::{OpenBreaker, PermitPage, PermitState, RateState, Reservation, TokenStep};
use millstream_core::rates::{LONGEST_PERIOD, Rate};

use crate::Admin;

/// Keys that are read in one request.
const PAGE: usize = 500;

impl Admin {
    /// Returns a part of the list of all keys of limits of which something is in use, or waited for: about `limit` of them, in no particular
    /// order. Begin with 0, and continue with [`PermitPage::next`] until it is `None`; a part may be empty before that.
    ///
    /// # Errors
    /// `Unsupported` for a backend without limits; transient ones.
    pub async fn limits_in_use(&self, from: u64, limit: usize) -> Result<PermitPage> {
        self.backend.permits()?.usage(from, limit).await
    }

    /// Returns all keys of limits whose text begins like this, of which something is in use or waited for.
    ///
    /// # Errors
    /// Those of [`limits_in_use`](Self::limits_in_use).
    pub async fn limits_of(&self, prefix: &str) -> Result<Vec<PermitState>> {
        let (mut keys, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            let page = self.limits_in_use(at, PAGE).await?;
            keys.extend(page.keys.into_iter().filter(|state| state.key.as_str().starts_with(prefix)));
            from = page.next;
        }
        // One that is in two parts of the list is shown once.
        keys.sort_by(|one, other| one.key.cmp(&other.key));
        keys.dedup_by(|one, other| one.key == other.key);
        Ok(keys)
    }

    /// Returns how far the tokens of a key of a rate limit are reserved; `None` if none are, and it is not closed.
    ///
    /// # Errors
    /// Those of [`limits_in_use`](Self::limits_in_use).
    pub async fn rate_state(&self, key: &PermitKey) -> Result<Option<RateState>> {
        self.backend.permits()?.rate_state(key).await
    }

    /// Lets nobody spend tokens of a key of a rate limit for this time, at least, up to 31 days, or opens it again with no time: what
    /// `Delivery::close_rates` does from a handler. All consumers see it at once.
    ///
    /// # Errors
    /// Those of [`limits_in_use`](Self::limits_in_use).
    pub async fn close_rate(&self, key: &PermitKey, time: Duration) -> Result<()> {
        // The record's own distance of tokens counts.
        let (key, time, rate) = (key.clone(), time.min(LONGEST_PERIOD), Rate::per_second(0));
        let steps = vec![TokenStep::Closes { key, time, rate }];
        self.backend.permits()?.reserve(&Reservation { version: 0, steps }).await?;
        Ok(())
    }

    /// Returns the breakers that are open, or of which it is not known whether they can be closed, by key.
    ///
    /// # Errors
    /// Those of [`limits_in_use`](Self::limits_in_use).
    pub async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        let mut open = self.backend.permits()?.open_breakers().await?;
        open.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(open)
    }

    /// Returns the rules of operators, which precede what programs state.
    ///
    /// # Errors
    /// Those of [`limits_in_use`](Self::limits_in_use).
    pub async fn limit_rules(&self) -> Result<LimitRules> {
        self.backend.permits()?.limit_rules().await
    }

    /// Sets what is allowed of the keys of a pattern: units in use at once, or a rate; or removes the rule with `None`. All consumers see
    /// it at once; what runs goes on, and a consumer that starts sets nothing back. Returns the new version of the rules.
    ///
    /// # Errors
    /// `InvalidConfig` for numbers that cannot be; those of [`limits_in_use`](Self::limits_in_use).
    pub async fn set_limit(&self, pattern: &LimitPattern, bound: Option<LimitBound>) -> Result<u64> {
        bound.map_or(Ok(()), |bound| bound.check())?;
        self.backend.permits()?.set_limit_rule(pattern, bound).await
    }
}
