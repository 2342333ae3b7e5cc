//! What runs for an assigned partition in this mode: its upkeep. Its messages are everybody's.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::super::board::Seek;
use super::super::context::Subscription;
use super::super::guard::Guard;
use super::super::upkeep::{self, Bells};

/// How often upkeep is triggered: messages are parked and settled by others, who cannot ring here.
const RING: Duration = Duration::from_millis(250);

/// Runs the upkeep of one partition until it is given back or its lease is lost.
pub(in crate::consumer) async fn run(context: &Arc<Subscription>, guard: &Arc<Guard>) {
    let Ok((topic_partition, _)) = guard.lease().partition() else { return };
    // So that it is seen as ours. Nothing of it is in flight here.
    let (_entry, mut seeks) =
        context.board.works_on(topic_partition, guard.lease().epoch, context.in_flight());
    let refuse = async {
        while let Some(Seek { answer, .. }) = seeks.recv().await {
            let why = "a consumer that shares its partitions cannot move alone: stop the group and seek it";
            // Who asked may have gone.
            let _ = answer.send(Err(Error::new(ErrorKind::Unsupported, why)));
        }
    };
    let bells = Bells::new(&context.upkeep);
    let done = CancellationToken::new();
    let ring = async {
        loop {
            sleep(RING).await;
            bells.parked();
            bells.settled();
        }
    };
    tokio::select! {
        biased;
        () = guard.revoked().cancelled() => {}
        () = upkeep::run(context, guard, &bells, &done) => {}
        () = ring => {}
        () = refuse => {}
    }
    // Others may have settled something since it was rung.
    bells.settled();
    upkeep::finish(context, guard, &bells).await;
}
