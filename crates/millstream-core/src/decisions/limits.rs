//! Limits: the keys that they count, and the rules that say how much of each may be in use at once, or begin in a time.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::decisions::rates::Rate;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LimitName;

/// Most levels of a key.
pub const MAX_LEVELS: usize = 3;

/// Longest key, in bytes of its text.
pub const MAX_KEY_LEN: usize = 512;

/// Largest number of units that a rule allows, and largest cost.
pub const MAX_UNITS: u32 = 1_000_000;

/// What a limit counts: a tenant, a resource of a tenant. One to three levels of any bytes.
///
/// As text, levels stand behind `/`, and every byte that is neither a letter, a digit nor one of `. _ - ~ @ + = , :` is escaped as `%XX`.
/// Two keys are equal if their levels are.
///
/// ```
/// use millstream_core::limits::LimitKey;
///
/// let key = LimitKey::new(["eu", "acme & co"]).unwrap();
/// assert_eq!(key.as_str(), "eu/acme%20%26%20co");
/// assert_eq!(key, "eu/acme%20%26%20co".parse().unwrap());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitKey(Bytes);

impl LimitKey {
    /// Creates a key from its levels.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for none, a single empty one or more than three levels, and for a text of more than 512 bytes.
    pub fn new<L: AsRef<[u8]>>(levels: impl IntoIterator<Item = L>) -> Result<Self> {
        let mut text = String::new();
        for (n, level) in levels.into_iter().enumerate() {
            if n == MAX_LEVELS {
                return Err(wrong(format!("the key of a limit has at most {MAX_LEVELS} levels")));
            }
            let level = level.as_ref();
            // Exactly, as far as nothing is escaped: `Bytes` takes a text with room behind it less cheaply.
            text.reserve_exact(usize::from(n > 0) + level.len());
            if n > 0 {
                text.push('/');
            }
            escape(level, &mut text);
        }
        Self::of_text(text)
    }

    /// Returns the only key of a limit that counts everything: `all`.
    #[must_use]
    pub const fn all() -> Self {
        Self(Bytes::from_static(b"all"))
    }

    fn of_text(text: String) -> Result<Self> {
        if text.is_empty() {
            return Err(wrong("the key of a limit is empty".into()));
        }
        if text.len() > MAX_KEY_LEN {
            return Err(wrong(format!(
                "the key of a limit has {} bytes as text, at most {MAX_KEY_LEN}",
                text.len()
            )));
        }
        Ok(Self(text.into()))
    }

    /// Returns the key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Only ASCII is ever put in.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl FromStr for LimitKey {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let mut levels = Vec::new();
        for level in text.split('/') {
            levels.push(unescape(level).ok_or_else(|| wrong(format!("{text:?} is no key of a limit")))?);
        }
        Self::new(levels)
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-~@+=,:".contains(&byte)
}

fn escape(level: &[u8], text: &mut String) {
    for byte in level {
        match is_plain(*byte) {
            true => text.push(char::from(*byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// Returns the bytes of a level; `None` for one that nobody wrote so.
fn unescape(level: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::with_capacity(level.len()), level.as_bytes());
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        bytes.push(match first {
            b'%' => {
                let (digits, others) = rest.split_at_checked(2)?;
                rest = others;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            plain if is_plain(*plain) => *plain,
            _ => return None,
        });
    }
    Some(bytes)
}

fn wrong(why: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, why)
}

/// Limit and key whose units in use are counted: `tenant:acme`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitKey(Bytes);

impl PermitKey {
    /// Creates the key of a limit's counter.
    #[must_use]
    pub fn new(limit: &LimitName, key: &LimitKey) -> Self {
        let (limit, key) = (limit.as_str(), key.as_str());
        let mut text = String::with_capacity(limit.len() + 1 + key.len());
        text.push_str(limit);
        text.push(':');
        text.push_str(key);
        Self(text.into())
    }

    /// Returns limit and key.
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        self.as_str().split_once(':').unwrap_or_default()
    }

    /// Returns the key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for PermitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for PermitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl FromStr for PermitKey {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once(':').ok_or_else(|| wrong(format!("{text:?} is no limit with a key")))?;
        Ok(Self::new(&parts.0.parse()?, &parts.1.parse()?))
    }
}

/// Keys of a limit that a rule is for: `tenant` for all of them, `tenant:acme` for one, `tenant:eu/*` for all of two levels whose first
/// is `eu`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitPattern {
    /// The limit.
    pub limit: LimitName,
    /// Text of each level, `*` for any; none: the rule is for every key.
    levels: Vec<String>,
}

impl LimitPattern {
    /// Creates the pattern of all keys of a limit.
    #[must_use]
    pub const fn all_of(limit: LimitName) -> Self {
        Self { limit, levels: Vec::new() }
    }

    /// How specific the pattern is for this key; `None` if it is not for it. One with a level given is above one with `*` there, the
    /// first level counts most, and a pattern for all keys is below all others.
    fn rank(&self, limit: &str, key: &str) -> Option<u8> {
        if self.limit.as_str() != limit {
            return None;
        }
        if self.levels.is_empty() {
            return Some(0);
        }
        let mut rank = 1;
        let mut levels = key.split('/');
        for level in &self.levels {
            let of_key = levels.next()?;
            rank = rank * 2 + u8::from(level != "*");
            if level != "*" && level != of_key {
                return None;
            }
        }
        levels.next().is_none().then_some(rank)
    }
}

impl fmt::Display for LimitPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.limit)?;
        match &*self.levels {
            [] => Ok(()),
            levels => write!(f, ":{}", levels.join("/")),
        }
    }
}

impl FromStr for LimitPattern {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let Some((limit, keys)) = text.split_once(':') else { return Ok(Self::all_of(text.parse()?)) };
        let mut levels = Vec::new();
        for level in keys.split('/') {
            levels.push(match level {
                "*" => "*".to_owned(),
                // In the form that keys have, however it was written.
                level => level.parse::<LimitKey>()?.to_string(),
            });
        }
        if levels.len() > MAX_LEVELS {
            return Err(wrong(format!("the pattern of a limit has at most {MAX_LEVELS} levels")));
        }
        Ok(Self { limit: limit.parse()?, levels })
    }
}

/// What a rule allows of a key. As text a number, or a [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitBound {
    /// So many units in use at once.
    AtMost(u32),
    /// So many tokens in a time.
    Rate(Rate),
}

impl LimitBound {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`].
    pub fn check(&self) -> Result<()> {
        match self {
            Self::AtMost(most) if *most > MAX_UNITS => Err(wrong(format!("a limit is at most {MAX_UNITS}"))),
            Self::AtMost(_) => Ok(()),
            Self::Rate(rate) => rate.check(),
        }
    }

    /// Whether it allows nothing.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        match self {
            Self::AtMost(most) => *most == 0,
            Self::Rate(rate) => rate.tokens() == 0,
        }
    }

    /// Returns the number of units.
    #[must_use]
    pub const fn units(&self) -> Option<u32> {
        match self {
            Self::AtMost(most) => Some(*most),
            Self::Rate(_) => None,
        }
    }

    /// Returns the rate.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        match self {
            Self::Rate(rate) => Some(*rate),
            Self::AtMost(_) => None,
        }
    }
}

impl fmt::Display for LimitBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => most.fmt(f),
            Self::Rate(rate) => rate.fmt(f),
        }
    }
}

impl FromStr for LimitBound {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        if text.contains('/') {
            return text.parse().map(Self::Rate);
        }
        let most =
            text.parse().map_err(|_| wrong(format!("{text:?} is no limit: write 10, or a rate as 10/s")))?;
        let bound = Self::AtMost(most);
        bound.check()?;
        Ok(bound)
    }
}

/// Rules that operators have set, with their version: it grows with each change. They precede what programs state.
///
/// A rule with a number counts for limits on what is in use at once, one with a rate for rate limits, and 0 for both. Of a breaker 0 holds it
/// open, and any other rule holds it closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitRules {
    /// Version of the rules; 0 while none was ever set.
    pub version: u64,
    /// Keys of limits, and what is allowed of each.
    pub rules: Vec<(LimitPattern, LimitBound)>,
}

impl LimitRules {
    /// Returns how many units of this key may be in use at once: by the most specific rule, or `default` if there is none.
    #[must_use]
    pub fn at_most(&self, key: &PermitKey, default: u32) -> u32 {
        let units = |bound: &LimitBound| bound.units().is_some();
        self.best(key, units).and_then(|(_, bound)| bound.units()).unwrap_or(default)
    }

    /// Returns the rate of this key: by the most specific rule, or `default` if there is none. A rule of 0 stops rates too.
    #[must_use]
    pub fn rate(&self, key: &PermitKey, default: Rate) -> Rate {
        let counts = |bound: &LimitBound| *bound == LimitBound::AtMost(0) || bound.rate().is_some();
        match self.best(key, counts) {
            Some((_, LimitBound::Rate(rate))) => rate.in_place_of(default),
            Some((_, LimitBound::AtMost(_))) => Rate::per_second(0),
            None => default,
        }
    }

    /// Returns whether a rule holds the breaker of this key open (a rule of 0), or closed (any other).
    #[must_use]
    pub fn holds_open(&self, key: &PermitKey) -> Option<bool> {
        self.rule(key).map(|(_, bound)| bound.is_nothing())
    }

    /// Returns the most specific rule for this key.
    #[must_use]
    pub fn rule(&self, key: &PermitKey) -> Option<&(LimitPattern, LimitBound)> {
        self.best(key, |_| true)
    }

    fn best(
        &self,
        key: &PermitKey,
        counts: impl Fn(&LimitBound) -> bool,
    ) -> Option<&(LimitPattern, LimitBound)> {
        let (limit, key) = key.parts();
        let mut best = None;
        for rule in self.rules.iter().filter(|rule| counts(&rule.1)) {
            if let Some(rank) = rule.0.rank(limit, key)
                && best.is_none_or(|(highest, _)| rank > highest)
            {
                best = Some((rank, rule));
            }
        }
        best.map(|(_, rule)| rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(rules: &[(&str, u32)]) -> LimitRules {
        let bound = |most: &u32| LimitBound::AtMost(*most);
        let rules = rules.iter().map(|(pattern, most)| (pattern.parse().expect("a pattern"), bound(most)));
        LimitRules { version: 1, rules: rules.collect() }
    }

    #[test]
    fn the_most_specific_rule_counts() {
        let rules = rules(&[
            ("tenant", 1),
            ("tenant:acme", 2),
            ("tenant:*/gpu", 3),
            ("tenant:eu/*", 4),
            ("tenant:eu/gpu", 5),
            ("other:acme", 6),
            ("tenant:*", 7),
        ]);
        for (key, expected) in [
            ("tenant:acme", 2),
            ("tenant:none", 7),
            ("tenant:eu/gpu", 5),
            ("tenant:eu/cpu", 4),
            ("tenant:us/gpu", 3),
            ("tenant:us/cpu", 1),
            ("tenant:eu/gpu/7", 1),
            ("other:acme", 6),
            ("other:none", 99),
            ("third:acme", 99),
        ] {
            assert_eq!(rules.at_most(&key.parse().expect("a key"), 99), expected, "{key}");
        }
    }

    #[test]
    fn a_rule_counts_for_limits_of_its_kind() {
        let mut rules = rules(&[("api", 3)]);
        let key: PermitKey = "api:acme".parse().expect("a key");
        let (slow, fast) = (Rate::per_second(1), Rate::per_second(9));
        assert_eq!((rules.at_most(&key, 9), rules.rate(&key, slow)), (3, slow));
        rules.rules.push(("api:acme".parse().expect("a pattern"), LimitBound::Rate(fast)));
        assert_eq!((rules.at_most(&key, 9), rules.rate(&key, slow)), (3, fast));
        rules.rules.push(("api:acme/x".parse().expect("a pattern"), LimitBound::AtMost(0)));
        assert_eq!(rules.rate(&"api:acme/x".parse().expect("a key"), slow), Rate::per_second(0));
        for (text, bound) in [("7", LimitBound::AtMost(7)), ("9/s", LimitBound::Rate(fast))] {
            let read: LimitBound = text.parse().expect("a bound");
            assert_eq!((read, bound.to_string()), (bound, text.to_owned()));
        }
        for text in ["", "x", "-1", "1000001", "9/x"] {
            assert_eq!(text.parse::<LimitBound>().expect_err(text).kind(), ErrorKind::InvalidConfig);
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in ["", "a/b/c/d", "a b", "%4", "%GG", "a*", "ü"] {
            assert_eq!(text.parse::<LimitKey>().expect_err(text).kind(), ErrorKind::InvalidConfig);
        }
        LimitKey::new(["x".repeat(MAX_KEY_LEN)]).expect("the longest");
        assert!(LimitKey::new(["x".repeat(MAX_KEY_LEN + 1)]).is_err());
        assert!("tenant:a/b/c/*".parse::<LimitPattern>().is_err());
    }

    #[test]
    fn a_star_in_a_key_is_no_wildcard() {
        let rules = rules(&[("tenant:%2A", 1)]);
        let star = PermitKey::new(&"tenant".parse().expect("name"), &LimitKey::new(["*"]).expect("a key"));
        assert_eq!(rules.at_most(&star, 9), 1);
        assert_eq!(rules.at_most(&"tenant:acme".parse().expect("a key"), 9), 9);
    }

    proptest! {
        #[test]
        fn keys_are_opaque(levels in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..=3)) {
            let key = LimitKey::new(&levels).expect("a key");
            prop_assert_eq!(&key, &key.as_str().parse().expect("its text"));
            let others: Vec<_> = levels.iter().map(|level| [&level[..], b"/"].concat()).collect();
            prop_assert_ne!(&key, &LimitKey::new(&others).expect("a key"));
        }
    }
}
