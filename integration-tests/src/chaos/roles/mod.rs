//! The processes of a run. Each is the same binary with another [`Setup`]; it ends when its stdin is closed, and in good
//! order on SIGTERM.

mod locker;
mod owner;
mod producer;
mod store;
mod worker;

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use millstream::{Event, Observer};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};

pub use store::Client as StoreClient;

use super::record::{Place, What};
use super::setup::{Role, Setup};
use crate::history::Sink;

/// Pause between two statements of the tasks at work.
const TASKS: Duration = Duration::from_secs(2);

/// Does the work of a process until it is told to end.
///
/// # Errors
/// Those that nothing can be done about, such as settings that cannot be read.
pub fn run(setup: &str) -> Result<()> {
    let setup: Setup = serde_json::from_str(setup)?;
    let sink = Arc::new(Sink::open(&setup.history)?);
    sink.write(What::Runs { name: setup.name.clone(), role: setup.role.name().to_owned() });
    // The run holds the other end of stdin: when it ends, this process ends too.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    if setup.role == Role::Store {
        return store::run(&setup, &sink);
    }
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    threads.block_on(async {
        let terminate = signal(SignalKind::terminate())?;
        let ended = async {
            let mut terminate = terminate;
            terminate.recv().await;
        };
        let tasks = sink.clone();
        tokio::spawn(async move {
            loop {
                tasks.write(What::Tasks(Handle::current().metrics().num_alive_tasks() as u64));
                tokio::time::sleep(TASKS).await;
            }
        });
        match setup.role {
            Role::Store => {}
            Role::Producer(number) => producer::run(&setup, number, &sink, ended).await?,
            Role::Owner => owner::run(&setup, false, &sink, ended).await?,
            Role::Sharer => owner::run(&setup, true, &sink, ended).await?,
            Role::Worker => worker::run(&setup, &sink, ended).await?,
            Role::Locker => locker::run(&setup, &sink, ended).await?,
        }
        anyhow::Ok(())
    })?;
    sink.write(What::Gone { orderly: true });
    Ok(())
}

/// Records what happens to the leases of a place, what fails, and what must never happen.
fn observer(place: Place, sink: Arc<Sink>) -> impl Observer + 'static {
    move |event: &Event<'_>| {
        let place = || place.clone();
        match event {
            Event::Assigned { topic_partition, epoch, .. } => sink.write(What::Assigned {
                place: place(),
                partition: topic_partition.partition.0,
                epoch: *epoch,
            }),
            Event::Revoked { topic_partition, epoch, .. } => sink.write(What::Unassigned {
                place: place(),
                partition: topic_partition.partition.0,
                epoch: *epoch,
                lost: false,
            }),
            Event::LeaseLost { topic_partition, epoch, .. } => sink.write(What::Unassigned {
                place: place(),
                partition: topic_partition.partition.0,
                epoch: *epoch,
                lost: true,
            }),
            Event::Failing { operation, error, .. } => {
                sink.write(What::Failing(format!("{operation}: {error}")));
            }
            // No fault of a run explains these.
            Event::Panicked { code, text } => {
                sink.write(What::Disobeyed(format!("code of {} panicked: {text}", code.as_str())));
            }
            Event::MemberFenced { member, .. } => {
                sink.write(What::Disobeyed(format!("another process has its member id {member}")));
            }
            _ => {}
        }
    }
}

/// Tries until it works: a process may start while the servers are away.
async fn retried<T, E: std::fmt::Debug>(mut attempt: impl AsyncFnMut() -> Result<T, E>) -> T {
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
