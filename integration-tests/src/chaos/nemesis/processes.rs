//! The processes of a run, and their faults.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Kind, Log, Scope, Turns, What, sleep_until};
use crate::chaos::record::Line;
use crate::chaos::setup::{Role, Setup};
use crate::delays::clock::Clock;
use crate::history::{Sink, now_us};
use crate::process::Process;
use crate::proxy::{Proxy, Way};

/// A process with a name, which is replaced when it has ended.
#[derive(Debug)]
pub struct Managed {
    /// The settings of its next life.
    pub setup: Setup,
    /// Its present life.
    pub process: Option<Process>,
    /// Its clock, if that can be wrong.
    clock: Option<Clock>,
    /// Its own link to the servers, if there is one.
    link: Option<Proxy>,
}

/// All processes, by name.
#[derive(Debug)]
pub struct Processes {
    bin: String,
    all: BTreeMap<String, Managed>,
}

impl Processes {
    /// Creates it without processes. `bin` is the path of the `chaos` binary.
    #[must_use]
    pub fn new(bin: String) -> Self {
        Self { bin, all: BTreeMap::new() }
    }

    /// Starts a process. `own_clock` gives it a clock that can be set, and `own_link` is its link to the servers, if it has
    /// one of its own.
    pub fn start(&mut self, setup: Setup, own_clock: bool, own_link: Option<Proxy>) {
        let name = setup.name.clone();
        let clock = own_clock.then(Clock::new);
        let mut managed = Managed { setup, process: None, clock, link: own_link };
        managed.start(&self.bin);
        self.all.insert(name, managed);
    }

    /// Returns the processes that run, by name.
    pub fn running(&self) -> impl Iterator<Item = (&str, &Process)> {
        self.all.iter().filter_map(|(name, managed)| Some((name.as_str(), managed.process.as_ref()?)))
    }

    /// Asks all processes of a role to shut down, and waits until they have.
    ///
    /// # Errors
    /// Those that did not end well, each with how.
    pub fn end(&mut self, is_meant: impl Fn(Role) -> bool) -> Result<(), Vec<String>> {
        let meant = self.all.values_mut().filter(|managed| is_meant(managed.setup.role));
        let mut ending: Vec<(String, Process)> = meant
            .filter_map(|managed| {
                let process = managed.process.take()?;
                process.terminate();
                Some((managed.setup.name.clone(), process))
            })
            .collect();
        let wrong = ending.iter_mut().filter_map(|(name, process)| {
            let how = match wait(process, crate::HANG) {
                Some(true) => return None,
                Some(false) => "it failed".to_owned(),
                None => format!("it still ran after {:?}", crate::HANG),
            };
            Some(format!("{name} did not end well: {how}"))
        });
        let wrong: Vec<String> = wrong.collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Starts every process that has ended although nobody made it, and records that.
    pub fn replace_dead(&mut self, sink: &Sink) {
        for managed in self.all.values_mut() {
            managed.replace_dead(&self.bin, sink);
        }
    }

    /// Causes faults of these kinds until `end`, to processes of these roles, or of all. Afterwards all processes run.
    pub fn inject(
        &mut self,
        kinds: &[Kind],
        targets: &[&str],
        end: Instant,
        random: &mut fastrand::Rng,
        sink: &Sink,
    ) {
        let mut log = Log::new(sink, true);
        let is_target = |managed: &&Managed| match managed.setup.role {
            Role::Store => false,
            role => targets.is_empty() || targets.contains(&role.name()),
        };
        let names: Vec<String> =
            self.all.values().filter(is_target).map(|managed| managed.setup.name.clone()).collect();
        let mut turns = Turns::new(kinds);
        while Instant::now() < end {
            sleep_until(end, Duration::from_millis(random.u64(100..800)));
            let Some(kind) = turns.next(random) else { return };
            let name = &names[random.usize(..names.len())];
            let Some(managed) = self.all.get_mut(name) else { continue };
            if managed.replace_dead(&self.bin, sink) {
                continue;
            }
            managed.inject(kind, &self.bin, end, random, &mut log, sink);
        }
    }
}

impl Managed {
    fn start(&mut self, bin: &str) {
        let process = match &self.clock {
            Some(clock) => Process::start_in(bin, &self.setup, clock.env()),
            None => Process::start(bin, &self.setup),
        };
        self.setup.life += 1;
        self.setup.seed = self.setup.seed.wrapping_mul(31).wrapping_add(1);
        self.process = Some(process);
    }

    /// Starts the process if it has ended although nobody made it, and records that. Returns whether it cannot have a fault
    /// now.
    fn replace_dead(&mut self, bin: &str, sink: &Sink) -> bool {
        let Some(process) = &mut self.process else { return true };
        if process.is_alive() {
            return false;
        }
        gone(sink, process.pid());
        sink.write(What::Disobeyed(format!("{} had ended by itself", self.setup.name)));
        self.start(bin);
        true
    }

    /// Returns how long a process does not answer: up to two ttls; where handlers are slow, so long that others take their
    /// messages over and are still at them.
    fn pause(&self, random: &mut fastrand::Rng) -> Duration {
        let (least, most) = if self.setup.slow { (1.05, 1.5) } else { (0.1, 2.0) };
        self.setup.ttl().mul_f64(least + random.f64() * (most - least))
    }

    fn inject(
        &mut self,
        kind: Kind,
        bin: &str,
        end: Instant,
        random: &mut fastrand::Rng,
        log: &mut Log<'_>,
        sink: &Sink,
    ) {
        let pause = self.pause(random);
        let Some(process) = &mut self.process else { return };
        let (pid, name) = (process.pid(), self.setup.name.clone());
        match kind {
            Kind::Kill => {
                let fault = log.begins(kind, &name, Scope::Process(pid));
                process.kill();
                gone(sink, pid);
                sleep_until(end, Duration::from_millis(random.u64(..1_500)));
                self.start(bin);
                log.ended(fault);
            }
            Kind::Stop => {
                let fault = log.begins(kind, &name, Scope::Process(pid));
                process.stop();
                // Also past the end of the faults, so that no stop is cut short: what comes after it counts.
                std::thread::sleep(pause);
                process.resume();
                log.ended(fault);
            }
            Kind::Isolate => {
                let Some(link) = &self.link else { return };
                let fault = log.begins(kind, &name, Scope::Process(pid));
                link.freeze(Way::Up);
                std::thread::sleep(pause);
                link.thaw();
                log.ended(fault);
            }
            Kind::Leave => {
                let fault = log.begins(kind, &name, Scope::Leaving(pid));
                process.terminate();
                if wait(process, crate::HANG) != Some(true) {
                    process.kill();
                    gone(sink, pid);
                    sink.write(What::Disobeyed(format!("{name} did not shut down in good order")));
                }
                self.start(bin);
                log.ended(fault);
            }
            _ => {
                let Some(clock) = &self.clock else { return };
                let seconds = [-3_600, -60, -3, 3, 60, 3_600][random.usize(..6)];
                let fault = log.begins(Kind::ShiftClock, &format!("{name} by {seconds} s"), Scope::Nothing);
                clock.shift(seconds);
                log.ended(fault);
            }
        }
    }
}

/// Waits until a process has ended by itself. Returns whether it did, and well.
/// Waits until a process has ended, and returns whether it ended well; `None` if it has not within the limit.
fn wait(process: &mut Process, limit: Duration) -> Option<bool> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(well) = process.has_ended() {
            return Some(well);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn gone(sink: &Sink, pid: u32) {
    sink.line(&Line { at_us: now_us(), pid, what: What::Gone { orderly: false } });
}
