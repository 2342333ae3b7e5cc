//! The permits role: how many messages of a key are handled at once, or begin in a time, counted across processes, partitions and topics.
//!
//! A *holder* is one consumer of one process. It has units of keys, as a lease: they end with it. Whoever finds that a holder has not
//! renewed in time [ends](Permits::end) it, which frees what it had and calls who waits; what the former holder says later is refused.
//!
//! A take needs units of several keys, and gets all of them or none. One that gets none waits for the first key that is short, with
//! no units, and its holder is [called](Permits::called) when units of that key are free. Nobody asks again before.
//!
//! Tokens of rates belong to nobody: they are [reserved](Permits::reserve) for a time, and lost if they are not spent then.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::continuity::Continuity;
use crate::error::{Error, ErrorKind, Result};
use crate::id::MessageId;
use crate::timestamp::Timestamp;

pub use crate::decisions::limits::{LimitBound, LimitKey, LimitPattern, LimitRules, PermitKey};
pub use crate::decisions::rates::{Lead, Rate, RateState};

/// Most steps of an [`Exchange`].
pub const MAX_STEPS: usize = 250;

/// Most keys of a [`Take`].
pub const MAX_KEYS: usize = 8;

/// Longest reason of a breaker, in bytes. What is longer is cut.
pub const MAX_REASON_LEN: usize = 256;

/// Longest name of a holder, in bytes.
pub const MAX_HOLDER_LEN: usize = 192;

/// Name of one consumer of one process, unique to one start of it: letters, digits, `.`, `_` and `-`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitHolder(String);

impl PermitHolder {
    /// Checks a name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > MAX_HOLDER_LEN || !name.chars().all(plain) {
            let why = format!(
                "a holder of permits has a name of 1 to {MAX_HOLDER_LEN} of A-Z a-z 0-9 . _ -, not {name:?}"
            );
            return Err(Error::new(ErrorKind::InvalidName, why));
        }
        Ok(Self(name))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the error of a holder that was ended.
    #[must_use]
    pub fn fenced(&self) -> Error {
        Error::new(ErrorKind::Fenced, format!("the permits of {self} are lost: it was not renewed in time"))
    }

    /// Returns the error of an exchange that came after a later one.
    #[must_use]
    pub fn stale(&self) -> Error {
        Error::new(ErrorKind::Protocol, format!("a later exchange of permits of {self} came first"))
    }
}

impl fmt::Display for PermitHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PermitHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Units of one key that a [`Take`] needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The key.
    pub key: PermitKey,
    /// How many units.
    pub units: u32,
    /// How many units may be in use at once, by the rules of [`Exchange::version`]. One that needs more gets them while no unit of the key is in use.
    pub at_most: u32,
}

/// What one message needs: units of one key or more, each key once. All are taken, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// One to [`MAX_KEYS`] of them.
    pub wants: Vec<Want>,
    /// Whether its holder waits for the first key that is short.
    pub waits: bool,
}

/// One change of what a holder has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has so many units of the key: fewer than before, or as many.
    Has(PermitKey, u32),
    /// It no longer waits for the key.
    Leaves(PermitKey),
    /// It takes units.
    Takes(Take),
}

/// Steps of one holder, which are taken in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The holder.
    pub holder: PermitHolder,
    /// Greater than that of the exchange before: a request that comes later than the next one changes nothing.
    pub number: u64,
    /// Version of the rules that the limits of takes follow.
    pub version: u64,
    /// At most [`MAX_STEPS`] steps.
    pub steps: Vec<Step>,
}

/// What became of a [`Take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All units are taken.
    Granted,
    /// All units are taken, and others wait for a unit of one of the keys.
    Contended,
    /// None is taken: the want at this position is short. If the take waits, its holder waits for that key, and for no other key of the take.
    Short(usize),
}

/// Reply to an [`Exchange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchanged {
    /// What became of each take, in order.
    Done(Vec<Taken>),
    /// The rules have changed: everything but the takes is done.
    Changed(LimitRules),
}

/// One change of what is reserved of a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenStep {
    /// Reserves the next tokens of a key.
    Reserves {
        /// The key.
        key: PermitKey,
        /// How many.
        tokens: u32,
        /// The rate, by the rules of [`Reservation::version`].
        rate: Rate,
        /// Whether tokens that are not free yet are reserved too. Otherwise all must be free, or as many as can be saved up.
        waits: bool,
    },
    /// Charges so many tokens more of a key, or gives them back, if the number is negative.
    Charges {
        /// The key.
        key: PermitKey,
        /// How many.
        tokens: i64,
        /// The rate.
        rate: Rate,
    },
    /// Lets nobody spend tokens of the key for this time, at least. All holders are [called](Permits::called), if that changes something.
    Closes {
        /// The key.
        key: PermitKey,
        /// How long, at most 31 days. No time opens the key again.
        time: Duration,
        /// The rate.
        rate: Rate,
    },
    /// As [`Closes`](Self::Closes), for a breaker: it is listed as an [open one](Permits::open_breakers) from now on, or with no time it is
    /// closed and no longer listed. Holders are called if that changes something.
    Breaks {
        /// The key.
        key: PermitKey,
        /// How long, at most 31 days. No time closes the breaker.
        time: Duration,
        /// At which rate messages may try whether it can be closed, once the time is over.
        rate: Rate,
        /// Why, in at most [`MAX_REASON_LEN`] bytes.
        reason: String,
    },
}

/// Changes of what is reserved of rates, which are made in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Version of the rules that the rates follow.
    pub version: u64,
    /// At most [`MAX_STEPS`] steps.
    pub steps: Vec<TokenStep>,
}

/// Reply to a [`Reservation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// What became of each [`Reserves`](TokenStep::Reserves), in order.
    Done(Vec<Lead>),
    /// The rules have changed: nothing is reserved, and everything else is done.
    Changed(LimitRules),
}

/// Reply to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitsRenewed {
    /// Holders that were ended and still have something: [`end`](Permits::end) frees it. At most 100.
    pub ended: Vec<PermitHolder>,
    /// Time until another holder may have to be ended; `None` if there is no other.
    pub next_expiry: Option<Duration>,
    /// Whether calls may be lost, so that everything that waits has to ask again.
    pub look_again: bool,
    /// Where the calls of a holder that joins begin.
    pub seen: MessageId,
    /// Identity of the server, for [`Continuity::advance`].
    pub server: String,
    /// Time of the reply by the server's clock.
    pub now: Timestamp,
}

impl PermitsRenewed {
    /// Creates a reply as a backend returns it.
    #[must_use]
    pub const fn new(server: String, now: Timestamp) -> Self {
        let seen = MessageId::ZERO;
        Self { ended: Vec::new(), next_expiry: None, look_again: false, seen, server, now }
    }
}

/// Something that a holder has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Units of the key are free, and it is the holder's turn to take them. Until it takes or leaves, nobody else gets them.
    Free(PermitKey),
    /// Another holder waits for the key, of which this one has units.
    Wanted(PermitKey),
    /// The rules have changed.
    Rules,
    /// Nobody may spend tokens of the key for this time: what was reserved before is void.
    Closed(PermitKey, Duration),
}

/// Calls that came, with the position behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// The calls, oldest first.
    pub calls: Vec<Call>,
    /// Where the next ones are looked for.
    pub seen: MessageId,
    /// Whether some may be lost, so that everything that waits has to ask again.
    pub missed: bool,
}

/// State of one key, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitState {
    /// The key.
    pub key: PermitKey,
    /// How many units may be in use at once, as the last taker saw it.
    pub at_most: u32,
    /// Holders that have units, with their number.
    pub held: Vec<(PermitHolder, u32)>,
    /// Holders that wait, in the order of their turns.
    pub waiting: Vec<PermitHolder>,
}

impl PermitState {
    /// Creates the state of a key that nobody uses.
    #[must_use]
    pub const fn new(key: PermitKey, at_most: u32) -> Self {
        Self { key, at_most, held: Vec::new(), waiting: Vec::new() }
    }
}

/// Part of the list of all keys in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitPage {
    /// The keys, in no particular order.
    pub keys: Vec<PermitState>,
    /// Where the next part begins; `None` at the end of the list.
    pub next: Option<u64>,
}

/// A breaker that is open, or of which it is not known whether it can be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenBreaker {
    /// The key.
    pub key: PermitKey,
    /// Since when it is not closed.
    pub since: Timestamp,
    /// From when on a message may try whether it can be closed.
    pub until: Timestamp,
    /// Why it was opened last.
    pub reason: String,
}

impl OpenBreaker {
    /// Returns the reason as it is stored: cut to [`MAX_REASON_LEN`].
    #[must_use]
    pub fn cut(reason: &str) -> &str {
        let mut len = reason.len().min(MAX_REASON_LEN);
        while !reason.is_char_boundary(len) {
            len -= 1;
        }
        reason.get(..len).unwrap_or_default()
    }
}

/// Grants, takes back and counts units of limits.
#[async_trait]
pub trait Permits: Send + Sync {
    /// Joins with a new holder, or extends the right of one by another ttl. One that merely expired is revived, unless it was ended.
    ///
    /// Holders that were not renewed in time are ended, if the caller's continuity [judges](Continuity::judges) them.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if it was ended, and does not join; transient ones; [`ErrorKind::WrongType`].
    async fn renew(
        &self,
        holder: &PermitHolder,
        ttl: Duration,
        continuity: &Continuity,
        joining: bool,
    ) -> Result<PermitsRenewed>;

    /// Gives back and takes units, in one step.
    ///
    /// A take gets nothing while another holder waits for one of its keys and came first.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if the holder was ended; [`ErrorKind::Protocol`] if a later one came first, without an effect;
    /// [`ErrorKind::InvalidConfig`] for more steps or keys than there may be; transient ones, after which the next exchange states what the
    /// holder [has](Step::Has) of each key of this one; [`ErrorKind::WrongType`].
    async fn exchange(&self, exchange: &Exchange) -> Result<Exchanged>;

    /// Waits up to `wait` for calls after `seen`. It may return none early, and dropping this future is safe.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn called(&self, holder: &PermitHolder, seen: MessageId, wait: Duration) -> Result<Calls>;

    /// Ends a holder, and frees a part of what it has. Returns whether there is more, for another call.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn end(&self, holder: &PermitHolder) -> Result<bool>;

    /// Returns the rules that operators have set.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn limit_rules(&self) -> Result<LimitRules>;

    /// Sets what is allowed of the keys of a pattern, or removes the rule. All holders are called. Returns the new version.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn set_limit_rule(&self, pattern: &LimitPattern, bound: Option<LimitBound>) -> Result<u64>;

    /// Reserves tokens of rates, by the server's time.
    ///
    /// A request whose reply is lost may have reserved tokens, which are lost then.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for more steps than there may be, or a rate that cannot be; transient ones; [`ErrorKind::WrongType`].
    async fn reserve(&self, reservation: &Reservation) -> Result<Reserved>;

    /// Drops some records of rates that say nothing any more. Returns whether there are likely to be more, for another call.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn drop_idle_rates(&self) -> Result<bool>;

    /// Returns how far the tokens of a key are reserved; `None` if none are, and it is not closed.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn rate_state(&self, key: &PermitKey) -> Result<Option<RateState>>;

    /// Returns the breakers that are not closed, in no particular order.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>>;

    /// Returns a part of the list of all keys in use: about `limit` of them, also none in the middle of the list. What holders that were
    /// ended have is left out.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn usage(&self, from: u64, limit: usize) -> Result<PermitPage>;
}

/// Checks the bounds of a reservation. Backends call this.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`].
pub fn check_reservation(reservation: &Reservation) -> Result<()> {
    if reservation.steps.len() > MAX_STEPS {
        let why = format!("{} steps of tokens at once, at most {MAX_STEPS}", reservation.steps.len());
        return Err(Error::new(ErrorKind::InvalidConfig, why));
    }
    for step in &reservation.steps {
        match step {
            TokenStep::Reserves { rate, .. }
            | TokenStep::Charges { rate, .. }
            | TokenStep::Closes { rate, .. }
            | TokenStep::Breaks { rate, .. } => rate.check()?,
        }
    }
    Ok(())
}

/// Checks the bounds of an exchange. Backends call this.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`].
pub fn check_exchange(exchange: &Exchange) -> Result<()> {
    let wrong = |why: String| Err(Error::new(ErrorKind::InvalidConfig, why));
    if exchange.steps.len() > MAX_STEPS {
        return wrong(format!("{} steps of permits at once, at most {MAX_STEPS}", exchange.steps.len()));
    }
    for step in &exchange.steps {
        let Step::Takes(take) = step else { continue };
        if take.wants.is_empty() || take.wants.len() > MAX_KEYS {
            return wrong(format!(
                "a message needs permits of 1 to {MAX_KEYS} keys, not of {}",
                take.wants.len()
            ));
        }
        for (n, want) in take.wants.iter().enumerate() {
            if take.wants[..n].iter().any(|other| other.key == want.key) {
                return wrong(format!("a message needs permits of {} twice", want.key));
            }
        }
    }
    Ok(())
}
