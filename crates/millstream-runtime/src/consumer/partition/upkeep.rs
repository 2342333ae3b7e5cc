//! Upkeep of an assigned partition in shared mode. Its messages are handled by all members.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind};
use tokio::time::sleep;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::maintenance::{self, Triggers};
use crate::consumer::status::Seek;

/// How often upkeep is triggered: other members park and settle messages, and cannot send triggers to this process.
const TRIGGER_EVERY: Duration = Duration::from_millis(250);

/// Runs the upkeep of one partition until it is released or its lease is lost.
pub(in crate::consumer) async fn run(context: &Arc<Subscription>, guard: &Arc<LeaseGuard>) {
    // Lists the partition as ours in the status. Nothing of it is in flight here.
    let (_entry, mut seeks) =
        context.status.works_on(guard.topic_partition(), guard.lease().epoch, Arc::default());
    let refuse = async {
        while let Some(Seek { answer, .. }) = seeks.recv().await {
            let why = "a consumer that shares its partitions cannot move alone: stop the group and seek it";
            // The caller may have stopped waiting.
            let _ = answer.send(Err(Error::new(ErrorKind::Unsupported, why)));
        }
    };
    let triggers = Triggers::new(&context.upkeep);
    let trigger_all = async {
        loop {
            sleep(TRIGGER_EVERY).await;
            triggers.parked();
            triggers.settled();
        }
    };
    tokio::select! {
        biased;
        () = guard.revoked().cancelled() => {}
        () = maintenance::run(context, guard, &triggers) => {}
        () = trigger_all => {}
        () = refuse => {}
    }
    // Other members may have settled something since the last trigger.
    triggers.settled();
    maintenance::finish(context, guard, &triggers).await;
}
