//! Reads which tasks are cancelled from outside while this worker has them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::Shard;
use millstream_core::cancels::{CancelMark, WorkPlace};
use millstream_engine::Scope;

use crate::worker::context::Context;

/// Longest wait for a new mark. A backend may end it earlier: the one on Redis asks once an hour.
const WAIT: Duration = Duration::from_secs(24 * 3_600);
/// Pause after marks could not be read for a reason that does not pass by itself.
const REFUSED: Duration = Duration::from_secs(300);

/// Reads which tasks of a shard are cancelled, and tells their handlers. Never ends.
pub(in crate::worker) async fn watch(context: Arc<Context>, shard: Shard) {
    let Some(role) = context.cancels.role().cloned() else { return };
    let monitor = context.loops.monitor("cancels", Scope::Shard(shard.clone()));
    let place = WorkPlace::Shard(shard.clone());
    let (mut version, mut has_failed, mut is_read) = (0, false, false);
    loop {
        // Nothing begins before the first answer. After a failure one answer says that all is well again.
        let wait = if has_failed || !is_read { Duration::ZERO } else { WAIT };
        monitor.begin_round(wait);
        match role.marks(&place, version, wait).await {
            Ok(found) => {
                (has_failed, is_read) = (false, true);
                monitor.succeeded(&*context.observer);
                monitor.idle();
                let Some(found) = found else {
                    context.cancels.set_read(&shard);
                    continue;
                };
                version = found.version;
                context.cancels.set_batches(&shard, found.batches);
                context.cancels.set_read(&shard);
                let asked = found.marks.into_iter().filter(|it| it.mark == CancelMark::Asked);
                let asked: HashMap<_, _> = asked.map(|it| (it.id, it.claim)).collect();
                context.cancels.set(&shard, asked);
                // A claim that comes later looks at the marks before it begins.
                context.held.ask(shard.shard, |id, token, batch| {
                    context.cancels.has(&shard, id, token)
                        || context.cancels.has_batch(&shard, || batch.cloned())
                });
            }
            Err(error) => {
                has_failed = true;
                if !error.is_transient() {
                    // Then tasks are worked on all the same.
                    context.cancels.set_read(&shard);
                }
                let pause = monitor.failed(&error, &*context.observer);
                // Of a right that is missing, or a key that is somebody else's, once.
                tokio::time::sleep(if error.is_transient() { pause } else { REFUSED }).await;
            }
        }
    }
}
