//! Conservation: the servers' own data is sound at all times, and nothing is left over.
//!
//! **Rule.** No audit finds anything. When the run has ended, nothing is pending, unread or waiting at any place, and each
//! partition has an owner, where partitions are owned. Each place has such a statement.
//!
//! **Limits.** An audit that could not be made, as a fault was on, must not be recorded with a finding.

use crate::chaos::record::{Phase, What};

use super::super::limits::Limits;
use super::super::report::Report;
use super::super::story::Story;

const NAME: &str = "conservation";

pub(super) fn check(story: &Story<'_>, _: &Limits, report: &mut Report) {
    for line in story.lines {
        if let What::Audit { findings } = &line.what {
            for finding in findings {
                report.add(NAME, line.at_us, None, format!("an audit found: {finding}"));
            }
        }
    }
    for (id, _) in story.places.iter().enumerate() {
        let label = story.label(id);
        let Some((at, rest)) = story.left.get(&id) else {
            if story.began(Phase::Ended).is_some() {
                report.add(NAME, story.end_us, None, format!("{label}: nobody looked at what is left"));
            }
            continue;
        };
        for (count, state) in [(rest.pending, "pending"), (rest.unread, "unread"), (rest.waiting, "waiting")]
        {
            if count > 0 {
                report.add(NAME, at.us, None, format!("{label}: {count} are {state} at the end"));
            }
        }
        if !rest.ownerless.is_empty() {
            let what = format!("{label}: nobody owns the partitions {:?} at the end", rest.ownerless);
            report.add(NAME, at.us, None, what);
        }
    }
}
