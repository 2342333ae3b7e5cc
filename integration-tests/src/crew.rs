//! Processes that handle jobs in one of three ways: consumers that own partitions, consumers that share them, and
//! workers of a delay queue. The guarantees for dead processes and unreachable servers are the same for all three, so
//! one test covers each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use millstream::{Limits, MessageId, Millstream, Producer, Record, Topic};
use millstream_core::GroupName;
use millstream_delay::{DelayQueue, TaskRecord};
use tempfile::TempDir;

use crate::delays::worker::{Setup as WorkerSetup, Work};
use crate::history::{Handling, History, Line, Sink, What, now_us};
use crate::member::{GROUP, Job, Mode, Setup};
use crate::owners::Terms;
use crate::process::Process;

/// The way in which jobs are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Consumers, each the owner of some partitions.
    Exclusive,
    /// Consumers that share all partitions.
    Shared,
    /// Workers of a delay queue.
    Queue,
}

/// The settings of the crew.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The way in which jobs are handled.
    pub kind: Kind,
    /// The number of partitions or shards.
    pub partitions: u32,
    /// Concurrency: in each partition, or of each worker.
    pub mode: Mode,
    /// The ttl of leases, or the hold time of claims.
    pub ttl: Duration,
    /// The number of crashes after which a message is given up.
    pub crash_limit: u32,
    /// The number of messages that an owner reads ahead.
    pub prefetch: usize,
    /// How many messages are packed into an entry at most; not packed if there is none.
    pub packed: Option<u32>,
}

impl Plan {
    /// Returns a plan with eight partitions and eight concurrent handlers in each, or sixteen per process where no
    /// process owns partitions. Other settings have their defaults.
    #[must_use]
    pub fn new(kind: Kind, ttl: Duration) -> Self {
        let mode = Mode::Unordered(if kind == Kind::Exclusive { 8 } else { 16 });
        // A consumer that shares partitions reads no more than it can handle, since other consumers would not get the
        // rest.
        let prefetch = if kind == Kind::Shared { 16 } else { 512 };
        Self { kind, partitions: 8, mode, ttl, crash_limit: 3, prefetch, packed: None }
    }

    /// The guarantee: a dead process is replaced within two ttls and a second.
    #[must_use]
    pub fn replaced_within(&self) -> Duration {
        self.ttl * 2 + Duration::from_secs(1)
    }
}

/// The paths of the binaries, which are known only to tests.
#[derive(Clone, Copy, Debug)]
pub struct Bins {
    /// `member`.
    pub member: &'static str,
    /// `worker`.
    pub worker: &'static str,
}

/// One handling of a message.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The process.
    pub pid: u32,
    /// The time of its start.
    pub at_us: u64,
    /// The handling as recorded.
    pub handling: Handling,
}

/// A message that was given up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dead {
    /// The number of the message.
    pub number: u64,
    /// The reason.
    pub reason: String,
}

enum Place {
    Topic(Topic<Job>, Producer<Job>),
    Queue(DelayQueue<Work>),
}

/// The processes and their history.
pub struct Crew {
    /// The settings of the processes.
    pub plan: Plan,
    /// The events, in order.
    pub history: History,
    /// The owners of the partitions over time.
    pub terms: Terms,
    /// All handlings that began, by message, in order.
    pub starts: BTreeMap<u64, Vec<Start>>,
    /// The time at which each message was first handled to its end.
    pub done: BTreeMap<u64, u64>,
    /// The time at which each process was killed or found dead.
    pub killed: BTreeMap<u32, u64>,
    /// The running processes.
    pub processes: BTreeMap<u32, Process>,
    /// The sent messages, by partition and id, for consumers.
    pub sent: BTreeMap<(u32, MessageId), u64>,
    /// The connection of the test.
    pub mq: Millstream,
    url: String,
    bins: Bins,
    work: Place,
    ready: BTreeSet<u32>,
    leaving: Vec<Process>,
    sink: Sink,
    folder: TempDir,
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {} done, {:?} run", self.plan, self.done.len(), self.processes.keys())
    }
}

impl Crew {
    /// Creates a crew without processes or jobs.
    ///
    /// # Panics
    /// If the server at `url` cannot be reached.
    pub async fn new(bins: Bins, url: &str, plan: Plan) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sink");
        let sink = Sink::open(&path).expect("a sink");
        let history = History::open(&path).expect("a history");
        let (mq, work) = match plan.kind {
            Kind::Queue => {
                let mq = Millstream::connect(url).await.expect("connected");
                let queue = DelayQueue::<Work>::new("jobs").shards(plan.partitions);
                let queue = queue.open(mq.backend()).await.expect("opened");
                (mq, Place::Queue(queue))
            }
            Kind::Exclusive | Kind::Shared => {
                let mq = Millstream::at(url).namespace("members").await.expect("connected");
                let setup = Setup { packed: plan.packed, ..Setup::new(url, "jobs", plan.partitions) };
                let topic = setup.topic();
                let producer = mq.producer(topic.clone()).await.expect("a producer");
                (mq, Place::Topic(topic, producer))
            }
        };
        Self {
            plan,
            history,
            terms: Terms::default(),
            starts: BTreeMap::new(),
            done: BTreeMap::new(),
            killed: BTreeMap::new(),
            processes: BTreeMap::new(),
            sent: BTreeMap::new(),
            mq,
            url: url.to_owned(),
            bins,
            work,
            ready: BTreeSet::new(),
            leaving: Vec::new(),
            sink,
            folder,
        }
    }

    /// Starts another process.
    pub fn start(&mut self) -> u32 {
        let url = self.url.clone();
        self.start_at(&url)
    }

    /// Starts another process that connects to the server at another address, such as that of a proxy.
    ///
    /// # Panics
    /// If the process does not start.
    pub fn start_at(&mut self, url: &str) -> u32 {
        let Plan { kind, partitions, mode, ttl, crash_limit, prefetch, packed } = self.plan;
        let sink = self.folder.path().join("sink");
        let ttl_ms = u64::try_from(ttl.as_millis()).expect("small");
        let process = if kind == Kind::Queue {
            let concurrency = match mode {
                Mode::Serial => 1,
                Mode::PerKey(at_once) | Mode::Unordered(at_once) => at_once,
            };
            let setup = WorkerSetup {
                sink,
                concurrency,
                hold_ms: ttl_ms,
                crash_limit,
                ..WorkerSetup::new(url, "jobs")
            };
            Process::start(self.bins.worker, &setup)
        } else {
            let shared = kind == Kind::Shared;
            let setup = Setup::new(url, "jobs", partitions);
            let setup = Setup { sink, ttl_ms, prefetch, mode, crash_limit, shared, packed, ..setup };
            Process::start(self.bins.member, &setup)
        };
        let pid = process.pid();
        self.processes.insert(pid, process);
        pid
    }

    /// Starts this many processes, and waits until they are ready and share the partitions evenly.
    ///
    /// # Panics
    /// If that takes too long.
    pub async fn join(&mut self, count: usize) {
        for _ in 0..count {
            self.start();
        }
        self.settled().await;
    }

    /// Waits until all running processes are ready, and share the partitions evenly where they own them.
    ///
    /// # Panics
    /// If that takes too long.
    pub async fn settled(&mut self) {
        self.until("all are at work", |crew| {
            let pids: Vec<u32> = crew.processes.keys().copied().collect();
            pids.iter().all(|pid| crew.ready.contains(pid))
                && (crew.plan.kind != Kind::Exclusive || crew.terms.are_balanced(crew.plan.partitions, &pids))
        })
        .await;
    }

    /// Waits until all running processes have reported that they are ready.
    ///
    /// # Panics
    /// If one does not.
    pub async fn ready(&mut self) {
        self.until("all are ready", |crew| crew.processes.keys().all(|pid| crew.ready.contains(pid))).await;
    }

    /// Returns the ids of the running processes.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    /// Kills a process and returns the time right before.
    ///
    /// # Panics
    /// If there is no process with that id.
    pub fn kill(&mut self, pid: u32) -> u64 {
        let at_us = now_us();
        self.processes.get_mut(&pid).expect("a process of ours").kill();
        self.bury(pid, at_us);
        at_us
    }

    fn bury(&mut self, pid: u32, at_us: u64) {
        self.processes.remove(&pid);
        self.killed.insert(pid, at_us);
        self.sink.line(&Line { at_us, pid, what: What::Killed });
        self.read();
    }

    /// Records which processes have died by themselves, and starts another for each. Returns their number.
    pub fn replace_dead(&mut self) -> usize {
        let mut dead = Vec::new();
        for (pid, process) in &mut self.processes {
            if !process.is_alive() {
                dead.push(*pid);
            }
        }
        for pid in &dead {
            self.bury(*pid, now_us());
            self.start();
        }
        dead.len()
    }

    /// Sends jobs, to the partitions in turn or to the shards of their ids.
    ///
    /// # Panics
    /// If one is not stored.
    pub async fn send(&mut self, jobs: &[Job]) {
        for jobs in jobs.chunks(500) {
            match &self.work {
                Place::Topic(_, producer) => {
                    let partitions = u64::from(self.plan.partitions);
                    let records = jobs.iter().map(|job| {
                        let record = Record::new(job).key(format!("k{}", job.number));
                        record.partition(u32::try_from(job.number % partitions).expect("small"))
                    });
                    for (job, sent) in jobs.iter().zip(producer.send_all(records).await) {
                        let sent = sent.expect("stored");
                        self.sent.insert((sent.partition.0, sent.id), job.number);
                    }
                }
                Place::Queue(queue) => {
                    let tasks =
                        jobs.iter().map(|job| TaskRecord::new(job).id(format!("task-{}", job.number)));
                    queue.schedule_all(tasks).await.into_iter().for_each(|one| drop(one.expect("scheduled")));
                }
            }
        }
    }

    /// Reads the events since the last read.
    pub fn read(&mut self) {
        for line in self.history.read() {
            self.terms.apply(line);
            match &line.what {
                What::Started(handling) => {
                    let start = Start { pid: line.pid, at_us: line.at_us, handling: *handling };
                    self.starts.entry(handling.number).or_default().push(start);
                }
                What::Done(handling) => _ = self.done.entry(handling.number).or_insert(line.at_us),
                What::Ready => _ = self.ready.insert(line.pid),
                _ => {}
            }
        }
    }

    /// Waits until a condition holds. Returns whether it did in time.
    pub async fn within(&mut self, time_limit: Duration, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let deadline = Instant::now() + time_limit;
        loop {
            self.read();
            if holds(self) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// If it does not hold within [`HANG`](crate::HANG).
    pub async fn until(&mut self, what: &str, holds: impl FnMut(&Self) -> bool) {
        assert!(self.within(crate::HANG, holds).await, "never came true: {what}");
    }

    /// Returns the messages that were given up.
    ///
    /// # Panics
    /// If the server does not reply.
    pub async fn dead(&self) -> Vec<Dead> {
        let mut all = match &self.work {
            Place::Topic(topic, _) => {
                let letters = self.mq.dead_letters(topic, GROUP).await.expect("dead letters");
                let letters = letters.list(1_000).await.expect("listed");
                let dead = letters.iter().map(|letter| {
                    let envelope = letter.envelope(&Limits::default()).expect("a message");
                    let job: Job = serde_json::from_slice(&envelope.payload).expect("a job");
                    Dead { number: job.number, reason: letter.reason.to_string() }
                });
                dead.collect::<Vec<_>>()
            }
            Place::Queue(queue) => {
                let tasks = queue.dead().list(1_000).await.expect("listed");
                let dead = tasks.iter().map(|task| {
                    let number = queue.dead().payload(task).expect("a job").number;
                    Dead { number, reason: task.reason.to_string() }
                });
                dead.collect()
            }
        };
        all.sort();
        all
    }

    /// Returns the number of messages that the group still has to handle: unread, pending or parked. Always 0 for a
    /// queue, as its tasks are deleted when they are done.
    ///
    /// # Panics
    /// If the server does not reply.
    pub async fn left(&self) -> u64 {
        let Place::Topic(topic, _) = &self.work else { return 0 };
        let stats = self.mq.stats(topic, GROUP).await.expect("stats");
        stats.iter().map(|p| p.pending + p.retrying + p.lag.unwrap_or(0)).sum()
    }

    /// Returns the messages for which more than one handling began, with all their handlings.
    #[must_use]
    pub fn doubled(&self) -> Vec<(u64, Vec<Start>)> {
        let more = self.starts.iter().filter(|(_, starts)| starts.len() > 1);
        more.map(|(number, starts)| (*number, starts.clone())).collect()
    }

    /// Returns the repeated messages that no death explains: a handling was followed by another though its process
    /// was alive.
    #[must_use]
    pub fn doubled_for_nothing(&self) -> Vec<(u64, Vec<Start>)> {
        let explained = |starts: &[Start]| {
            starts[..starts.len() - 1].iter().all(|start| self.killed.contains_key(&start.pid))
        };
        self.doubled().into_iter().filter(|(_, starts)| !explained(starts)).collect()
    }

    /// Returns the number of messages that were done by a time, by the clock of the history.
    #[must_use]
    pub fn done_by(&self, at_us: u64) -> usize {
        self.done.values().filter(|at| **at <= at_us).count()
    }

    /// Shuts all processes down in an orderly way.
    ///
    /// # Panics
    /// If one does not end, or ends with an error.
    pub async fn end(&mut self) {
        for (_, process) in std::mem::take(&mut self.processes) {
            process.terminate();
            self.leaving.push(process);
        }
        for mut process in std::mem::take(&mut self.leaving) {
            assert!(process.ended().await, "process {} ends well", process.pid());
        }
        self.read();
    }

    /// Returns the group's name.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn group() -> GroupName {
        GroupName::new(GROUP).expect("a name")
    }
}

/// Prints the last events if the test failed.
impl Drop for Crew {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        self.read();
        let of_messages = |what: &What| {
            matches!(what, What::Started(_) | What::Done(_) | What::Failed(_) | What::Settled(..))
        };
        let lines: Vec<&Line> = self.history.lines.iter().filter(|line| !of_messages(&line.what)).collect();
        for line in &lines[lines.len().saturating_sub(40)..] {
            println!("{line:?}");
        }
        println!("{self:?}");
    }
}

/// Returns the size of a test: `full` if `MILLSTREAM_FULL` is set, otherwise a size that fits into every test run.
#[must_use]
pub fn size(everyday: u64, full: u64) -> u64 {
    if std::env::var_os("MILLSTREAM_FULL").is_some() { full } else { everyday }
}
