//! Conservation: the servers' own data is sound at all times, and nothing is left over.
//!
//! **Rule.** No audit finds anything. When the run has ended, nothing is pending, unread or waiting at any place, and each
//! partition has an owner, where partitions are owned. Each place has such a statement.
//!
//! **Limits.** A group that an operator has destroyed is found missing, near such a fault (scope `Partition`). An audit that could not be made, as a fault was on, must not be recorded with a finding.

use crate::chaos::record::{Phase, Scope, What};

use super::super::digest::{Digest, Fault};
use super::super::limits::{Limits, us};
use super::super::report::Report;

const NAME: &str = "conservation";

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    for line in digest.lines {
        if let What::Audit { findings } = &line.what {
            let destroyed = |finding: &str| {
                let near = |fault: &Fault<'_>| {
                    matches!(fault.scope, Scope::Partition(_))
                        && fault.overlaps(line.at_us, line.at_us, 0, us(limits.aftermath))
                };
                finding.starts_with("group_missing") && digest.faults.iter().any(near)
            };
            for finding in findings.iter().filter(|finding| !destroyed(finding)) {
                report.add(NAME, line.at_us, None, format!("an audit found: {finding}"));
            }
        }
    }
    for (id, _) in digest.places.iter().enumerate() {
        let label = digest.label(id);
        let Some((at, rest)) = digest.left.get(&id) else {
            if digest.began(Phase::Ended).is_some() {
                report.add(NAME, digest.end_us, None, format!("{label}: nobody looked at what is left"));
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
