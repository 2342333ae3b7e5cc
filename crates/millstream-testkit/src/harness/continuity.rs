//! Records of answered calls, as the client of a case may have them.

use std::time::Duration;

use millstream_core::members::Member;
use millstream_core::{Continuity, GroupName, MemberId, Timestamp};

use super::Harness;
use crate::violation::Violation;

impl Harness {
    /// Returns the server's name for itself.
    pub(crate) async fn server(&self) -> Result<String, Violation> {
        let topic = self.topic(1).await?.name;
        let member = Member::new(MemberId::new("nobody")?, self.unique("incarnation"), super::LONG);
        let members = self.backend.members();
        Ok(members.heartbeat(&topic, &GroupName::new("group")?, &member, true).await?.server)
    }
}

/// Returns the record of a caller to which this server has replied every third of `ttl`, over this long and up to
/// `until`.
pub(crate) fn answered(server: &str, until: Timestamp, ttl: Duration, long: Duration) -> Continuity {
    let (mut continuity, third) = (Continuity::new(ttl), ttl / 3);
    let mut time = until.saturating_sub(long);
    while time < until {
        continuity.advance(server, time);
        time = time.saturating_add(third);
    }
    continuity.advance(server, until);
    continuity
}

/// Returns records that go back for three times `ttl` without a gap and still permit no judgement at `now`, each with
/// the reason.
pub(crate) fn not_whole(server: &str, now: Timestamp, ttl: Duration) -> [(Continuity, &'static str); 4] {
    let (long, gap) = (ttl * 3, ttl / 2 + Duration::from_millis(5));
    // So far ahead that the case ends before the clock gets there.
    let ahead = now.saturating_add(Duration::from_secs(60));
    [
        (answered("another server", now, ttl, long), "by one that was answered by another server"),
        (answered(server, now.saturating_sub(gap), ttl, long), "behind a gap of half a ttl"),
        (answered(server, now.saturating_sub(gap * 2), ttl, long), "behind a gap of a ttl"),
        (answered(server, ahead, ttl, long + super::LONG), "by one whose last answer is yet to come"),
    ]
}
