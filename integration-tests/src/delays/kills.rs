//! Tests that kill (SIGKILL) workers of a delay queue, or members of a group with delayed messages, at random while
//! tasks become due, and check the result.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use millstream::{Limits, Millstream, Record};
use millstream_core::keys::Keys;
use millstream_core::{QueueName, Shard, Timestamp, TopicPartition};
use millstream_delay::{DelayQueue, TaskRecord};

use super::worker::{Setup, label};
use super::{wall_ms_in, wall_us};
use crate::eventually;
use crate::fixture::Fixture;
use crate::history::{Handling, History, Line, Sink, What, now_us};
use crate::member::{self, End, GROUP, Job};
use crate::owners::How;
use crate::process::Process;
use crate::server::Server;

/// Time reserved per task for scheduling, so that all tasks are scheduled before the first is due.
const LEAD: Duration = Duration::from_micros(500);

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of processes that run.
    pub instances: usize,
    /// The number of processes that are killed, one after the other; each is replaced.
    pub kills: usize,
    /// The number of tasks.
    pub tasks: u64,
    /// The time over which they become due.
    pub over: Duration,
}

impl Plan {
    /// Returns a task. A tenth of the tasks fails once, and one of 500 is rejected. Work takes up to 2 ms, so that
    /// kills meet handlers.
    fn job(&self, number: u64, base_ms: u64) -> Job {
        let due = self.over.mul_f64(number as f64 / self.tasks as f64);
        Job {
            number,
            due_ms: base_ms + u64::try_from(due.as_millis()).unwrap_or(0),
            work_us: 1_000 * (number % 3),
            fails: u32::from(number % 10 == 3),
            end: [if is_hopeless(number) { End::DeadLetter } else { End::Ack }; 2],
            ..Job::default()
        }
    }

    fn base_ms(&self) -> u64 {
        wall_ms_in(Duration::from_secs(1) + LEAD * u32::try_from(self.tasks).unwrap_or(u32::MAX))
    }

    fn hopeless(&self) -> BTreeSet<u64> {
        (0..self.tasks).filter(|number| is_hopeless(*number)).collect()
    }

    /// Returns the time until the next kill: random, such that all kills happen while tasks become due.
    fn pause(&self, kill: usize, base_ms: u64) -> Duration {
        let end = base_ms.cast_signed() * 1_000 + i64::try_from(self.over.as_micros()).unwrap_or(i64::MAX);
        let left = u64::try_from(end - wall_us()).unwrap_or(0) / (self.kills - kill) as u64;
        Duration::from_micros(fastrand::u64(0..=2 * left))
    }

    async fn until_due(base_ms: u64) {
        let left = u64::try_from(base_ms.cast_signed() * 1_000 - wall_us());
        tokio::time::sleep(Duration::from_micros(left.expect("scheduled in time"))).await;
    }
}

fn is_hopeless(number: u64) -> bool {
    number % 500 == 499
}

/// Checks that the dead letters are the expected ones, each once.
fn check_dead(plan: &Plan, dead: &[u64]) {
    let hopeless = plan.hopeless();
    assert_eq!(dead.len(), hopeless.len(), "each is dead once");
    assert_eq!(dead.iter().copied().collect::<BTreeSet<_>>(), hopeless);
}

/// Checks that no task was early, and that every task was started.
fn check_started(plan: &Plan, lines: &[Line]) -> HashMap<(u64, u32), Vec<(u32, Handling)>> {
    let early: Vec<&Line> = lines.iter().filter(|line| matches!(line.what, What::Early(..))).collect();
    assert!(early.is_empty(), "early: {early:?}");
    let mut starts: HashMap<(u64, u32), Vec<(u32, Handling)>> = HashMap::new();
    for line in lines {
        if let What::Started(it) = &line.what {
            starts.entry((it.number, it.attempt)).or_default().push((line.pid, *it));
        }
    }
    let seen: HashSet<u64> = starts.keys().map(|(number, _)| *number).collect();
    assert_eq!(seen.len() as u64, plan.tasks, "every task was started");
    for number in (3..plan.tasks).step_by(10).filter(|number| !is_hopeless(*number)) {
        assert!(starts.contains_key(&(number, 2)), "{number} failed once, and came again");
    }
    starts
}

/// Kills workers of a delay queue. Returns a summary.
///
/// # Panics
/// If a check fails.
pub async fn of_queue(bin: &str, plan: &Plan) -> String {
    const SHARDS: u32 = 4;
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let setup = Setup { sink: folder.path().join("sink"), ..Setup::new(&server.url(), "kills") };
    let sink = Sink::open(&setup.sink).expect("a sink");
    let mut history = History::open(&setup.sink).expect("a history");
    let mq = Millstream::connect(&setup.url).await.expect("connected");
    let queue = DelayQueue::<Job>::new("kills").shards(SHARDS).open(mq.backend()).await.expect("opened");
    let base_ms = plan.base_ms();
    let jobs: Vec<Job> = (0..plan.tasks).map(|number| plan.job(number, base_ms)).collect();
    let records = jobs.iter().map(|job| TaskRecord::new(job).at(Timestamp::from_millis(job.due_ms)));
    queue.schedule_all(records).await.into_iter().for_each(|one| drop(one.expect("scheduled")));

    let mut processes = BTreeMap::new();
    let fill = |processes: &mut BTreeMap<u32, Process>| {
        while processes.len() < plan.instances {
            let process = Process::start(bin, &setup);
            processes.insert(process.pid(), process);
        }
    };
    fill(&mut processes);
    Plan::until_due(base_ms).await;
    let (mut open, mut killed) = (0, BTreeSet::new());
    for kill in 0..plan.kills {
        tokio::time::sleep(plan.pause(kill, base_ms)).await;
        let pids: Vec<u32> = processes.keys().copied().collect();
        let victim = pids[fastrand::usize(0..pids.len())];
        let at_us = now_us();
        processes.remove(&victim).expect("it runs").kill();
        sink.line(&Line { at_us, pid: victim, what: What::Killed });
        open += claims_of(&server, SHARDS, victim);
        killed.insert(victim);
        fill(&mut processes);
    }
    let began = Instant::now();
    let mut done = BTreeSet::new();
    let healthy = plan.tasks - plan.hopeless().len() as u64;
    let all_done = async || {
        done.extend(history.read().iter().filter_map(|line| match &line.what {
            What::Done(it) => Some(it.number),
            _ => None,
        }));
        done.len() as u64 == healthy
    };
    eventually(all_done, "everything is done").await;
    let at_rest = async || {
        let counts = queue.count().await.expect("counts");
        counts.waiting.total + counts.claimed == 0
    };
    eventually(at_rest, "nothing is left to do").await;
    let after = began.elapsed();
    for process in processes.values() {
        process.terminate();
    }
    for process in processes.values_mut() {
        assert!(process.ended().await, "worker {} ends well", process.pid());
    }
    history.read();

    let dead = queue.dead().list(usize::MAX).await.expect("listed");
    let dead: Vec<u64> = dead.iter().map(|task| queue.dead().payload(task).expect("a job").number).collect();
    check_dead(plan, &dead);
    let (mut doubled, mut after_loss) = (0, 0);
    let told_of_loss: HashSet<u32> =
        history.lines.iter().filter(|line| told_loss(&line.what)).map(|line| line.pid).collect();
    for ((number, attempt), starts) in check_started(plan, &history.lines) {
        for (pid, _) in &starts[..starts.len() - 1] {
            if killed.contains(pid) {
                doubled += 1;
            } else {
                assert!(
                    told_of_loss.contains(pid),
                    "{number} (attempt {attempt}) was doubled without a cause: {starts:?}"
                );
                after_loss += 1;
            }
        }
    }
    assert!(doubled <= open, "{doubled} doubled, {open} claims open at kills");
    format!(
        "{} tasks, {} workers, {} kills over {:.0?}: 0 lost, 0 early, {} dead as planned, {doubled} started twice of {open} \
         claims open at kills, {after_loss} after a lost claim; at rest {after:.1?} after the last kill",
        plan.tasks,
        plan.instances,
        plan.kills,
        plan.over,
        dead.len()
    )
}

fn told_loss(what: &What) -> bool {
    match what {
        What::ClaimsLost(..) => true,
        What::Settled(_, _, stale) => *stale > 0,
        _ => false,
    }
}

/// The index of the token in the state of a task: see docs/protocol.md#tasks.
const TOKEN: usize = 5;

/// Returns the number of claims that a process holds: their tokens begin with its label.
fn claims_of(server: &Server, shards: u32, pid: u32) -> usize {
    let (keys, queue) = (Keys::new(), QueueName::new("kills").expect("a name"));
    let theirs = format!("{}-", label(pid));
    (0..shards)
        .map(|shard| {
            let shard = Shard::new(queue.clone(), shard);
            let claims = server.cli(&["ZRANGE", keys.claims(&shard).as_str(), "0", "-1"]);
            let claims: HashSet<&str> = claims.lines().collect();
            let states = server.cli(&["HGETALL", keys.task_states(&shard).as_str()]);
            // An id, followed by its state: one line, or several with a history, whose lines begin with a number.
            let mut id = "";
            let mut count = 0;
            for line in states.lines() {
                if claims.contains(line) {
                    id = line;
                } else if !id.is_empty() {
                    count +=
                        usize::from(line.split(' ').nth(TOKEN).is_some_and(|it| it.starts_with(&theirs)));
                    id = "";
                }
            }
            count
        })
        .sum()
}

/// Kills members of a group of a topic whose messages are all delayed. Returns a summary.
///
/// # Panics
/// If a check fails.
pub async fn of_topic(bin: &'static str, plan: &Plan) -> String {
    const PARTITIONS: u32 = 8;
    let server = Server::start();
    let setup = member::Setup {
        ttl_ms: 200,
        prefetch: 16,
        attempts: 3,
        crash_limit: 1_000,
        ..member::Setup::new(&server.url(), "kills", PARTITIONS)
    };
    let mut scene = Fixture::new(bin, setup).await;
    let base_ms = plan.base_ms();
    let jobs: Vec<Job> = (0..plan.tasks).map(|number| plan.job(number, base_ms)).collect();
    let records = jobs
        .iter()
        .map(|job| Record::new(job).key(format!("k{}", job.number)).at(Timestamp::from_millis(job.due_ms)));
    let sent = scene.producer.send_all_delayed(records).await;
    sent.into_iter().for_each(|sent| drop(sent.expect("sent")));
    while scene.processes.len() < plan.instances {
        scene.start();
    }
    Plan::until_due(base_ms).await;
    let mut in_flight = 0;
    for kill in 0..plan.kills {
        tokio::time::sleep(plan.pause(kill, base_ms)).await;
        scene.read();
        let pids = scene.pids();
        let victim = pids[fastrand::usize(0..pids.len())];
        let theirs = scene.terms.of_process(victim);
        scene.kill(victim);
        let stats = scene.mq.stats(&scene.topic, GROUP).await.expect("stats");
        let of_victim = stats.iter().filter(|stats| theirs.contains(&stats.partition.0));
        in_flight += of_victim.map(|stats| stats.pending).sum::<u64>();
        scene.start();
    }
    let began = Instant::now();
    let healthy = plan.tasks - plan.hopeless().len() as u64;
    scene.until("everything is done", |scene| scene.done.len() as u64 == healthy).await;
    scene.at_rest().await;
    let after = began.elapsed();
    scene.end().await;

    let letters = scene.mq.dead_letters(&scene.topic, GROUP).await.expect("dead letters");
    let letters = letters.list(usize::MAX).await.expect("listed");
    let number = |envelope: millstream::Envelope| {
        serde_json::from_slice::<Job>(&envelope.payload).expect("a job").number
    };
    let dead: Vec<u64> = letters
        .iter()
        .map(|letter| number(letter.envelope(&Limits::default()).expect("a message")))
        .collect();
    check_dead(plan, &dead);
    // Each message was appended to the log once, whichever process was killed during it.
    let keys = Keys::within(&millstream::Namespace::new(&scene.setup.namespace).expect("a name"));
    let topic = scene.topic.spec().expect("a topic").name;
    let moved: u64 = (0..PARTITIONS)
        .map(|partition| {
            let log = keys.log(&TopicPartition::new(topic.clone(), partition));
            let info = server.cli(&["XINFO", "STREAM", log.as_str()]);
            let mut lines = info.lines();
            lines.find(|line| *line == "entries-added").expect("it is told");
            lines.next().expect("a number").parse::<u64>().expect("a number")
        })
        .sum();
    assert_eq!(moved, plan.tasks, "each was moved once");
    let (mut doubled, mut after_loss) = (0, 0);
    for ((number, attempt), starts) in check_started(plan, &scene.history.lines) {
        for (_, it) in &starts[..starts.len() - 1] {
            match scene.terms.0[&(it.partition, it.epoch)].end.map(|(_, how)| how) {
                Some(How::Killed) => doubled += 1,
                Some(How::Lost) => after_loss += 1,
                _ => panic!("{number} (attempt {attempt}) was doubled without a kill: {starts:?}"),
            }
        }
    }
    assert!(doubled <= in_flight, "{doubled} doubled, {in_flight} in flight at kills");
    format!(
        "{} delayed messages, {} instances, {} kills over {:.0?}: 0 lost, 0 early, each moved once, {} dead as planned, \
         {doubled} started twice of {in_flight} in flight at kills, {after_loss} after a lost lease; at rest {after:.1?} \
         after the last kill",
        plan.tasks,
        plan.instances,
        plan.kills,
        plan.over,
        dead.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { instances: 1, kills: 0, tasks: 510, over: Duration::from_secs(1) };

    fn line(what: What) -> Line {
        Line { at_us: 1, pid: 1, what }
    }

    fn handling(number: u64, attempt: u32) -> Handling {
        Handling { number, partition: 0, attempt, deliveries: 1, epoch: 0 }
    }

    /// Returns the lines of a run without a fault.
    fn clean() -> Vec<Line> {
        let retried = (3..PLAN.tasks).step_by(10).map(|number| handling(number, 2));
        (0..PLAN.tasks)
            .map(|number| handling(number, 1))
            .chain(retried)
            .map(|it| line(What::Started(it)))
            .collect()
    }

    #[test]
    fn a_clean_run_passes() {
        assert_eq!(check_started(&PLAN, &clean()).len(), 510 + 51);
        check_dead(&PLAN, &[499]);
    }

    #[test]
    #[should_panic(expected = "early")]
    fn an_early_one_is_found() {
        let mut lines = clean();
        lines.push(line(What::Early(7, 1)));
        check_started(&PLAN, &lines);
    }

    #[test]
    #[should_panic(expected = "every task was started")]
    fn a_lost_one_is_found() {
        check_started(&PLAN, &clean()[1..]);
    }

    #[test]
    #[should_panic(expected = "503 failed once")]
    fn a_lost_retry_is_found() {
        let mut lines = clean();
        lines.pop();
        check_started(&PLAN, &lines);
    }

    #[test]
    #[should_panic(expected = "each is dead once")]
    fn one_that_is_dead_twice_is_found() {
        check_dead(&PLAN, &[499, 499]);
    }
}
