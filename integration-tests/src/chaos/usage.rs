//! What the servers and processes of a run use.

use std::fs;

use super::deployment::Deployment;
use super::nemesis::Processes;
use super::record::What;
use crate::server::Server;

/// Returns what all of them use now.
pub(super) fn of(deployment: &Deployment, processes: &Processes) -> What {
    let nodes = deployment.servers.nodes();
    let of_all = |field: &str| nodes.iter().map(|node| field_of(node, field)).sum();
    let primaries = deployment.servers.primaries();
    let keys =
        primaries.into_iter().map(|at| nodes[at].try_cli(&["DBSIZE"]).map_or(0, |reply| number(&reply)));
    let of_each = |name: &str| {
        let processes = processes.running();
        processes
            .map(|(process, running)| (process.to_owned(), status(running.pid(), name)))
            .collect::<Vec<_>>()
    };
    What::Usage {
        server_bytes: of_all("used_memory_dataset:"),
        connections: of_all("connected_clients:"),
        keys: keys.sum(),
        // In units of 1,024 bytes, as the system states it.
        resident: of_each("VmRSS:")
            .into_iter()
            .map(|(process, kib): (String, u64)| (process, kib << 10))
            .collect(),
        threads: of_each("Threads:"),
    }
}

/// Returns a field of `INFO`; 0 of a server that does not answer.
fn field_of(node: &Server, field: &str) -> u64 {
    let info = node.try_cli(&["INFO"]).unwrap_or_default();
    info.lines().find_map(|line| line.strip_prefix(field)).map_or(0, number)
}

/// Returns what the system states of a process; 0 of one that has gone.
fn status(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(field)).map_or(0, number)
}

fn number(text: &str) -> u64 {
    let digits = text.trim().trim_start_matches(':').split_whitespace().next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
