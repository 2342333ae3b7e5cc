//! The settings of a process of a run, and the messages that the processes send each other.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use millstream::{
    Event, Millstream, Namespace, Observer, Packing, TlsConfig, Topic, TopicName, TopicPartition,
};
use millstream_core::keys::Keys;
use serde::{Deserialize, Serialize};

use super::mutants::Mutant;
use super::record::{Fate, Place};
use crate::history::now_us;

/// The namespace of all keys.
const NAMESPACE: &str = "chaos";
/// The name of the topic.
pub const ORDERS: &str = "orders";
/// The group whose consumers own partitions.
pub const OWNERS: &str = "owners";
/// The group whose consumers share partitions.
pub const SHARERS: &str = "sharers";
/// The name of the delay queue.
pub const TASKS: &str = "tasks";
/// Partitions of the topic.
pub const PARTITIONS: u32 = 8;
/// Shards of the delay queue.
pub const SHARDS: u32 = 4;
/// Maximum number of attempts of a message.
pub const ATTEMPTS: u32 = 3;
/// Handlers at once in a partition that is owned, each with a key of its own.
pub const PER_PARTITION: usize = 4;
/// Handlers at once in a process where no partition is owned.
pub const PER_PROCESS: usize = 16;
/// Pause before a failed message is tried again.
pub const BACK_OFF: Duration = Duration::from_millis(50);

/// The settings of a process; its only argument, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The name of the process, which stays when it is replaced.
    pub name: String,
    /// How many processes of this name there were before.
    pub life: u32,
    /// What it does.
    pub role: Role,
    /// The URL of the servers, by their links.
    pub url: String,
    /// The certificate of the authority that the servers' certificates are signed by, if they use TLS.
    pub ca: Option<PathBuf>,
    /// The file of the history.
    pub history: PathBuf,
    /// The socket of the store of effects.
    pub store: PathBuf,
    /// Ttl of leases, locks and claims, in milliseconds.
    pub ttl_ms: u64,
    /// Replicas of each primary.
    pub replicas: u32,
    /// The seed of the process.
    pub seed: u64,
    /// Whether handlers are slow, and messages few.
    pub slow: bool,
    /// Mean pause between two sends of a key, in milliseconds.
    pub pause_ms: u64,
    /// Whether no message is given up, as dead letters stay.
    pub steady: bool,
    /// Whether the topic is packed.
    pub packed: bool,
    /// The mistake that the process makes, if any.
    pub mutant: Option<Mutant>,
    /// The true time of day less [`now_us`], in microseconds: the process may have a wrong clock.
    pub true_us: i64,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// It keeps the effects of handlers, and the writes under locks.
    Store,
    /// It sends messages and tasks, with this number among the producers.
    Producer(u32),
    /// It handles messages, as the owner of partitions.
    Owner,
    /// It handles messages of partitions that it shares.
    Sharer,
    /// It handles tasks of the delay queue.
    Worker,
    /// It takes a lock again and again.
    Locker,
}

impl Role {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Producer(_) => "producer",
            Self::Owner => "owner",
            Self::Sharer => "sharer",
            Self::Worker => "worker",
            Self::Locker => "locker",
        }
    }
}

impl Setup {
    /// Connects to the servers.
    ///
    /// # Errors
    /// Those of the connection; it is not tried again.
    pub async fn connect(&self, observer: impl Observer + 'static) -> Result<Millstream> {
        let Some(mutant) = self.mutant else {
            return connect(&self.url, self.ca.as_deref(), observer).await;
        };
        let mq = connect(&self.url, self.ca.as_deref(), |_: &Event<'_>| {}).await?;
        Ok(Millstream::over(mutant.wrap(mq.backend().clone())).with_observer(observer))
    }

    /// Returns the true time of day in milliseconds since 1970.
    #[must_use]
    pub fn true_ms(&self) -> i64 {
        (now_us().cast_signed() + self.true_us) / 1_000
    }

    /// Returns the ttl.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

/// Connects to the servers.
///
/// # Errors
/// Those of the connection, and of reading the certificate.
pub async fn connect(
    url: &str,
    ca: Option<&std::path::Path>,
    observer: impl Observer + 'static,
) -> Result<Millstream> {
    let mut builder = Millstream::at(url).namespace(NAMESPACE).observer(observer);
    if let Some(ca) = ca {
        let pem = std::fs::read_to_string(ca).context("the certificate of the authority")?;
        builder = builder.tls(TlsConfig::new().with_ca(pem));
    }
    Ok(builder.await?)
}

/// Returns the topic.
#[must_use]
pub fn orders(packed: bool) -> Topic<Job> {
    let topic = Topic::<Job>::new(ORDERS).partitions(PARTITIONS);
    // Few messages travel together: each key waits for the one before.
    if packed { topic.packed(Packing::new().min_messages(2)) } else { topic }
}

/// Returns the names of all keys.
///
/// # Panics
/// Never.
#[must_use]
pub fn keys() -> Keys {
    Keys::within(&Namespace::new(NAMESPACE).expect("a name"))
}

/// Returns the place at which messages are handled.
#[must_use]
pub fn place_of(name: &str, group: &str) -> Place {
    Place { name: name.to_owned(), group: group.to_owned() }
}

/// Returns a partition of the topic.
///
/// # Panics
/// Never.
#[must_use]
pub fn partition(number: u32) -> TopicPartition {
    TopicPartition::new(TopicName::new(ORDERS).expect("a name"), number)
}

/// The body of a message or task: instructions for its handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The number of the message.
    pub number: u64,
    /// When it is due, in milliseconds since 1970 by the true clock; 0 if it is not delayed.
    pub due_ms: u64,
    /// How its handlers treat it.
    pub fate: Fate,
    /// How long a handler works, in milliseconds.
    pub work_ms: u64,
    /// Bytes that follow from the number, to be compared.
    pub filling: String,
}

impl Job {
    /// Creates the body of a message.
    #[must_use]
    pub fn new(number: u64, due_ms: u64, fate: Fate, work_ms: u64) -> Self {
        Self { number, due_ms, fate, work_ms, filling: filling(number) }
    }

    /// Returns whether this is the body that was sent.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.filling == filling(self.number)
    }
}

/// Text of 20 to about 1,000 bytes that follows from a number; of one message in 500, of 100 KB.
fn filling(number: u64) -> String {
    let mut random = fastrand::Rng::with_seed(number);
    let length = if random.u32(..500) == 0 { 100_000 } else { random.usize(20..1_000) };
    let word = format!("{:016x}", random.u64(..));
    word.chars().cycle().take(length).collect()
}
