//! Endurance: a long run uses no more at its end than at its begin.
//!
//! **Rule.** Only if `Limits::endurance` is set: between the first and the last statement of usage, the servers' memory,
//! connections, keys, and of each process that is in both, by name, resident memory and threads grow by no more than its
//! bounds. There are two such statements.
//!
//! **Limits.** A process that was replaced in between is compared by its name.

use std::collections::HashMap;

use crate::chaos::record::What;

use super::super::limits::Limits;
use super::super::report::Report;
use super::super::story::Story;

const NAME: &str = "endurance";

pub(super) fn check(story: &Story<'_>, limits: &Limits, report: &mut Report) {
    let Some(bounds) = &limits.endurance else { return };
    let mut usages = story.lines.iter().filter(|line| matches!(line.what, What::Usage { .. }));
    let (Some(first), Some(last)) = (usages.next(), usages.next_back()) else {
        return report.add(NAME, story.end_us, None, "there are no two statements of usage".to_owned());
    };
    let (
        What::Usage { server_bytes, connections, keys, resident, threads },
        What::Usage {
            server_bytes: server_after,
            connections: connections_after,
            keys: keys_after,
            resident: resident_after,
            threads: threads_after,
        },
    ) = (&first.what, &last.what)
    else {
        return;
    };
    let mut compare = |what: &str, before: u64, after: u64, share: f64, more: u64| {
        let most = before + (before as f64 * share) as u64 + more;
        if after > most {
            report.add(NAME, last.at_us, None, format!("{what}: {before}, then {after}, of at most {most}"));
        }
    };
    compare("memory of the servers", *server_bytes, *server_after, bounds.server_share, bounds.server_bytes);
    compare("connections", *connections, *connections_after, 0.0, bounds.connections);
    compare("keys", *keys, *keys_after, 0.0, bounds.keys);
    let mut each = |what: &str, before: &[(String, u64)], after: &[(String, u64)], share: f64, more: u64| {
        let before: HashMap<&String, u64> = before.iter().map(|(name, value)| (name, *value)).collect();
        for (name, after) in after {
            if let Some(before) = before.get(name) {
                compare(&format!("{what} of {name}"), *before, *after, share, more);
            }
        }
    };
    each("resident memory", resident, resident_after, bounds.resident_share, bounds.resident_bytes);
    each("threads", threads, threads_after, 0.0, bounds.threads);
}
