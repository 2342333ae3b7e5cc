//! A scene of one mutant: its steps run in a process of their own, which may die of it, and twice: with the mutant and without it.
//! What they left on the server is then judged by this process, which has no mutant.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use integration_tests::chaos::mutants::{GAP, Mutant};
use integration_tests::proxy::Proxy;
use integration_tests::server::Server;
use millstream::{Millstream, Start, Topic};
use millstream_core::keys::Keys;
use millstream_core::leases::Acquired;
use millstream_core::log::{Append, Fetched, Receipt};
use millstream_core::{
    Backend, Continuity, Envelope, GroupName, Headers, Lease, MessageId, Reader, Resource, TopicPartition,
    TopicSpec, wire,
};

/// Environment variables of the process of the steps.
const URL: &str = "MILLSTREAM_SCENE_URL";
const ARMED: &str = "MILLSTREAM_SCENE_MUTANT";

/// Topic of the scenes.
pub(crate) const LINES: Topic<Bytes> = Topic::raw("lines").partitions(2);
/// Ttl of leases where nothing is to expire.
pub(crate) const TTL: Duration = Duration::from_secs(60);

/// A scene of one mutant.
pub(crate) struct Scene {
    /// The path of its test.
    pub(crate) test: &'static str,
    pub(crate) mutant: Mutant,
    /// Environment variables of its process.
    pub(crate) env: Vec<(&'static str, PathBuf)>,
}

impl Scene {
    pub(crate) fn new(test: &'static str, mutant: Mutant) -> Self {
        Self { test, mutant, env: vec![(GAP, "0".into())] }
    }

    /// Has the process die between two requests that should have been one.
    pub(crate) fn dying(mut self) -> Self {
        self.env = vec![(GAP, "die".into())];
        self
    }

    /// Runs `steps` with the mutant and without it. `judge` says whether the fault is there, by what is left on the server and by
    /// the text that `steps` returned; there is none if its process died. It has to be there with the mutant alone.
    pub(crate) fn run(
        &self,
        steps: impl AsyncFn(Stage) -> String,
        judge: impl AsyncFn(Stage, Option<String>) -> bool,
    ) {
        for (mutant, is_faulty) in [(Some(self.mutant), true), (None, false)] {
            let Some((said, judged)) = self.run_once(mutant, &steps, &judge) else { return };
            println!("{mutant:?}: {said:?}");
            assert_eq!(judged, is_faulty, "{mutant:?}: {said:?}");
        }
    }

    /// Runs `steps` once, and returns what it said and whether the fault is there. `None` in the process of the steps.
    pub(crate) fn run_once(
        &self,
        mutant: Option<Mutant>,
        steps: &impl AsyncFn(Stage) -> String,
        judge: &impl AsyncFn(Stage, Option<String>) -> bool,
    ) -> Option<(Option<String>, bool)> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        if let Ok(url) = env::var(URL) {
            let mutant = env::var(ARMED).ok().map(|name| name.parse().expect("a mutant"));
            let said = runtime.block_on(async { steps(Stage::open(&url, mutant).await).await });
            println!("\nsaid {said}");
            return None;
        }
        let server = Server::start();
        let link = Proxy::to(server.port());
        mutant.into_iter().for_each(|mutant| mutant.arm(&link));
        let said = self.child(&link.url(), mutant);
        let judged =
            runtime.block_on(async { judge(Stage::open(&server.url(), None).await, said.clone()).await });
        Some((said, judged))
    }

    /// Runs the steps in a process, and returns what they said. `None` if it killed itself.
    fn child(&self, url: &str, mutant: Option<Mutant>) -> Option<String> {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command
            .args(["--exact", &format!("mutants::{}", self.test), "--nocapture"])
            .env(URL, url)
            .env_remove(ARMED)
            .envs(self.env.clone());
        if let Some(mutant) = mutant {
            command.env(ARMED, mutant.name());
        }
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = text.lines().find_map(|line| line.strip_prefix("said ")).map(str::to_owned);
        let is_killed = output.status.signal() == Some(9);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_some() || is_killed, "{mutant:?}: {text}\n{errors}");
        said
    }
}

/// A backend, with the mutant if it is armed, and the names of what is on it.
pub(crate) struct Stage {
    pub(crate) url: String,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) backend: Backend,
    pub(crate) topic: TopicSpec,
    pub(crate) group: GroupName,
    /// The first partition.
    pub(crate) tp: TopicPartition,
    pub(crate) keys: Keys,
}

impl Stage {
    async fn open(url: &str, mutant: Option<Mutant>) -> Self {
        let backend = open(url, mutant).await;
        let topic = backend.catalog().create_topic(&LINES.spec().expect("valid")).await.expect("created");
        let group: GroupName = "a".parse().expect("a name");
        backend.catalog().create_group(&topic, &group, Start::Earliest).await.expect("created");
        let tp = TopicPartition::new(topic.name.clone(), 0);
        Self { url: url.to_owned(), mutant, backend, topic, group, tp, keys: Keys::new() }
    }

    /// Appends entries to the first partition.
    pub(crate) async fn append(&self, count: usize) -> Vec<MessageId> {
        let batch: Vec<_> = (0..count).map(|n| entry(&self.tp, &n.to_string())).collect();
        let results = self.backend.log().append(&batch).await.into_iter();
        results.map(|result| result.expect("stored").id).collect()
    }

    /// Acquires the first partition for a group.
    pub(crate) async fn lease(&self, group: &GroupName, owner: &str) -> Lease {
        let resource = Resource::partition(self.tp.clone(), group.clone());
        let (nonce, continuity) = (uuid::Uuid::new_v4().to_string(), Continuity::assured());
        match self.backend.leases().acquire(&resource, owner, &nonce, TTL, &continuity).await.expect("asked")
        {
            Acquired::Granted(lease) => lease,
            Acquired::Held(holder) => panic!("{holder:?} has it"),
        }
    }

    /// Reads what there is as the owner of a lease.
    pub(crate) async fn read(&self, lease: &Lease) -> Vec<Receipt> {
        let mut reader = self.backend.log().reader(lease).await.expect("a reader");
        receipts(&fetch(&mut *reader).await)
    }

    /// Returns (entries in the log, pending, parked or redelivered, dead) of the first partition and the group.
    pub(crate) async fn counts(&self) -> (u64, u64, u64, u64) {
        let stats = self.backend.catalog().stats(&self.topic, &self.group).await.expect("stats");
        (stats[0].length, stats[0].pending, stats[0].retrying, stats[0].dead)
    }
}

/// Opens the backend of a server as a process of a run does.
pub(crate) async fn open(url: &str, mutant: Option<Mutant>) -> Backend {
    let mq = Millstream::connect(url).await.expect("connected");
    let backend = mq.backend().clone();
    match mutant {
        Some(mutant) => mutant.wrap(backend),
        None => backend,
    }
}

/// Reads until there is something, for 5 s at most.
pub(crate) async fn fetch(reader: &mut dyn Reader) -> Fetched {
    reader.fetch(100, Duration::from_secs(5)).await.expect("read")
}

pub(crate) fn receipts(fetched: &Fetched) -> Vec<Receipt> {
    fetched.entries.iter().map(|entry| entry.receipt).collect()
}

pub(crate) fn entry(tp: &TopicPartition, text: &str) -> Append {
    let payload = Bytes::copy_from_slice(text.as_bytes());
    let envelope = Envelope { key: None, headers: Headers::new(), payload };
    Append::new(tp.clone(), wire::encode(&envelope))
}
