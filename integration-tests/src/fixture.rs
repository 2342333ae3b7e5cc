//! A topic, the member processes that consume it, and the history of both.

use std::collections::{BTreeMap, BTreeSet};

use millstream::{MessageId, Millstream, Namespace, Producer, Record, Topic, TopicPartition};
use millstream_core::GroupName;
use millstream_core::keys::Keys;
use tempfile::TempDir;

use crate::eventually;
use crate::history::{History, Line, Sink, What, now_us};
use crate::member::{GROUP, Job, Setup};
use crate::owners::Terms;
use crate::process::Process;

/// A topic and the processes that consume it.
pub struct Fixture {
    bin: &'static str,
    /// The settings for new members.
    pub setup: Setup,
    /// The topic.
    pub topic: Topic<Job>,
    /// The connection of the test.
    pub mq: Millstream,
    /// Sends jobs.
    pub producer: Producer<Job>,
    /// The events.
    pub history: History,
    /// The owners of the partitions over time.
    pub terms: Terms,
    /// The messages that were handled to the end.
    pub done: BTreeSet<u64>,
    /// The running processes, by id.
    pub processes: BTreeMap<u32, Process>,
    /// Processes that were requested to shut down.
    leaving: Vec<Process>,
    /// The numbers of the sent messages, by partition and id.
    pub sent: BTreeMap<(u32, MessageId), u64>,
    /// A direct connection to the server.
    pub redis: redis::aio::MultiplexedConnection,
    sink: Sink,
    _folder: TempDir,
}

impl Fixture {
    /// Creates a topic without members; `bin` is the path of the `member` binary.
    ///
    /// # Panics
    /// If the server of `setup` cannot be reached.
    pub async fn new(bin: &'static str, mut setup: Setup) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        setup.sink = folder.path().join("sink");
        let sink = Sink::open(&setup.sink).expect("a sink");
        let history = History::open(&setup.sink).expect("a history");
        let mq = Millstream::at(&setup.url).namespace(&setup.namespace).await.expect("connected");
        let topic = setup.topic();
        let producer = mq.producer(topic.clone()).await.expect("a producer");
        let redis = raw_connection(&setup.url).await;
        Self {
            bin,
            setup,
            topic,
            mq,
            producer,
            history,
            terms: Terms::default(),
            done: BTreeSet::new(),
            processes: BTreeMap::new(),
            leaving: Vec::new(),
            sent: BTreeMap::new(),
            redis,
            sink,
            _folder: folder,
        }
    }

    /// Starts another member and returns its process id.
    pub fn start(&mut self) -> u32 {
        self.start_as(&self.setup.clone())
    }

    /// Starts another member with its own setup.
    pub fn start_as(&mut self, setup: &Setup) -> u32 {
        let process = Process::start(self.bin, setup);
        let pid = process.pid();
        self.processes.insert(pid, process);
        pid
    }

    /// Kills a member and returns the time right before.
    pub fn kill(&mut self, pid: u32) -> u64 {
        let at_us = now_us();
        self.process(pid).kill();
        self.died(pid, at_us);
        at_us
    }

    /// Records the death of a process that was still alive at the given time.
    pub fn died(&mut self, pid: u32, at_us: u64) {
        self.processes.remove(&pid);
        self.sink.line(&Line { at_us, pid, what: What::Killed });
        self.read();
    }

    /// Requests a member to shut down in an orderly way, and no longer counts it as running.
    ///
    /// # Panics
    /// If there is no member with that id.
    pub fn leave(&mut self, pid: u32) {
        let process = self.processes.remove(&pid).expect("a process of ours");
        process.terminate();
        self.leaving.push(process);
    }

    /// Shuts a member down in an orderly way and waits until its process is gone.
    ///
    /// # Panics
    /// If there is no member with that id, or it does not end, or ends with an error.
    pub async fn stop(&mut self, pid: u32) {
        let mut process = self.processes.remove(&pid).expect("a process of ours");
        process.terminate();
        assert!(process.ended().await, "member {pid} ends well");
        self.read();
    }

    /// Shuts all members down in an orderly way, and also waits for those that were requested to before.
    ///
    /// # Panics
    /// If one does not end, or ends with an error.
    pub async fn end(&mut self) {
        for pid in self.pids() {
            self.leave(pid);
        }
        for mut process in std::mem::take(&mut self.leaving) {
            assert!(process.ended().await, "member {} ends well", process.pid());
        }
        self.read();
    }

    /// Returns a running member.
    ///
    /// # Panics
    /// If there is no member with that id.
    pub fn process(&mut self, pid: u32) -> &mut Process {
        self.processes.get_mut(&pid).expect("a process of ours")
    }

    /// Returns the ids of all running members.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    /// Reads the events since the last read.
    pub fn read(&mut self) -> &[Line] {
        for line in self.history.read() {
            self.terms.apply(line);
            if let What::Done(handling) = &line.what {
                self.done.insert(handling.number);
            }
        }
        &self.history.lines
    }

    /// Waits until the events so far fulfil a condition.
    ///
    /// # Panics
    /// If they do not in time.
    pub async fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let came = async || {
            self.read();
            holds(self)
        };
        eventually(came, what).await;
    }

    /// Waits until all running members share the partitions evenly.
    ///
    /// # Panics
    /// If they do not in time.
    pub async fn balanced(&mut self) {
        let (pids, partitions) = (self.pids(), self.setup.partitions);
        let what = format!("{partitions} partitions are shared by {}", pids.len());
        self.until(&what, |scene| scene.terms.are_balanced(partitions, &pids)).await;
    }

    /// Sends jobs, each with a key or to a partition.
    ///
    /// # Panics
    /// If one is not stored.
    pub async fn send(&mut self, jobs: &[(Job, To)]) {
        for jobs in jobs.chunks(1_000) {
            let records = jobs.iter().map(|(job, to)| match to {
                To::Key(key) => Record::new(job).key(format!("k{key}")),
                To::Partition(partition) => Record::new(job).partition(*partition),
            });
            for ((job, _), sent) in jobs.iter().zip(self.producer.send_all(records).await) {
                let sent = sent.expect("stored");
                self.sent.insert((sent.partition.0, sent.id), job.number);
            }
        }
    }

    /// Returns the messages that are pending in the logs of these partitions: delivered and not settled.
    ///
    /// # Panics
    /// If the server does not reply.
    pub async fn pending(&self, partitions: &[u32]) -> BTreeSet<u64> {
        let keys = Keys::within(&Namespace::new(&self.setup.namespace).expect("a name"));
        let group = GroupName::new(GROUP).expect("a name");
        let name = self.topic.spec().expect("a topic").name;
        if partitions.is_empty() {
            return BTreeSet::new();
        }
        let mut pipe = redis::pipe();
        for partition in partitions {
            let log = keys.log(&TopicPartition::new(name.clone(), *partition));
            pipe.cmd("XPENDING").arg(log.as_str()).arg(group.as_str()).arg("-").arg("+").arg(100_000);
        }
        let mut connection = self.redis.clone();
        let lists: Vec<Vec<(String, String, u64, u64)>> =
            pipe.query_async(&mut connection).await.expect("what is pending");
        let pairs = partitions.iter().zip(lists);
        let ids = pairs.flat_map(|(partition, list)| list.into_iter().map(move |(id, ..)| (*partition, id)));
        ids.map(|(partition, id)| self.sent[&(partition, id.parse().expect("an id"))]).collect()
    }

    /// Waits until the group has no work left: no entry that is unread, pending or parked.
    ///
    /// # Panics
    /// If work is left when the time is over.
    pub async fn at_rest(&self) {
        let at_rest = async || {
            let stats = self.mq.stats(&self.topic, GROUP).await.expect("stats");
            stats.iter().all(|p| p.pending == 0 && p.retrying == 0 && p.lag == Some(0))
        };
        eventually(at_rest, "nothing is left to do").await;
    }

    /// Returns the number of dead letters.
    ///
    /// # Panics
    /// If the server does not reply.
    pub async fn dead(&self) -> u64 {
        self.mq.stats(&self.topic, GROUP).await.expect("stats").iter().map(|p| p.dead).sum()
    }
}

/// Prints the last events if the test failed.
impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        self.read();
        let of_messages = |what: &What| {
            matches!(what, What::Started(_) | What::Done(_) | What::Failed(_) | What::Settled(..))
        };
        let lines: Vec<&Line> = self.history.lines.iter().filter(|line| !of_messages(&line.what)).collect();
        let messages = self.history.lines.len() - lines.len();
        println!("{messages} lines on messages; the last lines of others and the last of all");
        let (others, all) = (lines.len().saturating_sub(50), self.history.lines.len().saturating_sub(20));
        for line in lines[others..].iter().copied().chain(&self.history.lines[all..]) {
            println!("{line:?}");
        }
        println!("live {:?}, owners {:?}", self.pids(), self.terms.owners());
    }
}

/// The destination of a job.
#[derive(Clone, Copy, Debug)]
pub enum To {
    /// The partition of a key.
    Key(u64),
    /// A partition, by number.
    Partition(u32),
}

/// Connects without Millstream, as an operator does, to the first node if it is a cluster. Waits as long as a busy
/// machine may take.
///
/// # Panics
/// If the server is away.
pub async fn raw_connection(url: &str) -> redis::aio::MultiplexedConnection {
    let time_limit = Some(crate::HANG);
    let config = redis::AsyncConnectionConfig::new();
    let config = config.set_connection_timeout(time_limit).set_response_timeout(time_limit);
    let nodes = url.replace("+cluster", "");
    let client = redis::Client::open(nodes.split(',').next().expect("a node")).expect("a URL");
    client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
}
