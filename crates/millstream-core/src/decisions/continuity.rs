//! Continuity: the time for which one server has answered a client without a gap.
//!
//! A heartbeat, lease, claim or idle time can expire for two reasons: the client that should have renewed it is dead, or
//! no client could reach the server. So a request that acts on it (drops a member, takes over a lease or an entry)
//! carries the sender's continuity. The server lets it act only if this very server has answered the sender for one ttl
//! without a gap: long enough for every client that survived an outage to come back first.

use std::fmt;
use std::time::Duration;

use crate::timestamp::Timestamp;

/// Time for which one server has answered a client without a gap.
///
/// Times are the server's; the client's clock has no part in it. A restart and a fail-over change the server's
/// identity. A gap is half a ttl without an answer: clients send three requests per ttl. A live client may be silent
/// for a ttl less the third of it that has passed since its last heartbeat. A gap is shorter than that by the time that
/// such a client needs for its next heartbeat to arrive.
///
/// ```
/// use std::time::Duration;
/// use millstream_core::{Continuity, Timestamp};
///
/// let ttl = Duration::from_secs(9);
/// let mut continuity = Continuity::new(ttl);
/// let start = Timestamp::from_millis(1_700_000_000_000);
/// let at = |seconds| start.saturating_add(Duration::from_secs(seconds));
/// continuity.advance("server-1", at(0));
/// assert!(!continuity.judges("server-1", at(0)), "who joins judges nobody at first");
/// for seconds in [3, 6, 9] {
///     continuity.advance("server-1", at(seconds));
/// }
/// assert!(continuity.judges("server-1", at(9)));
/// assert!(!continuity.judges("server-2", at(9)), "a restart begins a new ttl");
/// assert!(!continuity.judges("server-1", at(14)), "and so does a gap, before the answer behind it is known");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuity {
    ttl_ms: u64,
    /// The answers since the last gap; `None` before the first answer.
    answered: Option<Answered>,
    assured: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Answered {
    server: String,
    since: Timestamp,
    until: Timestamp,
}

/// Identity of a server that does not give one: then only gaps count.
pub const UNNAMED: &str = "-";

/// Wire form of [`Continuity::assured`] in requests.
const ASSURED: &str = "*";

impl Continuity {
    /// Creates the continuity of a client before its first answer. `ttl` is that of the leases, heartbeats or claims that
    /// it judges.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 52);
        Self { ttl_ms, answered: None, assured: false }
    }

    /// Creates a continuity that judges at once: for an operator or a test that has made sure that the others are gone.
    /// It must not be used in a loop.
    #[must_use]
    pub fn assured() -> Self {
        Self { ttl_ms: 1, answered: None, assured: true }
    }

    /// Returns the ttl of what it judges, in whole milliseconds.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// Whether it judges at once: see [`assured`](Self::assured).
    #[must_use]
    pub fn is_assured(&self) -> bool {
        self.assured
    }

    /// Records an answer of `server`, at `now` by the server's clock.
    pub fn advance(&mut self, server: &str, now: Timestamp) {
        match &mut self.answered {
            Some(answered) if answered.reaches(server, now, self.ttl_ms) => answered.until = now,
            answered => *answered = Some(Answered { server: server.to_owned(), since: now, until: now }),
        }
    }

    /// Whether a request that this server executes at `now` may treat expired clients as dead.
    #[must_use]
    pub fn judges(&self, server: &str, now: Timestamp) -> bool {
        self.assured || self.judges_in(server, now) == Some(0)
    }

    /// Returns the number of milliseconds until it [judges](Self::judges), if no gap occurs; `None` if it would have to
    /// start over.
    fn judges_in(&self, server: &str, now: Timestamp) -> Option<u64> {
        let answered =
            self.answered.as_ref().filter(|answered| answered.reaches(server, now, self.ttl_ms))?;
        let judges = answered.since.as_millis().saturating_add(self.ttl_ms);
        Some(judges.saturating_sub(now.as_millis()))
    }

    /// Returns the server that answered last, and its time then; `None` before the first answer.
    #[must_use]
    pub fn last(&self) -> Option<(&str, Timestamp)> {
        self.answered.as_ref().map(|answered| (&*answered.server, answered.until))
    }

    /// Returns this continuity, as if it had begun no earlier than one that is as long as `other`.
    #[must_use]
    pub fn no_longer_than(&self, other: &Self) -> Self {
        let span = other.answered.as_ref().map(|other| other.until.saturating_duration_since(other.since));
        let (Some(answered), Some(span)) = (&self.answered, span) else { return Self::new(self.ttl()) };
        let since = answered.since.max(answered.until.saturating_sub(span));
        Self { answered: Some(Answered { since, ..answered.clone() }), ..self.clone() }
    }

    /// Returns the time until it [judges](Self::judges): a whole ttl if it has to start over.
    #[must_use]
    pub fn left(&self, server: &str, now: Timestamp) -> Duration {
        let left = if self.assured { Some(0) } else { self.judges_in(server, now) };
        Duration::from_millis(left.unwrap_or(self.ttl_ms))
    }

    /// Returns the time at which a claim may be taken over that expires at `deadline` and was last renewed for `hold`.
    /// The longer one of ttl and `hold` counts: a worker that holds for longer than the ttl may take longer to come back,
    /// and with a ttl longer than the claim, gaps that are long for the claim go unnoticed.
    #[must_use]
    pub fn free_at(&self, server: &str, now: Timestamp, deadline: Timestamp, hold: Duration) -> Timestamp {
        if self.assured {
            return deadline;
        }
        let longest = Duration::from_millis(self.ttl_ms).max(hold);
        let answered = self.answered.as_ref().filter(|it| it.reaches(server, now, self.ttl_ms));
        let judges = answered.map_or(now, |answered| answered.since).saturating_add(longest);
        judges.max(deadline.saturating_sub(hold).saturating_add(longest))
    }

    /// Whether it [judged](Self::judges) at the last answer.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let whole = |answered: &Answered| {
            answered.until.saturating_duration_since(answered.since) >= Duration::from_millis(self.ttl_ms)
        };
        self.assured || self.answered.as_ref().is_some_and(whole)
    }
}

impl Answered {
    /// Whether an answer of `server` at `now` follows without a gap.
    fn reaches(&self, server: &str, now: Timestamp, ttl_ms: u64) -> bool {
        // A clock that was set back counts as a gap: the time that has passed is then unknown.
        server == self.server
            && now >= self.until
            && now.as_millis() - self.until.as_millis() < ttl_ms.div_ceil(2)
    }
}

/// Writes the form that requests carry: `<ttl> <since> <until> <server>`, times in milliseconds; `*` for an
/// [assured](Continuity::assured) one; empty before the first answer.
impl fmt::Display for Continuity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.answered {
            _ if self.assured => f.write_str(ASSURED),
            Some(Answered { server, since, until }) => {
                write!(f, "{} {} {} {server}", self.ttl_ms, since.as_millis(), until.as_millis())
            }
            None => write!(f, "{} 0 0 {UNNAMED}", self.ttl_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn continuity(times: &[(&str, u64)]) -> Continuity {
        let mut continuity = Continuity::new(Duration::from_millis(100));
        times.iter().for_each(|(server, now)| continuity.advance(server, ms(*now)));
        continuity
    }

    #[test]
    fn who_was_not_answered_without_a_gap_for_a_ttl_judges_nobody() {
        type Answers = &'static [(&'static str, u64)];
        let cases: [(Answers, u64, bool); 9] = [
            (&[], 500, false),
            (&[("a", 500)], 500, false),
            (&[("a", 500), ("a", 549), ("a", 598)], 600, true),
            (&[("a", 500), ("a", 549), ("a", 598)], 599, false),
            (&[("a", 500), ("a", 550), ("a", 600)], 600, false),
            (&[("a", 500), ("a", 549), ("b", 598)], 600, false),
            (&[("a", 500), ("a", 549), ("a", 598)], 647, true),
            (&[("a", 500), ("a", 549), ("a", 598)], 648, false),
            (&[("a", 500), ("a", 549), ("a", 598), ("a", 597)], 610, false),
        ];
        for (times, now, judges) in cases {
            assert_eq!(continuity(times).judges("a", ms(now)), judges, "{times:?} at {now}");
        }
        assert!(Continuity::assured().judges("a", ms(0)));
    }

    #[test]
    fn how_long_is_left_is_told() {
        let left = Duration::from_millis;
        assert_eq!(continuity(&[("a", 500)]).left("a", ms(540)), left(60));
        assert_eq!(continuity(&[("a", 500)]).left("a", ms(550)), left(100), "it begins anew");
        assert_eq!(continuity(&[]).left("a", ms(550)), left(100));
        assert_eq!(continuity(&[("a", 500), ("a", 540), ("a", 580)]).left("a", ms(600)), left(0));
    }

    #[test]
    fn a_claim_is_free_when_it_and_the_record_are_as_old_as_the_longer_of_both_holds() {
        let whole = continuity(&[("a", 500), ("a", 540), ("a", 580), ("a", 620)]);
        // Deadline, hold, and the time at which it is free.
        for (deadline, hold, free) in [(630, 100, 630), (590, 100, 600), (630, 30, 700), (630, 200, 700)] {
            assert_eq!(
                whole.free_at("a", ms(640), ms(deadline), Duration::from_millis(hold)),
                ms(free),
                "{deadline} {hold}"
            );
            assert_eq!(
                whole.free_at("b", ms(640), ms(deadline), Duration::from_millis(hold)),
                ms(640 + hold.max(100)),
                "another server"
            );
        }
        assert_eq!(Continuity::assured().free_at("a", ms(640), ms(630), Duration::from_millis(100)), ms(630));
    }

    #[test]
    fn it_is_written_as_text() {
        assert_eq!(continuity(&[("a b", 500), ("a b", 540)]).to_string(), "100 500 540 a b");
        assert_eq!(continuity(&[]).to_string(), "100 0 0 -");
        assert_eq!(Continuity::assured().to_string(), "*");
    }

    proptest! {
        #[test]
        fn an_outage_of_half_a_ttl_or_more_begins_a_whole_ttl(
            beats in proptest::collection::vec(1u64..50, 0..20),
            away in 50u64..1_000,
            after in 0u64..100,
        ) {
            let mut continuity = Continuity::new(Duration::from_millis(100));
            let mut now: u64 = 1_000;
            continuity.advance("a", ms(now));
            for beat in beats {
                now += beat;
                continuity.advance("a", ms(now));
            }
            now += away;
            prop_assert!(!continuity.judges("a", ms(now)));
            continuity.advance("a", ms(now));
            prop_assert!(!continuity.judges("a", ms(now + after.min(49))));
        }
    }
}
