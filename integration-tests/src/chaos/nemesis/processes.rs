//! The processes of a run, and their faults.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Kind, Log, Scope, What, sleep_until};
use crate::chaos::record::Line;
use crate::chaos::setup::{Role, Setup};
use crate::delays::clock::Clock;
use crate::history::{Sink, now_us};
use crate::process::Process;
use crate::proxy::{Proxy, Way};

/// A process with a name, which is replaced when it has ended.
#[derive(Debug)]
pub struct Actor {
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
pub struct Troupe {
    bin: String,
    actors: BTreeMap<String, Actor>,
}

impl Troupe {
    /// Creates a troupe without processes. `bin` is the path of the `chaos` binary.
    #[must_use]
    pub fn new(bin: String) -> Self {
        Self { bin, actors: BTreeMap::new() }
    }

    /// Starts a process. `own_clock` gives it a clock that can be set, and `own_link` is its link to the servers, if it has
    /// one of its own.
    pub fn start(&mut self, setup: Setup, own_clock: bool, own_link: Option<Proxy>) {
        let name = setup.name.clone();
        let clock = own_clock.then(Clock::new);
        let mut actor = Actor { setup, process: None, clock, link: own_link };
        actor.start(&self.bin);
        self.actors.insert(name, actor);
    }

    /// Returns the processes that run, by name.
    pub fn running(&self) -> impl Iterator<Item = (&str, &Process)> {
        self.actors.iter().filter_map(|(name, actor)| Some((name.as_str(), actor.process.as_ref()?)))
    }

    /// Asks all processes of a role to shut down, and waits until they have.
    ///
    /// # Errors
    /// The names of those that did not end well.
    pub fn end(&mut self, is_meant: impl Fn(Role) -> bool) -> Result<(), Vec<String>> {
        let meant = self.actors.values_mut().filter(|actor| is_meant(actor.setup.role));
        let mut ending: Vec<(String, Process)> = meant
            .filter_map(|actor| {
                let process = actor.process.take()?;
                process.terminate();
                Some((actor.setup.name.clone(), process))
            })
            .collect();
        let wrong = ending.iter_mut().filter_map(|(name, process)| {
            let well = wait(process, Duration::from_secs(30));
            (!well).then(|| name.clone())
        });
        let wrong: Vec<String> = wrong.collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Starts every process that has ended although nobody made it. Returns their names.
    pub fn replace_dead(&mut self, sink: &Sink) -> Vec<String> {
        let mut dead = Vec::new();
        for (name, actor) in &mut self.actors {
            if let Some(process) = &mut actor.process
                && !process.is_alive()
            {
                gone(sink, process.pid());
                dead.push(name.clone());
                actor.start(&self.bin);
            }
        }
        dead
    }

    /// Causes faults of these kinds until `end`, to processes of these roles, or of all. Afterwards all processes run.
    pub fn suffer(
        &mut self,
        kinds: &[Kind],
        victims: &[&str],
        end: Instant,
        random: &mut fastrand::Rng,
        sink: &Sink,
    ) {
        let mut log = Log::new(sink, true);
        let is_victim = |actor: &&Actor| match actor.setup.role {
            Role::Store => false,
            role => victims.is_empty() || victims.contains(&role.name()),
        };
        let names: Vec<String> =
            self.actors.values().filter(is_victim).map(|actor| actor.setup.name.clone()).collect();
        while Instant::now() < end && !kinds.is_empty() {
            sleep_until(end, Duration::from_millis(random.u64(100..800)));
            let kind = kinds[random.usize(..kinds.len())];
            let name = &names[random.usize(..names.len())];
            let Some(actor) = self.actors.get_mut(name) else { continue };
            if actor.process.is_none() {
                continue;
            }
            actor.suffer(kind, &self.bin, end, random, &mut log, sink);
        }
    }
}

impl Actor {
    fn start(&mut self, bin: &str) {
        let process = match &self.clock {
            Some(clock) => Process::start_in(bin, &self.setup, clock.env()),
            None => Process::start(bin, &self.setup),
        };
        self.setup.life += 1;
        self.setup.seed = self.setup.seed.wrapping_mul(31).wrapping_add(1);
        self.process = Some(process);
    }

    /// Returns how long a process does not answer: up to two ttls; where handlers are slow, so long that others take their
    /// messages over and are still at them.
    fn pause(&self, random: &mut fastrand::Rng) -> Duration {
        let (least, most) = if self.setup.slow { (0.9, 1.7) } else { (0.0, 2.0) };
        self.setup.ttl().mul_f64(least + random.f64() * (most - least))
    }

    fn suffer(
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
                log.mended(fault);
            }
            Kind::Stop => {
                let fault = log.begins(kind, &name, Scope::Process(pid));
                process.stop();
                // Also past the end of the faults, so that no stop is cut short: what comes after it counts.
                std::thread::sleep(pause);
                process.resume();
                log.mended(fault);
            }
            Kind::Isolate => {
                let Some(link) = &self.link else { return };
                let fault = log.begins(kind, &name, Scope::Process(pid));
                link.freeze(Way::Up);
                std::thread::sleep(pause);
                link.thaw();
                log.mended(fault);
            }
            Kind::Leave => {
                let fault = log.begins(kind, &name, Scope::Process(pid));
                process.terminate();
                let ended = wait(process, Duration::from_secs(30));
                if !ended {
                    process.kill();
                    gone(sink, pid);
                    sink.write(What::Failing(format!("{name} did not shut down in good order")));
                }
                self.start(bin);
                log.mended(fault);
            }
            _ => {
                let Some(clock) = &self.clock else { return };
                let seconds = [-3_600, -60, -3, 3, 60, 3_600][random.usize(..6)];
                let fault = log.begins(Kind::ShiftClock, &format!("{name} by {seconds} s"), Scope::Nothing);
                clock.shift(seconds);
                log.mended(fault);
            }
        }
    }
}

/// Waits until a process has ended by itself. Returns whether it did, and well.
fn wait(process: &mut Process, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(well) = process.has_ended() {
            return well;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn gone(sink: &Sink, pid: u32) {
    sink.line(&Line { at_us: now_us(), pid, what: What::Gone { orderly: false } });
}
