//! A run from its beginning to its end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use millstream::admin::{Repaired, Standing, Verdict, VerifyOptions};
use millstream::delay::DelayQueue;
use millstream::{Event, GroupName, Limits as MessageLimits, Millstream};

use super::checks::{Endurance, KeyOrder, Limits, PlaceLimits};
use super::deployment::{Deployment, Topology};
use super::mutants::Mutant;
use super::nemesis::{Kind, Processes, servers};
use super::record::{Line, Phase, Place, Rest, What};
use super::setup::{
    ATTEMPTS, BACK_OFF, Job, ORDERS, OWNERS, PARTITIONS, PER_PARTITION, PER_PROCESS, Role, SHARDS, SHARERS,
    Setup, TASKS, connect, orders, partition, place_of,
};
use super::usage;
use crate::history::{History, Sink, now_us};

/// Pause between two audits.
const AUDIT: Duration = Duration::from_secs(2);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How the servers are set up.
    pub topology: Topology,
    /// Everything random follows from it, but for what the machine's own timing decides.
    pub seed: u64,
    /// How long the calm phase, that of faults and that after them take together: a fifth, a half, and the rest.
    pub length: Duration,
    /// How long what was sent may take to be handled when nothing more is sent.
    pub drain: Duration,
    /// Ttl of leases, claims and locks.
    pub ttl: Duration,
    /// The kinds of faults; chosen by the seed if there are none.
    pub kinds: Vec<Kind>,
    /// The roles of the processes that have faults; all but the store's if there are none.
    pub targets: Vec<&'static str>,
    /// Whether handlers are slow, and messages few.
    pub slow: bool,
    /// Mean pause between two sends of each of the 40 keys.
    pub pause: Duration,
    /// Whether there are no faults, no message is given up, and nothing may grow.
    pub steady: bool,
    /// Whether the topic is packed.
    pub packed: bool,
    /// The mistake that all processes make, if any.
    pub mutant: Option<Mutant>,
    /// The path of the `chaos` binary.
    pub bin: PathBuf,
    /// The path of a Valkey server.
    pub valkey: Option<PathBuf>,
    /// The folder of the history.
    pub folder: PathBuf,
}

impl Plan {
    /// Returns the plan of a run of 30 seconds with faults that the seed chooses.
    #[must_use]
    pub fn new(topology: Topology, seed: u64, bin: &Path, folder: &Path) -> Self {
        Self {
            topology,
            seed,
            length: Duration::from_secs(30),
            drain: crate::HANG,
            ttl: Duration::from_millis(1_500),
            kinds: Vec::new(),
            targets: Vec::new(),
            slow: false,
            pause: Duration::from_millis(80),
            steady: false,
            packed: false,
            mutant: None,
            bin: bin.to_owned(),
            valkey: None,
            folder: folder.to_owned(),
        }
    }

    /// Returns the kinds of faults of this run.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        if self.steady {
            return Vec::new();
        }
        if self.kinds.is_empty() {
            return Kind::choose(self.topology, &mut fastrand::Rng::with_seed(self.seed));
        }
        self.kinds.iter().copied().filter(|kind| kind.occurs_on(self.topology)).collect()
    }

    /// Returns what the checks have to know of the run.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let place = PlaceLimits { attempts: ATTEMPTS, back_off: BACK_OFF, ..PlaceLimits::default() };
        // The fourth end, at the earliest, of which one may have come before its handler began.
        let owners = PlaceLimits {
            per_partition: PER_PARTITION,
            group_faults_lose: true,
            fewest_crashes: 3,
            ..place.clone()
        };
        let sharing = PlaceLimits { order: KeyOrder::Free, per_process: PER_PROCESS, ..place.clone() };
        let places = [
            (place_of(ORDERS, OWNERS), owners),
            (place_of(ORDERS, SHARERS), sharing.clone()),
            (place_of(TASKS, ""), sharing),
        ];
        Limits {
            place,
            places: places.into(),
            // All servers have the clock of this machine.
            epochs_may_regress: false,
            // Bounds against a hang: other programs may need the machine. The figures say what the times were.
            lateness: Duration::from_secs(10),
            notice: Duration::from_millis(500),
            // One process that got no time from the machine for a ttl.
            unexplained_losses: usize::try_from(PARTITIONS).expect("few"),
            endurance: self.steady.then(Endurance::default),
            ..Limits::new(self.ttl)
        }
    }

    /// Returns the command that repeats the run, with `--keep` and `--valkey` left out.
    #[must_use]
    pub fn command(&self) -> String {
        let (topology, seed, seconds) = (self.topology, self.seed, self.length.as_secs());
        let mut command = format!("chaos run --topology {topology} --seed {seed} --seconds {seconds}");
        let defaults = Self::new(topology, seed, &self.bin, &self.folder);
        if !self.kinds.is_empty() {
            let kinds: Vec<String> = self.kinds.iter().map(ToString::to_string).collect();
            command += &format!(" --faults {}", kinds.join(","));
        }
        if self.pause != defaults.pause {
            command += &format!(" --pause {}", self.pause.as_millis());
        }
        for (option, is_set) in [("slow", self.slow), ("steady", self.steady), ("packed", self.packed)] {
            if is_set {
                command += &format!(" --{option} true");
            }
        }
        if let Some(mutant) = self.mutant {
            command += &format!(" --mutant {mutant}");
        }
        command
    }

    /// Returns the file of the history.
    #[must_use]
    pub fn history(&self) -> PathBuf {
        self.folder.join("history")
    }
}

/// Runs a plan, and returns its history.
///
/// # Errors
/// If servers or processes do not start, or do not answer when all faults have ended.
///
/// # Panics
/// If servers do not agree in time.
pub fn run(plan: &Plan) -> Result<Vec<Line>> {
    let sink = Sink::open(&plan.history()).context("the history")?;
    let phase = |phase| sink.write(What::Phase(phase));
    phase(Phase::Starting);
    let mut deployment = Deployment::start(plan.topology, plan.valkey.as_deref());
    if let Some(mutant) = plan.mutant {
        anyhow::ensure!(deployment.ca.is_none(), "a mutant needs links without TLS, which hides its scripts");
        deployment.links.iter().for_each(|link| mutant.arm(link));
    }
    // After that: the servers are in a network of which threads that started before are no part.
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut processes = start(plan, &deployment, &sink)?;
    let mq = threads.block_on(connect(&deployment.url(), deployment.ca.as_deref(), |_: &Event<'_>| {}))?;
    threads.block_on(all_at_work(&plan.history()))?;

    let (kinds, mut random) = (plan.kinds(), fastrand::Rng::with_seed(plan.seed));
    let audits = Audits::start(&threads, mq.clone(), &plan.history())?;
    phase(Phase::Calm);
    thread::sleep(plan.length / 5);
    sink.write(usage::of(&deployment, &processes));
    phase(Phase::Faults);
    let end = Instant::now() + plan.length / 2;
    let (of_processes, of_servers): (Vec<Kind>, Vec<Kind>) =
        kinds.iter().partition(|kind| kind.is_of_processes());
    let mut other = random.fork();
    thread::scope(|scope| {
        let (deployment, sink) = (&mut deployment, &sink);
        scope.spawn(move || servers::inject(deployment, &of_servers, plan.ttl, end, &mut other, sink));
        processes.inject(&of_processes, &plan.targets, end, &mut random, sink);
    });
    // There may be no faults.
    thread::sleep(end.saturating_duration_since(Instant::now()));
    processes.replace_dead(&sink);
    phase(Phase::Healed);
    thread::sleep(plan.length * 3 / 10);
    sink.write(usage::of(&deployment, &processes));

    phase(Phase::Draining);
    let ended = processes.end(|role| matches!(role, Role::Producer(_) | Role::Locker));
    let mut wrong = ended.err().unwrap_or_default();
    let rests = threads.block_on(drain(&mq, plan.packed, plan.drain))?;
    rests.into_iter().for_each(|(place, rest)| sink.write(What::Left { place, rest }));
    audits.stop();
    let findings = threads.block_on(audit(&mq)).context("the last audit")?;
    sink.write(What::Audit { findings });
    sink.write(usage::of(&deployment, &processes));
    wrong.extend(processes.end(|role| role != Role::Store).err().unwrap_or_default());
    wrong.into_iter().for_each(|what| sink.write(What::Disobeyed(what)));
    phase(Phase::Ended);
    drop(processes);
    Ok(std::mem::take(&mut read(&plan.history())?.lines))
}

/// Reads the history of a run.
///
/// # Errors
/// If there is no such file.
pub fn read(path: &Path) -> Result<History<What>> {
    let mut history = History::open(path).context("the history")?;
    history.read();
    Ok(history)
}

/// Starts all processes.
fn start(plan: &Plan, deployment: &Deployment, sink: &Sink) -> Result<Processes> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let true_us = i64::try_from(wall.as_micros())? - now_us().cast_signed();
    let bin = plan.bin.to_str().context("the path of the binary")?.to_owned();
    let mut processes = Processes::new(bin);
    let setup = |name: String, role: Role, number: u64| Setup {
        name,
        life: 0,
        role,
        url: deployment.url(),
        ca: deployment.ca.clone(),
        history: plan.history(),
        store: plan.folder.join("store"),
        ttl_ms: u64::try_from(plan.ttl.as_millis()).expect("small"),
        replicas: plan.topology.replicas(),
        seed: plan.seed.wrapping_mul(1_000).wrapping_add(number),
        slow: plan.slow,
        pause_ms: u64::try_from(plan.pause.as_millis()).expect("small"),
        steady: plan.steady,
        packed: plan.packed,
        mutant: plan.mutant,
        true_us,
    };
    processes.start(setup("store".to_owned(), Role::Store, 0), false, None);
    let deadline = Instant::now() + crate::HANG;
    while !plan.folder.join("store").exists() {
        anyhow::ensure!(Instant::now() < deadline, "the store does not start");
        thread::sleep(Duration::from_millis(5));
    }
    let roles =
        [Role::Owner, Role::Owner, Role::Owner, Role::Sharer, Role::Sharer, Role::Worker, Role::Worker];
    let others = [Role::Locker, Role::Locker, Role::Locker, Role::Producer(1), Role::Producer(2)];
    for (at, role) in roles.into_iter().chain(others).enumerate() {
        let number = u64::try_from(at)? + 1;
        // Of each kind, the first has a clock of its own, and so it is with both producers.
        let own_clock = matches!(at, 0 | 3 | 5 | 7) || matches!(role, Role::Producer(_));
        let mut setup = setup(format!("{}-{number}", role.name()), role, number);
        let link = deployment.link();
        if let Some(link) = &link {
            setup.url = link.url();
        }
        processes.start(setup, own_clock, link);
    }
    sink.write(What::Phase(Phase::Starting));
    Ok(processes)
}

/// Waits until messages are handled at every place.
async fn all_at_work(history: &Path) -> Result<()> {
    let mut history: History<What> = History::open(history).context("the history")?;
    let mut places = BTreeSet::new();
    let deadline = Instant::now() + crate::HANG;
    while places.len() < 3 {
        anyhow::ensure!(
            Instant::now() < deadline,
            "no messages are handled at some places: only at {places:?}"
        );
        for line in history.read() {
            if let What::Ended { handling, .. } = &line.what {
                places.insert(handling.place.clone());
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Audits the topic and the queue again and again while the run lasts.
struct Audits {
    ends: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Audits {
    fn start(threads: &tokio::runtime::Runtime, mq: Millstream, history: &Path) -> Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let (sink, over) = (Sink::open(history)?, ends.clone());
        let task = threads.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                tokio::time::sleep(AUDIT).await;
                // A server that is away is no finding.
                if let Ok(findings) = audit(&mq).await {
                    sink.write(What::Audit { findings });
                }
            }
        });
        Ok(Self { ends, task })
    }

    fn stop(self) {
        self.ends.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

async fn audit(mq: &Millstream) -> Result<Vec<String>> {
    let admin = mq.admin();
    let options = VerifyOptions::default;
    let topic = admin.verify(&partition(0).topic, options()).await?;
    let queue = admin.verify_queue(&millstream_core::QueueName::new(TASKS)?, options()).await?;
    // The record of a loss is no fault: the history shows whether what a fail-over dropped had been confirmed.
    let is_fault = |it: &&Verdict| it.repaired != Repaired::Record;
    let verdicts = topic.verdicts.iter().chain(&queue.verdicts).filter(is_fault);
    Ok(verdicts.map(|verdict| verdict.finding.to_string()).collect())
}

/// Waits until everything is handled, or for this time. Returns what is left.
async fn drain(mq: &Millstream, packed: bool, limit: Duration) -> Result<Vec<(Place, Rest)>> {
    let deadline = Instant::now() + limit;
    loop {
        let late = Instant::now() >= deadline;
        match left(mq, packed).await {
            Ok(rests) => {
                let empty = |rest: &Rest| rest.pending + rest.unread + rest.waiting == 0;
                if late || rests.iter().all(|(_, rest)| empty(rest)) {
                    return Ok(rests);
                }
            }
            Err(error) if late => return Err(error.context("what is left")),
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn left(mq: &Millstream, packed: bool) -> Result<Vec<(Place, Rest)>> {
    let mut rests = Vec::new();
    let delayed = mq.admin().waiting(&partition(0).topic).await?.total;
    for group in [OWNERS, SHARERS] {
        let place = place_of(ORDERS, group);
        let mut rest = Rest { waiting: delayed, ..Rest::default() };
        for stats in mq.stats(&orders(packed), group).await? {
            rest.pending += stats.pending;
            rest.waiting += stats.retrying;
            rest.unread += stats.lag.unwrap_or(stats.lag_at_least.max(1));
        }
        let letters = mq.dead_letters(&orders(packed), group).await?.list(100_000).await?;
        for letter in letters {
            let body = letter.envelope(&MessageLimits::default()).ok();
            let job: Option<Job> = body.and_then(|body| serde_json::from_slice(&body.payload).ok());
            rest.dead.push((job.map(|job| job.number), letter.reason.to_string()));
        }
        if group == OWNERS {
            let owners = mq.admin().owners(&partition(0).topic, &GroupName::new(group)?).await?;
            let settled = |standing| standing == Standing::Settled;
            let ownerless = owners.partitions.iter().filter(|one| !settled(one.standing));
            rest.ownerless = ownerless.map(|one| one.ownership.partition.0).collect();
        }
        rests.push((place, rest));
    }
    let queue = DelayQueue::<Job>::new(TASKS).shards(SHARDS).open(mq.backend()).await?;
    let counts = queue.count().await?;
    let mut rest = Rest { pending: counts.claimed, waiting: counts.waiting.total, ..Rest::default() };
    for task in queue.dead().list(100_000).await? {
        rest.dead.push((queue.dead().payload(&task).ok().map(|job| job.number), task.reason.to_string()));
    }
    rests.push((place_of(TASKS, ""), rest));
    Ok(rests)
}
