//! Faults of servers, their data, and the links to them.

use std::time::{Duration, Instant};

use millstream::GroupName;
use millstream_core::keys::Key;
use rustix::process::{Pid, Signal, kill_process};

use super::{Kind, Log, Scope, Turns, sleep_until};
use crate::chaos::deployment::Deployment;
use crate::chaos::setup::{OWNERS, PARTITIONS, keys, partition};
use crate::history::{Sink, now_us};
use crate::proxy::Way;
use crate::server::Server;

/// Causes faults of these kinds until `end`. Afterwards all servers run, and all links are good.
pub fn inject(
    deployment: &mut Deployment,
    kinds: &[Kind],
    ttl: Duration,
    end: Instant,
    random: &mut fastrand::Rng,
    sink: &Sink,
) {
    let mut log = Log::new(sink, false);
    let mut turns = Turns::new(kinds);
    while Instant::now() < end {
        sleep_until(end, Duration::from_millis(random.u64(100..1_000)));
        if Instant::now() >= end {
            break;
        }
        let Some(kind) = turns.next(random) else { return };
        cause(deployment, kind, ttl, random, &mut log);
    }
}

/// Causes one fault and mends it.
fn cause(
    deployment: &mut Deployment,
    kind: Kind,
    ttl: Duration,
    random: &mut fastrand::Rng,
    log: &mut Log<'_>,
) {
    let primaries = deployment.servers.primaries();
    let Some(at) = random.choice(primaries).filter(|_| !deployment.links.is_empty()) else { return };
    let on = format!("node {at}");
    let long = ttl.mul_f64(0.1 + random.f64() * 1.9);
    let short = Duration::from_millis(random.u64(50..400));
    // Where servers watch each other, whatever keeps one from answering may lead to a fail-over.
    let watched = deployment.topology.has_replicas();
    let feared = |scope| if watched { Scope::Data } else { scope };
    let (links, server) = (feared(Scope::Links), feared(Scope::Server));
    let before = deployment.servers.primaries();
    let settle = |deployment: &Deployment, log: &Log<'_>, fault: u32, scope: Scope| {
        let ended_us = now_us();
        if watched {
            deployment.servers.wait_settled();
            if deployment.servers.primaries() == before {
                log.kept(fault, scope, ended_us);
            }
        }
        log.ended(fault);
    };
    match kind {
        Kind::Delay => {
            let fault = log.begins(kind, "all links", links);
            deployment.links.iter().for_each(|link| link.delay(short / 4));
            std::thread::sleep(long);
            deployment.links.iter().for_each(|link| link.delay(Duration::ZERO));
            settle(deployment, log, fault, Scope::Links);
        }
        Kind::Slow => {
            let rate = random.u64(100_000..2_000_000);
            let fault = log.begins(kind, &format!("all links: {rate} bytes/s"), links);
            deployment.links.iter().for_each(|link| link.rate(Some(rate)));
            std::thread::sleep(long);
            deployment.links.iter().for_each(|link| link.rate(None));
            settle(deployment, log, fault, Scope::Links);
        }
        Kind::DropPackets => {
            let Some(network) = &deployment.network else { return };
            let percent = random.u32(5..40);
            let fault = log.begins(kind, &format!("{on}: {percent} of 100"), links);
            let node = deployment.servers.nodes()[at];
            network.drop_packets(node.tls_port().unwrap_or(node.port()), percent);
            std::thread::sleep(long);
            network.drop_nothing();
            settle(deployment, log, fault, Scope::Links);
        }
        Kind::Cut => {
            let fault = log.begins(kind, &on, links);
            deployment.links[at].cut();
            std::thread::sleep(long);
            deployment.links[at].heal();
            settle(deployment, log, fault, Scope::Links);
        }
        Kind::HalfOpen => {
            let fault = log.begins(kind, &on, links);
            deployment.links[at].freeze(Way::Up);
            deployment.links[at].freeze(Way::Down);
            std::thread::sleep(long);
            // Nobody hears of the end: the connections are gone.
            deployment.links[at].reset();
            deployment.links[at].heal();
            settle(deployment, log, fault, Scope::Links);
        }
        Kind::LostReplies => {
            let fault = log.begins(kind, &on, links);
            for _ in 0..random.u32(1..6) {
                deployment.links[at].freeze(Way::Down);
                std::thread::sleep(Duration::from_millis(random.u64(5..80)));
                deployment.links[at].reset();
                deployment.links[at].thaw();
                std::thread::sleep(Duration::from_millis(random.u64(20..200)));
            }
            settle(deployment, log, fault, Scope::Links);
        }
        Kind::KillClients => {
            let fault = log.begins(kind, &on, server);
            ask(deployment, at, &["CLIENT", "KILL", "TYPE", "normal"]);
            settle(deployment, log, fault, Scope::Server);
        }
        Kind::PauseClients => {
            // Those that watch the server are clients as well.
            let fault = log.begins(kind, &on, server);
            let ms = long.as_millis().to_string();
            ask(deployment, at, &["CLIENT", "PAUSE", &ms, "ALL"]);
            std::thread::sleep(long);
            settle(deployment, log, fault, Scope::Server);
        }
        Kind::FlushScripts => {
            let fault = log.begins(kind, &on, Scope::Server);
            ask(deployment, at, &["SCRIPT", "FLUSH"]);
            log.ended(fault);
        }
        Kind::StopServer => {
            let fault = log.begins(kind, &on, server);
            deployment.servers.nodes()[at].pause();
            std::thread::sleep(long);
            deployment.servers.nodes()[at].resume();
            settle(deployment, log, fault, Scope::Server);
        }
        Kind::RestartServer => {
            let fault = log.begins(kind, &on, Scope::Server);
            deployment.servers.nodes_mut()[at].kill();
            std::thread::sleep(short);
            deployment.servers.nodes_mut()[at].restart();
            log.ended(fault);
        }
        Kind::OutOfMemory => {
            let fault = log.begins(kind, &on, server);
            ask(deployment, at, &["CONFIG", "SET", "maxmemory", "1mb"]);
            std::thread::sleep(long / 2);
            ask(deployment, at, &["CONFIG", "SET", "maxmemory", "0"]);
            settle(deployment, log, fault, Scope::Server);
        }
        Kind::DiskFull => {
            let Some(disk) = &deployment.disk else { return };
            let fault = log.begins(kind, &on, Scope::Server);
            disk.fill();
            std::thread::sleep(long / 2);
            disk.free();
            // The server tries its file again with the next second.
            std::thread::sleep(Duration::from_millis(1_100));
            log.ended(fault);
        }
        Kind::DeleteLeases => {
            let mut partitions: Vec<u32> = (0..PARTITIONS).collect();
            random.shuffle(&mut partitions);
            let faults: Vec<u32> = partitions[..3]
                .iter()
                .map(|number| {
                    let fault = log.begins(kind, &format!("partition {number}"), Scope::Partition(*number));
                    let lease = keys().lease(&partition(*number), &owners());
                    ask_all(deployment, &["DEL", lease.as_str()]);
                    fault
                })
                .collect();
            std::thread::sleep(ttl);
            faults.into_iter().for_each(|fault| log.ended(fault));
        }
        Kind::DestroyGroup => {
            let number = random.u32(..PARTITIONS);
            let fault = log.begins(kind, &format!("partition {number}"), Scope::Partition(number));
            let key = keys().log(&partition(number));
            ask_all(deployment, &["XGROUP", "DESTROY", key.as_str(), OWNERS]);
            // Its owner creates it again, or the next one does. Until then it keeps nothing from being trimmed.
            let deadline = Instant::now() + crate::HANG;
            while !has_group(deployment, &key) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            log.ended(fault);
        }
        Kind::FailOver => {
            let fault = log.begins(kind, &on, Scope::Data);
            deployment.servers.fail_over(at);
            deployment.servers.wait_whole();
            log.ended(fault);
        }
        Kind::KillPrimary => {
            let fault = log.begins(kind, &on, Scope::Data);
            deployment.servers.nodes_mut()[at].kill();
            deployment.servers.wait_replaced(at);
            deployment.servers.nodes_mut()[at].restart();
            deployment.servers.wait_whole();
            log.ended(fault);
        }
        Kind::LoseTail => {
            let fault = log.begins(kind, &on, Scope::Data);
            let primaries = deployment.servers.primaries();
            let replicas = |nodes: Vec<&Server>| {
                let all = nodes.into_iter().enumerate();
                all.filter(|(at, _)| !primaries.contains(at)).map(|(_, node)| node.pid()).collect::<Vec<_>>()
            };
            let pids = replicas(deployment.servers.nodes());
            pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
            // What is sent from now on is not even on its way.
            ask(deployment, at, &["CLIENT", "KILL", "TYPE", "replica"]);
            // Less than it takes until the others count them as dead.
            std::thread::sleep(Duration::from_millis(random.u64(200..700)));
            deployment.servers.nodes_mut()[at].kill();
            pids.iter().for_each(|pid| signal(*pid, Signal::CONT));
            deployment.servers.wait_replaced(at);
            deployment.servers.nodes_mut()[at].restart();
            deployment.servers.wait_whole();
            log.ended(fault);
        }
        Kind::MoveSlots => {
            let fault = log.begins(kind, "slots", Scope::Server);
            for _ in 0..3 {
                let slot = deployment.slot_of(random.u32(..PARTITIONS));
                deployment.servers.move_slot(slot);
            }
            log.ended(fault);
        }
        Kind::Kill | Kind::Stop | Kind::Leave | Kind::Isolate | Kind::ShiftClock => {}
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("an id");
    let _ = kill_process(pid, signal);
}

/// Sends a command to a server, past the links. A server that does not run is left alone.
fn ask(deployment: &Deployment, at: usize, command: &[&str]) {
    let node: &Server = deployment.servers.nodes()[at];
    let _ = node.try_cli(command);
}

/// Sends a command to all primaries: those that do not have its key refuse it.
fn ask_all(deployment: &Deployment, command: &[&str]) {
    deployment.servers.primaries().into_iter().for_each(|at| ask(deployment, at, command));
}

fn owners() -> GroupName {
    GroupName::new(OWNERS).expect("a name")
}

/// Whether the group of owners exists on a log.
fn has_group(deployment: &Deployment, log: &Key) -> bool {
    deployment.servers.primaries().into_iter().any(|at| {
        let groups = deployment.servers.nodes()[at].try_cli(&["XINFO", "GROUPS", log.as_str()]);
        groups.is_ok_and(|groups| groups.lines().any(|line| line == OWNERS))
    })
}
