//! Processes that work off jobs in one of three ways: consumers that own partitions, consumers that share them, workers of a
//! delay queue. What must hold when processes die or the server is away holds for all three, so one test says it for each.

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

/// How the jobs are worked off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By consumers, each the owner of some partitions.
    Exclusive,
    /// By consumers that share all partitions.
    Shared,
    /// By workers of a delay queue.
    Queue,
}

/// How the crew works.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In which way.
    pub kind: Kind,
    /// Partitions or shards.
    pub partitions: u32,
    /// At once: in each partition, or by each worker.
    pub mode: Mode,
    /// The lease's ttl, or for how long a claim holds.
    pub ttl: Duration,
    /// After how many crashes a message is given up.
    pub crash_limit: u32,
    /// Messages that an owner reads ahead.
    pub prefetch: usize,
}

impl Plan {
    /// Eight at once in each of eight partitions, or sixteen by each process where nobody owns them. The rest is as it is when
    /// nobody sets it.
    #[must_use]
    pub fn new(kind: Kind, ttl: Duration) -> Self {
        let mode = Mode::Unordered(if kind == Kind::Exclusive { 8 } else { 16 });
        // Who shares reads no more than it can do: the others would not get it.
        let prefetch = if kind == Kind::Shared { 16 } else { 512 };
        Self { kind, partitions: 8, mode, ttl, crash_limit: 3, prefetch }
    }

    /// The promise: who died is replaced within two ttls and a second.
    #[must_use]
    pub fn replaced_within(&self) -> Duration {
        self.ttl * 2 + Duration::from_secs(1)
    }
}

/// The binaries, which only tests know.
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
    /// Where.
    pub pid: u32,
    /// When.
    pub at_us: u64,
    /// What was said of it.
    pub handling: Handling,
}

/// A given up message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dead {
    /// Which.
    pub number: u64,
    /// Why.
    pub reason: String,
}

enum Place {
    Topic(Topic<Job>, Producer<Job>),
    Queue(DelayQueue<Work>),
}

/// The processes, and what they did.
pub struct Crew {
    /// How they work.
    pub plan: Plan,
    /// What happened, in order.
    pub history: History,
    /// Who owned which partition.
    pub terms: Terms,
    /// Each handling that began, by message, in order.
    pub starts: BTreeMap<u64, Vec<Start>>,
    /// When each message was handled to its end for the first time.
    pub done: BTreeMap<u64, u64>,
    /// When which process was killed or found dead.
    pub killed: BTreeMap<u32, u64>,
    /// Those that run.
    pub processes: BTreeMap<u32, Process>,
    /// What was sent: partition and id, for consumers.
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
    /// Nobody yet, and nothing to do.
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
                let topic = Setup::new(url, "jobs", plan.partitions).topic();
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

    /// Starts one more process.
    pub fn start(&mut self) -> u32 {
        let url = self.url.clone();
        self.start_at(&url)
    }

    /// Starts one more process that speaks to the server at another address, such as that of a proxy.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_at(&mut self, url: &str) -> u32 {
        let Plan { kind, partitions, mode, ttl, crash_limit, prefetch } = self.plan;
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
            let setup = Setup { sink, ttl_ms, prefetch, mode, crash_limit, shared, ..setup };
            Process::start(self.bins.member, &setup)
        };
        let pid = process.pid();
        self.processes.insert(pid, process);
        pid
    }

    /// Starts this many, and waits until they are at work and share the partitions evenly.
    ///
    /// # Panics
    /// If that does not come.
    pub async fn join(&mut self, count: usize) {
        for _ in 0..count {
            self.start();
        }
        self.settled().await;
    }

    /// Waits until all that run are ready, and share the partitions evenly where they own them.
    ///
    /// # Panics
    /// If that does not come.
    pub async fn settled(&mut self) {
        self.until("all are at work", Duration::from_secs(60), |crew| {
            let pids: Vec<u32> = crew.processes.keys().copied().collect();
            pids.iter().all(|pid| crew.ready.contains(pid))
                && (crew.plan.kind != Kind::Exclusive || crew.terms.are_balanced(crew.plan.partitions, &pids))
        })
        .await;
    }

    /// Waits until all that run have said that they are ready.
    ///
    /// # Panics
    /// If one does not.
    pub async fn ready(&mut self) {
        self.until("all are ready", Duration::from_secs(60), |crew| {
            crew.processes.keys().all(|pid| crew.ready.contains(pid))
        })
        .await;
    }

    /// The processes that run.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    /// Kills one; gives back the time right before.
    ///
    /// # Panics
    /// If there is none of that id.
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

    /// Notes who has died by itself, and starts another for each; how many.
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

    /// Sends jobs: to the partitions in turn, or where their ids belong.
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

    /// Reads what happened since.
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

    /// Waits until it holds; whether it did in time.
    pub async fn within(&mut self, patience: Duration, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let deadline = Instant::now() + patience;
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

    /// Waits until it holds.
    ///
    /// # Panics
    /// If it does not in time.
    pub async fn until(&mut self, what: &str, patience: Duration, holds: impl FnMut(&Self) -> bool) {
        assert!(self.within(patience, holds).await, "never came true: {what}");
    }

    /// What was given up.
    ///
    /// # Panics
    /// If the server does not say.
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

    /// How many messages the group still has to do: not read, pending or parked. Nothing of a queue, whose tasks are gone
    /// when they are done.
    ///
    /// # Panics
    /// If the server does not say.
    pub async fn left(&self) -> u64 {
        let Place::Topic(topic, _) = &self.work else { return 0 };
        let stats = self.mq.stats(topic, GROUP).await.expect("stats");
        stats.iter().map(|p| p.pending + p.retrying + p.lag.unwrap_or(0)).sum()
    }

    /// Messages of which a handling began more than once, with all of them.
    #[must_use]
    pub fn doubled(&self) -> Vec<(u64, Vec<Start>)> {
        let more = self.starts.iter().filter(|(_, starts)| starts.len() > 1);
        more.map(|(number, starts)| (*number, starts.clone())).collect()
    }

    /// Doubled messages that no death explains: a handling was followed by another though its process lived on.
    #[must_use]
    pub fn doubled_for_nothing(&self) -> Vec<(u64, Vec<Start>)> {
        let explained = |starts: &[Start]| {
            starts[..starts.len() - 1].iter().all(|start| self.killed.contains_key(&start.pid))
        };
        self.doubled().into_iter().filter(|(_, starts)| !explained(starts)).collect()
    }

    /// Messages that were done by a time, by the clock of the history.
    #[must_use]
    pub fn done_by(&self, at_us: u64) -> usize {
        self.done.values().filter(|at| **at <= at_us).count()
    }

    /// The most messages done in any window of this length that begins between two times.
    #[must_use]
    pub fn best_window(&self, from_us: u64, to_us: u64, length: Duration) -> usize {
        let mut times: Vec<u64> = self.done.values().copied().filter(|at| *at >= from_us).collect();
        times.sort_unstable();
        let length = u64::try_from(length.as_micros()).expect("small");
        let ends = |at: usize| times[at..].iter().take_while(|time| **time < times[at] + length).count();
        (0..times.len()).filter(|at| times[*at] <= to_us).map(ends).max().unwrap_or(0)
    }

    /// Lets everybody end in an orderly way.
    ///
    /// # Panics
    /// If one does not end, or not well.
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

    /// The group's name.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn group() -> GroupName {
        GroupName::new(GROUP).expect("a name")
    }
}

/// Says what happened last if the test failed.
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

/// The size of a test: `full` if `MILLSTREAM_FULL` is set, else what fits into every run of the tests.
#[must_use]
pub fn size(everyday: u64, full: u64) -> u64 {
    if std::env::var_os("MILLSTREAM_FULL").is_some() { full } else { everyday }
}
