//! One process: a consumer behind a connection of its own, that can die, stop, or leave.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::{GroupName, Topic};
use millstream_testkit::chaos::Client;
use millstream_testkit::history::{Event, History};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::scenario::Scenario;
use super::worker::Worker;

/// How long a supervisor waits before it starts again what ended.
const RESTART: Duration = Duration::from_millis(300);

/// What all processes have.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) topic: Topic<u64>,
    pub(crate) history: History,
    /// Receives the names of processes that were killed by a message.
    pub(crate) deaths: mpsc::UnboundedSender<String>,
}

/// A process.
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) member: String,
    pub(crate) group: usize,
    pub(crate) client: Client,
    leave: CancellationToken,
    task: JoinHandle<bool>,
}

pub(crate) fn group(number: usize) -> GroupName {
    GroupName::new(format!("g{number}")).expect("a valid name")
}

impl Instance {
    /// Starts a process. `member` is its name in the group, which it may have from one before it.
    pub(crate) fn start(site: &Site, name: String, member: String, group: usize, client: Client) -> Self {
        let leave = CancellationToken::new();
        let task = tokio::spawn(live(
            site.clone(),
            name.clone(),
            member.clone(),
            group,
            client.clone(),
            leave.clone(),
        ));
        Self { name, member, group, client, leave, task }
    }

    /// Asks it to leave in good order.
    pub(crate) fn leave(&self) {
        self.leave.cancel();
    }

    /// Waits until it has left; `false` if it does not within `time_limit`.
    pub(crate) async fn has_left(self, time_limit: Duration) -> bool {
        matches!(timeout(time_limit, self.task).await, Ok(Ok(true)))
    }
}

/// The main function of a process. True if it came to its end.
async fn live(
    site: Site,
    name: String,
    member: String,
    group: usize,
    client: Client,
    leave: CancellationToken,
) -> bool {
    loop {
        let worker = tokio::select! {
            biased;
            () = client.killed() => return false,
            () = leave.cancelled() => return true,
            started = start(&site, &name, &member, group, &client) => started,
        };
        let leaves = tokio::select! {
            biased;
            // What is left of it is dropped: its calls do not come back, and its handlers do not go on.
            () = client.killed() => return false,
            () = leave.cancelled() => true,
            () = worker.work() => false,
        };
        tokio::select! {
            biased;
            () = client.killed() => return false,
            () = worker.shutdown() => {}
        }
        if leaves {
            site.history.record(Event::Fault(format!("{name} has left")));
            return true;
        }
        site.history.record(Event::Leaving(name.clone()));
        site.history.record(Event::Fault(format!("{name} ended by itself and is started again")));
        sleep(RESTART).await;
    }
}

/// Starts a consumer. This needs the server, so it is tried again.
async fn start(site: &Site, name: &str, member: &str, group: usize, client: &Client) -> Worker {
    loop {
        match Worker::start(site, name, member, group, client).await {
            Ok(worker) => return worker,
            Err(error) => assert!(error.is_transient(), "{name} could not start: {error:?}"),
        }
        sleep(RESTART).await;
    }
}
