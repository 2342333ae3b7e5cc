//! Faults of servers, their data, and the links to them.

use std::time::{Duration, Instant};

use millstream::{GroupName, TopicPartition};
use millstream_core::keys::{Key, Keys};
use rustix::process::{Pid, Signal, kill_process};

use super::{Kind, Log, Scope, sleep_until};
use crate::chaos::setup::{OWNERS, PARTITIONS, keys, partition};
use crate::chaos::stage::Stage;
use crate::history::Sink;
use crate::proxy::Way;
use crate::server::Server;

/// Causes faults of these kinds until `end`. Afterwards all servers run, and all links are good.
pub fn suffer(
    stage: &mut Stage,
    kinds: &[Kind],
    ttl: Duration,
    end: Instant,
    random: &mut fastrand::Rng,
    sink: &Sink,
) {
    let mut log = Log::new(sink, false);
    while Instant::now() < end && !kinds.is_empty() {
        sleep_until(end, Duration::from_millis(random.u64(100..1_000)));
        if Instant::now() >= end {
            break;
        }
        let kind = kinds[random.usize(..kinds.len())];
        cause(stage, kind, ttl, random, &mut log);
    }
}

/// Causes one fault and mends it.
fn cause(stage: &mut Stage, kind: Kind, ttl: Duration, random: &mut fastrand::Rng, log: &mut Log<'_>) {
    let primaries = stage.servers.primaries();
    let Some(at) = random.choice(primaries).filter(|_| !stage.links.is_empty()) else { return };
    let on = format!("node {at}");
    let long = ttl.mul_f64(random.f64() * 2.0);
    let short = Duration::from_millis(random.u64(50..400));
    // Where there are replicas, a server that does not answer is replaced.
    let away = if stage.topology.has_replicas() { Scope::Data } else { Scope::Server };
    match kind {
        Kind::Delay => {
            let fault = log.begins(kind, "all links", Scope::Server);
            stage.links.iter().for_each(|link| link.delay(short / 4));
            std::thread::sleep(long);
            stage.links.iter().for_each(|link| link.delay(Duration::ZERO));
            log.mended(fault);
        }
        Kind::Slow => {
            let rate = random.u64(100_000..2_000_000);
            let fault = log.begins(kind, &format!("all links: {rate} bytes/s"), Scope::Server);
            stage.links.iter().for_each(|link| link.rate(Some(rate)));
            std::thread::sleep(long);
            stage.links.iter().for_each(|link| link.rate(None));
            log.mended(fault);
        }
        Kind::Cut => {
            let fault = log.begins(kind, &on, away);
            stage.links[at].cut();
            std::thread::sleep(long);
            stage.links[at].heal();
            stage.servers.wait_whole();
            log.mended(fault);
        }
        Kind::HalfOpen => {
            let fault = log.begins(kind, &on, away);
            stage.links[at].freeze(Way::Up);
            stage.links[at].freeze(Way::Down);
            std::thread::sleep(long);
            // Nobody hears of the end: the connections are gone.
            stage.links[at].reset();
            stage.links[at].heal();
            stage.servers.wait_whole();
            log.mended(fault);
        }
        Kind::LostReplies => {
            let fault = log.begins(kind, &on, Scope::Server);
            for _ in 0..random.u32(1..6) {
                stage.links[at].freeze(Way::Down);
                std::thread::sleep(Duration::from_millis(random.u64(5..80)));
                stage.links[at].reset();
                stage.links[at].thaw();
                std::thread::sleep(Duration::from_millis(random.u64(20..200)));
            }
            stage.servers.wait_whole();
            log.mended(fault);
        }
        Kind::KillClients => {
            let fault = log.begins(kind, &on, Scope::Server);
            ask(stage, at, &["CLIENT", "KILL", "TYPE", "normal"]);
            log.mended(fault);
        }
        Kind::PauseClients => {
            let fault = log.begins(kind, &on, Scope::Server);
            let ms = long.as_millis().to_string();
            ask(stage, at, &["CLIENT", "PAUSE", &ms, "ALL"]);
            std::thread::sleep(long);
            log.mended(fault);
        }
        Kind::FlushScripts => {
            let fault = log.begins(kind, &on, Scope::Server);
            ask(stage, at, &["SCRIPT", "FLUSH"]);
            log.mended(fault);
        }
        Kind::StopServer => {
            let fault = log.begins(kind, &on, away);
            stage.servers.nodes()[at].pause();
            std::thread::sleep(long);
            stage.servers.nodes()[at].resume();
            stage.servers.wait_whole();
            log.mended(fault);
        }
        Kind::RestartServer => {
            let fault = log.begins(kind, &on, Scope::Server);
            stage.servers.nodes_mut()[at].kill();
            std::thread::sleep(short);
            stage.servers.nodes_mut()[at].restart();
            log.mended(fault);
        }
        Kind::OutOfMemory => {
            let fault = log.begins(kind, &on, Scope::Server);
            ask(stage, at, &["CONFIG", "SET", "maxmemory", "1mb"]);
            std::thread::sleep(long / 2);
            ask(stage, at, &["CONFIG", "SET", "maxmemory", "0"]);
            log.mended(fault);
        }
        Kind::DiskFull => {
            let Some(disk) = &stage.disk else { return };
            let fault = log.begins(kind, &on, Scope::Server);
            disk.fill();
            std::thread::sleep(long / 2);
            disk.free();
            // The server tries its file again with the next second.
            std::thread::sleep(Duration::from_millis(1_100));
            log.mended(fault);
        }
        Kind::DeleteLeases => {
            let fault = log.begins(kind, "leases", Scope::Server);
            for _ in 0..3 {
                on_partition(stage, random, |keys, tp, group| {
                    vec!["DEL".to_owned(), text(&keys.lease(tp, group))]
                });
            }
            std::thread::sleep(ttl);
            log.mended(fault);
        }
        Kind::DestroyGroup => {
            let fault = log.begins(kind, OWNERS, Scope::Group);
            on_partition(stage, random, |keys, tp, group| {
                vec!["XGROUP".to_owned(), "DESTROY".to_owned(), text(&keys.log(tp)), group.to_string()]
            });
            std::thread::sleep(ttl);
            log.mended(fault);
        }
        Kind::FailOver => {
            let fault = log.begins(kind, &on, Scope::Data);
            stage.servers.fail_over(at);
            stage.servers.wait_whole();
            log.mended(fault);
        }
        Kind::KillPrimary => {
            let fault = log.begins(kind, &on, Scope::Data);
            stage.servers.nodes_mut()[at].kill();
            stage.servers.wait_replaced(at);
            stage.servers.nodes_mut()[at].restart();
            stage.servers.wait_whole();
            log.mended(fault);
        }
        Kind::LoseTail => {
            let fault = log.begins(kind, &on, Scope::Data);
            let primaries = stage.servers.primaries();
            let replicas = |nodes: Vec<&Server>| {
                let all = nodes.into_iter().enumerate();
                all.filter(|(at, _)| !primaries.contains(at)).map(|(_, node)| node.pid()).collect::<Vec<_>>()
            };
            let pids = replicas(stage.servers.nodes());
            pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
            // What is sent from now on is not even on its way.
            ask(stage, at, &["CLIENT", "KILL", "TYPE", "replica"]);
            // Less than it takes until the others count them as dead.
            std::thread::sleep(Duration::from_millis(random.u64(200..700)));
            stage.servers.nodes_mut()[at].kill();
            pids.iter().for_each(|pid| signal(*pid, Signal::CONT));
            stage.servers.wait_replaced(at);
            stage.servers.nodes_mut()[at].restart();
            stage.servers.wait_whole();
            log.mended(fault);
        }
        Kind::MoveSlots => {
            let fault = log.begins(kind, "slots", Scope::Server);
            for _ in 0..3 {
                let slot = stage.slot_of(random.u32(..PARTITIONS));
                stage.servers.move_slot(slot);
            }
            log.mended(fault);
        }
        Kind::Kill | Kind::Stop | Kind::Leave | Kind::Isolate | Kind::ShiftClock => {}
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("an id");
    let _ = kill_process(pid, signal);
}

/// Sends a command to a server, past the links. A server that does not run is left alone.
fn ask(stage: &Stage, at: usize, command: &[&str]) {
    let node: &Server = stage.servers.nodes()[at];
    let _ = node.try_cli(command);
}

/// Sends a command that concerns a partition of the owners to the server that has it: the others refuse it.
fn on_partition(
    stage: &Stage,
    random: &mut fastrand::Rng,
    command: impl Fn(&Keys, &TopicPartition, &GroupName) -> Vec<String>,
) {
    let group = GroupName::new(OWNERS).expect("a name");
    let command = command(&keys(), &partition(random.u32(..PARTITIONS)), &group);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    stage.servers.primaries().into_iter().for_each(|at| ask(stage, at, &command));
}

fn text(key: &Key) -> String {
    key.as_str().to_owned()
}
