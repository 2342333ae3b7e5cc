//! A limit as a program states it: what it counts, how many at once or in a time, and what happens to a message over it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Problems, Result};
use millstream_core::limits::{LimitBound, MAX_UNITS, PermitKey};
use millstream_core::panics::{UserCode, catch};
use millstream_core::permits::MAX_KEYS;
use millstream_core::rates::MAX_TOKENS;
use millstream_core::{Envelope, LimitKey, LimitName, Observer, Rate};

use crate::limits::Breaker;

type KeyOf = Arc<dyn Fn(&Envelope) -> Option<LimitKey> + Send + Sync>;
type CostOf = Arc<dyn Fn(&Envelope) -> u32 + Send + Sync>;

/// Limit on how many messages of a key are handled at once, or with a [`rate`](Self::rate) how many begin in a time, by all consumers of the
/// namespace that state a limit of this name: in all processes, groups, topics and partitions.
///
/// A message over the limit waits outside of what is in flight, and uses no attempt. Its place is kept where order is promised; with
/// `Concurrency::Serial`, the default, its whole partition waits. Rules that operators set on the server precede [`at_most`](Self::at_most).
/// Programs that state different numbers follow each its own.
///
/// ```
/// use millstream_core::Rate;
/// use millstream_engine::Limit;
///
/// let of_a_tenant = Limit::by_header("per-tenant", "x-tenant").at_most(2);
/// let in_all = Limit::global("mail-api").rate(Rate::per_second(10));
/// # let _ = (of_a_tenant, in_all);
/// ```
#[derive(Clone)]
#[must_use = "a limit does nothing until a consumer has it"]
pub struct Limit {
    name: Result<LimitName>,
    key: KeyOf,
    bound: LimitBound,
    /// If there is one, it counts instead of the bound.
    breaker: Option<Arc<Breaker>>,
    cost: Option<CostOf>,
    drops: bool,
    cancels: bool,
}

impl Limit {
    /// Creates a limit of one message at once for each key that `key` returns. A message for which it returns `None`, or panics, does not
    /// come under the limit.
    ///
    /// A name that cannot be used is reported when the consumer starts.
    pub fn new(
        name: impl AsRef<str>,
        key: impl Fn(&Envelope) -> Option<LimitKey> + Send + Sync + 'static,
    ) -> Self {
        let bound = LimitBound::AtMost(1);
        Self {
            name: LimitName::new(name),
            key: Arc::new(key),
            bound,
            breaker: None,
            cost: None,
            drops: false,
            cancels: false,
        }
    }

    /// Creates a limit for each value of a header: `name` is the limit's. A message without the header does not come under it, nor one
    /// whose value is empty or, as the text of a [`LimitKey`], longer than 512 bytes.
    pub fn by_header(name: impl AsRef<str>, header: impl Into<String>) -> Self {
        let header = header.into();
        Self::new(name, move |message| of_value(message.headers.get(&header)))
    }

    /// Creates a limit for each key of messages. A message without a key does not come under it, nor one whose key is empty or too long.
    pub fn by_key(name: impl AsRef<str>) -> Self {
        Self::new(name, |message| of_value(message.key.as_ref()))
    }

    /// Creates one limit for all messages. Its only key is `all`.
    pub fn global(name: impl AsRef<str>) -> Self {
        Self::new(name, |_| Some(LimitKey::all()))
    }

    /// Sets how many messages of a key are handled at once, from 0 (none) to 1,000,000. Default: 1.
    ///
    /// It replaces a [`rate`](Self::rate) and a [`breaker`](Self::breaker): for both, state two limits.
    pub fn at_most(mut self, messages: u32) -> Self {
        self.breaker = None;
        self.bound = LimitBound::AtMost(messages);
        self
    }

    /// Sets how many messages of a key begin in a time, by the server's clock. It replaces [`at_most`](Self::at_most): for both, or for
    /// two rates, state two limits.
    ///
    /// In any window there are no more than the rate × the window, the burst, and what becomes free in 50 ms, for timers and machines that
    /// are late (at least one). A process that dies takes what it has reserved along: up to 75 tokens or 0.75 s of the rate.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.breaker = None;
        self.bound = LimitBound::Rate(rate);
        self
    }

    /// Lets no message of a key begin while too many of those before failed: an outage of what handlers call burns no attempts and makes
    /// no dead letters. It replaces [`at_most`](Self::at_most) and [`rate`](Self::rate): for both, state two limits. A cost and
    /// [`or_drop`](Self::or_drop) do not count.
    ///
    /// A message that fails while the breaker is open, because it began before, is handled again as the same attempt. One that tries whether
    /// the breaker can be closed, and fails, uses one. A rule of 0 that operators set holds a breaker open, any other rule holds it closed.
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(Arc::new(breaker));
        self
    }

    /// Sets a rate over which messages are dropped instead of waiting: as [`rate`](Self::rate) with [`or_drop`](Self::or_drop).
    ///
    /// If the rate states no burst, all tokens of its time can be saved up. There is no time at which it begins anew: of 5,000 a day,
    /// 5,000 may be spent at once after a quiet day, and the next one is free 17 seconds later.
    pub fn quota(self, rate: Rate) -> Self {
        self.rate(rate.or_burst(rate.tokens().max(1))).or_drop()
    }

    /// Sets how many units or tokens a message takes; 0 counts as 1. Default: 1.
    ///
    /// One that takes more units than there may be runs while no other of its key does, unless the limit is 0. One that takes more tokens
    /// than can be saved up begins when as many are free, and the next ones wait for the rest.
    pub fn cost(mut self, cost: impl Fn(&Envelope) -> u32 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Drops messages over the limit instead of letting them wait: they are settled as discarded. A message for which a limit of *units*
    /// says so waits for no units; those of rates wait, or do not, each for itself.
    pub fn or_drop(mut self) -> Self {
        self.drops = true;
        self
    }

    /// Lets a message over the limit cancel the one that has run for longest: that one's [`cancelled`](crate::Delivery::cancelled) says so, for the reason
    /// [`Superseded`](crate::delivery::CancelReason::Superseded). What it returns counts, but an error, a panic, a timeout or a wait for later settles it as discarded. The
    /// message waits until it ends: nothing is interrupted. For what is out of date once something newer comes, such as a preview or an index.
    ///
    /// Of those that wait in one consumer the newest stays; older ones are discarded. Only for a limit of one message at once, without a cost, and beside no other limit of
    /// units; rates and breakers may stand beside it. It does something where messages of
    /// a key run beside each other: with `Concurrency::Unordered`, or if the limit's key is not that of messages. If an operator sets a higher limit, each process that has one running may
    /// cancel one.
    pub fn or_cancel(mut self) -> Self {
        self.cancels = true;
        self
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, bound, breaker, drops, .. } = self;
        f.debug_struct("Limit")
            .field("name", name)
            .field("bound", bound)
            .field("breaker", breaker)
            .field("drops", drops)
            .finish_non_exhaustive()
    }
}

fn of_value(value: Option<&Bytes>) -> Option<LimitKey> {
    LimitKey::new([value.filter(|value| !value.is_empty())?]).ok()
}

/// Units of one key that a message needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The key.
    pub key: PermitKey,
    /// How many units.
    pub units: u32,
    /// How many may be in use at once, if no rule says otherwise.
    pub at_most: u32,
    /// Whether it cancels messages that run, if the key is short.
    pub cancels: bool,
}

/// Tokens of one key that a message needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenNeed {
    /// The key.
    pub key: PermitKey,
    /// How many tokens.
    pub tokens: u32,
    /// At which rate they become free, if no rule says otherwise.
    pub rate: Rate,
    /// Whether the message is dropped if there are none.
    pub drops: bool,
}

/// A breaker of one key that must let a message pass.
#[derive(Clone, Debug)]
pub struct BreakerNeed {
    /// The key.
    pub key: PermitKey,
    /// When it opens, and for how long.
    pub breaker: Arc<Breaker>,
}

impl BreakerNeed {
    /// Returns the token with which a message tries whether the breaker can be closed.
    pub(super) fn token(&self) -> TokenNeed {
        TokenNeed { key: self.key.clone(), tokens: 1, rate: self.breaker.probes(), drops: false }
    }
}

/// What a message needs.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Units, in the order of the limits.
    pub units: Vec<Need>,
    /// Tokens, in the order of the limits.
    pub tokens: Vec<TokenNeed>,
    /// Breakers, in the order of the limits.
    pub breakers: Vec<BreakerNeed>,
    /// Whether it is dropped if it does not get its units: if one of the limits that it comes under says so.
    pub drops: bool,
}

impl Needs {
    /// Whether it needs nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty() && self.tokens.is_empty() && self.breakers.is_empty()
    }
}

/// The limits of one consumer.
#[derive(Clone, Debug, Default)]
pub struct LimitSet(Vec<Limit>);

impl LimitSet {
    /// Adds a limit.
    pub fn push(&mut self, limit: Limit) {
        self.0.push(limit);
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them drops messages.
    #[must_use]
    pub fn drops(&self) -> bool {
        self.0.iter().any(|limit| limit.drops && limit.breaker.is_none())
    }

    /// Whether one of them cancels messages.
    #[must_use]
    pub fn cancels(&self) -> bool {
        self.0.iter().any(|limit| limit.cancels)
    }

    /// Returns the names of those that are breakers.
    pub fn breakers(&self) -> impl Iterator<Item = &LimitName> {
        let breakers = self.0.iter().filter(|limit| limit.breaker.is_some());
        breakers.filter_map(|limit| limit.name.as_ref().ok())
    }

    /// Returns the names of the limits.
    pub fn names(&self) -> impl Iterator<Item = &LimitName> {
        self.0.iter().filter_map(|limit| limit.name.as_ref().ok())
    }

    /// Checks all of them.
    pub fn check(&self, problems: &mut Problems) {
        let wrong = |why: String| Err(Error::new(ErrorKind::InvalidConfig, why));
        for (n, limit) in self.0.iter().enumerate() {
            let Some(name) = problems.take(limit.name.clone()) else { continue };
            let same = |other: &Limit| other.name.as_ref().is_ok_and(|other| *other == name);
            if self.0[..n].iter().any(same) {
                problems.take::<()>(wrong(format!("limit {name} is there twice")));
            }
            let is_of_one = limit.breaker.is_none() && limit.bound.units() == Some(1) && limit.cost.is_none();
            problems.require(!limit.cancels || is_of_one && !limit.drops, || {
                format!("limit {name}: or_cancel goes with at_most(1), without a cost and without or_drop")
            });
            // Of a message that takes several at once it is not known for which of them others wait.
            let of_units = |it: &&Limit| it.breaker.is_none() && it.bound.units().is_some();
            problems.require(!limit.cancels || self.0.iter().filter(of_units).count() == 1, || {
                format!("limit {name}: or_cancel goes with no other limit of units")
            });
            let checked = limit.breaker.as_ref().map_or_else(|| limit.bound.check(), |it| it.check());
            problems.take(checked.map_err(|error| error.during(format_args!("limit {name}"))));
        }
        if self.0.len() > MAX_KEYS {
            problems.take::<()>(wrong(format!("{} limits, at most {MAX_KEYS}", self.0.len())));
        }
    }

    /// Returns what a message needs. The observer receives panics of keys and costs.
    #[must_use]
    pub fn needs(&self, message: &Envelope, observer: &dyn Observer) -> Needs {
        let mut needs = Needs::default();
        for limit in &self.0 {
            let Ok(name) = &limit.name else { continue };
            let asked = catch(UserCode::Limit, || {
                let key = (limit.key)(message)?;
                Some((key, limit.cost.as_ref().map_or(1, |cost| cost(message))))
            });
            let asked = asked.unwrap_or_else(|panicked| {
                observer.observe(&panicked.event());
                None
            });
            let Some((key, cost)) = asked else { continue };
            let key = PermitKey::new(name, &key);
            if let Some(breaker) = &limit.breaker {
                needs.breakers.push(BreakerNeed { key, breaker: breaker.clone() });
                continue;
            }
            match limit.bound {
                LimitBound::AtMost(at_most) => {
                    let (units, cancels) = (cost.clamp(1, MAX_UNITS), limit.cancels);
                    needs.units.push(Need { key, units, at_most, cancels });
                    needs.drops |= limit.drops;
                }
                LimitBound::Rate(rate) => {
                    let (tokens, drops) = (cost.clamp(1, MAX_TOKENS), limit.drops);
                    needs.tokens.push(TokenNeed { key, tokens, rate, drops });
                }
            }
        }
        needs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(limit: Limit, message: &Envelope) -> Vec<(String, u32)> {
        let mut limits = LimitSet::default();
        limits.push(limit);
        limits
            .needs(message, &millstream_core::event::Ignore)
            .units
            .into_iter()
            .map(|need| (need.key.to_string(), need.units))
            .collect()
    }

    #[test]
    fn a_message_needs_what_it_says() {
        let message = Envelope::new("x").with_key("k/1").with_header("tenant", "acme");
        assert_eq!(needs(Limit::by_header("t", "tenant"), &message), [("t:acme".to_owned(), 1)]);
        assert_eq!(needs(Limit::by_header("t", "none"), &message), []);
        assert_eq!(needs(Limit::by_key("k"), &message), [("k:k%2F1".to_owned(), 1)]);
        assert_eq!(needs(Limit::by_key("k"), &Envelope::new("x")), []);
        assert_eq!(needs(Limit::global("a").cost(|_| 3), &message), [("a:all".to_owned(), 3)]);
        assert_eq!(needs(Limit::global("a").cost(|_| 0), &message), [("a:all".to_owned(), 1)]);
        let huge = Envelope::new("x").with_key(vec![b'k'; 10_000]);
        assert_eq!(needs(Limit::by_key("k"), &huge), []);
    }

    #[test]
    fn tokens_are_needed_beside_units() {
        let mut limits = LimitSet::default();
        let rate = Rate::per_second(10);
        limits.push(Limit::global("a").rate(rate).cost(|_| 3));
        limits.push(Limit::global("b").at_most(2));
        let needs = limits.needs(&Envelope::new("x"), &millstream_core::event::Ignore);
        let token = TokenNeed { key: "a:all".parse().expect("a key"), tokens: 3, rate, drops: false };
        assert_eq!((needs.units.len(), needs.tokens, needs.drops), (1, vec![token], false));
        let quota = Limit::global("a").quota(rate);
        assert_eq!((quota.bound, quota.drops), (LimitBound::Rate(rate.burst(10)), true));
    }

    #[test]
    fn a_key_that_panics_limits_nothing() {
        assert_eq!(needs(Limit::new("a", |_| panic!("mine")), &Envelope::new("x")), []);
        assert_eq!(needs(Limit::global("a").cost(|_| panic!("mine")), &Envelope::new("x")), []);
    }

    #[test]
    fn what_cannot_work_is_told_at_once() {
        for limits in [
            vec![Limit::global("a b")],
            vec![Limit::global("a"), Limit::by_key("a")],
            vec![Limit::global("a").at_most(MAX_UNITS + 1)],
            vec![Limit::global("a").rate(Rate::per_second(1).burst(0))],
            vec![Limit::global("a").breaker(Breaker::new().calls(0))],
            (0..=MAX_KEYS).map(|n| Limit::global(format!("l{n}"))).collect(),
        ] {
            let mut problems = Problems::new("consumer");
            LimitSet(limits).check(&mut problems);
            problems.finish().expect_err("it is refused");
        }
    }
}
