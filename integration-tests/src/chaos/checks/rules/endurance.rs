//! Endurance: a long run uses no more at its end than at its begin.
//!
//! **Rule.** Only if `Limits::endurance` is set. There are two statements of usage or more. From the first one to the last one,
//! the servers' memory and their keys grow by no more than the bounds: when everything is handled, nothing is left of it. From
//! the first one to the last one before the phase `Draining`, so under the same load, connections grow by no more, nor
//! resident memory and threads of each process that is in both, by name. And so it is with the tasks that a process states:
//! from the last statement before the first usage to the last one before `Draining`.
//!
//! **Limits.** A process that was replaced in between is compared by its name.

use std::collections::HashMap;

use crate::chaos::record::{Phase, What};

use super::super::digest::Digest;
use super::super::limits::Limits;
use super::super::report::Report;

const NAME: &str = "endurance";

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let Some(bounds) = &limits.endurance else { return };
    let all = digest.lines.iter().enumerate();
    let usages: Vec<_> = all.filter(|(_, line)| matches!(line.what, What::Usage { .. })).collect();
    let [(begin, first), .., (_, last)] = usages[..] else {
        return report.add(NAME, digest.end_us, None, "there are no two statements of usage".to_owned());
    };
    let is_loaded = |index: usize| digest.phase_at(index) < Phase::Draining;
    let loaded = usages.iter().rev().find(|(index, _)| is_loaded(*index)).map_or(first, |(_, line)| line);
    let (
        What::Usage { server_bytes, connections, keys, resident, threads },
        What::Usage {
            connections: connections_after, resident: resident_after, threads: threads_after, ..
        },
        What::Usage { server_bytes: server_after, keys: keys_after, .. },
    ) = (&first.what, &loaded.what, &last.what)
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
    let tasks = |until: &dyn Fn(usize) -> bool| {
        let mut names: HashMap<u32, &String> = HashMap::new();
        let mut tasks: HashMap<&String, u64> = HashMap::new();
        for (index, line) in digest.lines.iter().enumerate() {
            match &line.what {
                What::Runs { name, .. } => _ = names.insert(line.pid, name),
                What::Tasks(at_work) if until(index) => {
                    names.get(&line.pid).into_iter().for_each(|name| _ = tasks.insert(name, *at_work));
                }
                _ => {}
            }
        }
        tasks.into_iter().map(|(name, tasks)| (name.clone(), tasks)).collect::<Vec<_>>()
    };
    each("tasks", &tasks(&|index| index < begin), &tasks(&is_loaded), 0.0, bounds.tasks);
}
