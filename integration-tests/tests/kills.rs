//! A consumer process is killed with -9 in the middle of its handlers, again and again.
#![allow(missing_docs)]

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{Read, Seek, SeekFrom};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use integration_tests::server::Server;
use millstream::{Millstream, Record, Topic};

const MESSAGES: u64 = 20_000;
const KILLS: usize = 200;
const PARTITIONS: u32 = 8;
const KEYS: u64 = 97;

/// What the victims wrote, read as it grows.
struct Sink {
    file: std::fs::File,
    rest: String,
    started: Vec<(u64, String, u32, u32)>,
    done: HashSet<u64>,
}

impl Sink {
    fn read(&mut self) -> usize {
        let mut text = std::mem::take(&mut self.rest);
        self.file.read_to_string(&mut text).expect("the sink is readable");
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.rest = text[whole..].to_owned();
        for line in text[..whole].lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["S", number, key, attempt, pid] => self.started.push((
                    number.parse().expect("a number"),
                    key.to_owned(),
                    attempt.parse().expect("a number"),
                    pid.parse().expect("a number"),
                )),
                ["D", number, _] => {
                    self.done.insert(number.parse().expect("a number"));
                }
                _ => panic!("a torn line: {line:?}"),
            }
        }
        self.started.len()
    }
}

struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn two_hundred_kills_lose_nothing_and_double_only_what_was_in_flight() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sink");
    std::fs::write(&path, "").expect("an empty sink");
    let mut file = std::fs::File::open(&path).expect("the sink opens");
    file.seek(SeekFrom::Start(0)).expect("seekable");
    let mut sink = Sink { file, rest: String::new(), started: Vec::new(), done: HashSet::new() };

    let topic = Topic::<u64>::new("numbers").partitions(PARTITIONS);
    let mq = Millstream::at(server.url()).namespace("kills").await.expect("connected");
    let producer = mq.producer(topic.clone()).await.expect("a producer");
    let numbers: Vec<u64> = (0..MESSAGES).collect();
    let sent = producer.send_all(numbers.iter().map(|n| Record::new(n).key(format!("k{}", n % KEYS)))).await;
    assert!(sent.iter().all(Result::is_ok), "all are stored");

    let spawn = || {
        let child = Command::new(env!("CARGO_BIN_EXE_victim"))
            .args([&server.url(), "kills", "numbers", &PARTITIONS.to_string()])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Victim(child.expect("the victim starts"))
    };

    let started = Instant::now();
    let mut in_flight_at_kills = 0;
    let mut killed = HashSet::new();
    for kill in 0..KILLS {
        let mut victim = spawn();
        // Kills are spread so that the last ones still meet work: a share of what is left, at random.
        let left = MESSAGES.saturating_sub(sink.done.len() as u64) / (KILLS - kill) as u64;
        let until = sink.started.len() + 1 + random.usize(0..=(left.max(1) as usize));
        let deadline = Instant::now() + Duration::from_secs(20);
        while sink.read() < until && victim.0.try_wait().expect("waited").is_none() {
            assert!(
                Instant::now() < deadline,
                "kill {kill}: nothing is handled: {} started",
                sink.started.len()
            );
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        victim.0.kill().expect("killed");
        victim.0.wait().expect("ended");
        killed.insert(victim.0.id());
        let stats = mq.stats(&topic, "g").await.expect("stats");
        in_flight_at_kills += stats.iter().map(|partition| partition.pending).sum::<u64>();
    }
    let last = spawn();
    let letters = mq.dead_letters(&topic, "g").await.expect("dead letters");
    let hopeless: BTreeSet<u64> = (0..MESSAGES).filter(|n| n % 500 == 499).collect();
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        sink.read();
        let dead = letters.count().await.expect("counted");
        if sink.done.len() + hopeless.len() == MESSAGES as usize && dead == hopeless.len() as u64 {
            break;
        }
        assert!(Instant::now() < deadline, "{} done, {dead} dead of {MESSAGES}", sink.done.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = started.elapsed();
    // Nothing is left to be handled twice later.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let stats = mq.stats(&topic, "g").await.expect("stats");
        if stats.iter().all(|p| p.pending == 0 && p.retrying == 0 && p.lag == Some(0)) {
            break;
        }
        assert!(Instant::now() < deadline, "something is left: {stats:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(last);
    sink.read();

    // Every dead letter is one of the hopeless, once.
    let dead: Vec<u64> = letters
        .list(usize::MAX)
        .await
        .expect("listed")
        .iter()
        .map(|letter| {
            let envelope = letter.envelope(&millstream::Limits::default()).expect("a message");
            serde_json::from_slice(&envelope.payload).expect("a number")
        })
        .collect();
    assert_eq!(dead.len(), hopeless.len());
    assert_eq!(dead.into_iter().collect::<BTreeSet<_>>(), hopeless);

    // An attempt that was started twice was in flight at a kill: nobody but a killed process started it before.
    let mut starts: HashMap<(u64, u32), Vec<u32>> = HashMap::new();
    for (number, _, attempt, pid) in &sink.started {
        starts.entry((*number, *attempt)).or_default().push(*pid);
    }
    let mut doubled = 0;
    for ((number, attempt), pids) in &starts {
        for pid in &pids[..pids.len() - 1] {
            assert!(
                killed.contains(pid),
                "{number} (attempt {attempt}) was doubled without a kill: {pids:?}"
            );
            doubled += 1;
        }
        let distinct: HashSet<_> = pids.iter().collect();
        assert_eq!(distinct.len(), pids.len(), "{number} was started twice by one process");
    }
    assert!(doubled <= in_flight_at_kills, "{doubled} doubled, {in_flight_at_kills} in flight at kills");

    // First deliveries of a key come in the order they were sent.
    let mut last: HashMap<&str, u64> = HashMap::new();
    let mut seen = HashSet::new();
    for (number, key, attempt, _) in &sink.started {
        if *attempt == 1 && seen.insert(*number) {
            let before = last.insert(key, *number);
            assert!(before.is_none_or(|before| before < *number), "{key}: {number} after {before:?}");
        }
    }
    assert_eq!(seen.len() as u64, MESSAGES, "every message was handled");
    println!(
        "{MESSAGES} messages, {KILLS} kills in {took:.1?}: 0 lost, {doubled} handled twice, \
         {in_flight_at_kills} in flight at kills"
    );
}
