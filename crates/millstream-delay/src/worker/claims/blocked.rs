//! Claimed tasks that wait for limits: they have no room of handlers, and too many of them keep the worker from claiming.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum size of the bodies of tasks that wait for limits: as a consumer has it for a partition.
const MAX_BYTES: usize = 64 << 20;

/// The tasks of a worker that wait for limits.
#[derive(Debug)]
pub(in crate::worker) struct Blocked {
    most: usize,
    load: Mutex<Load>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Load {
    tasks: usize,
    bytes: usize,
    /// Whether it was logged that there are too many: once, until half of them have gone on.
    warned: bool,
}

/// One of them. Dropping it lets the worker claim others.
#[derive(Debug)]
pub(in crate::worker) struct BlockedTask {
    blocked: Arc<Blocked>,
    bytes: usize,
}

impl Blocked {
    pub(in crate::worker) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, load: Mutex::default(), freed: Notify::new() })
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task with a body of this size. There may be more than the most: as many as there are rooms.
    pub(in crate::worker) fn add(self: &Arc<Self>, bytes: usize) -> BlockedTask {
        let mut load = self.load();
        load.tasks += 1;
        load.bytes += bytes;
        if !self.has_room_in(&load) && !std::mem::replace(&mut load.warned, true) {
            let (tasks, bytes) = (load.tasks, load.bytes);
            tracing::warn!(tasks, bytes, "too many tasks wait for limits: no more are claimed");
        }
        drop(load);
        BlockedTask { blocked: self.clone(), bytes }
    }

    /// Returns how many there are.
    pub(in crate::worker) fn len(&self) -> usize {
        self.load().tasks
    }

    /// Whether the worker may claim more.
    pub(in crate::worker) fn has_room(&self) -> bool {
        self.has_room_in(&self.load())
    }

    fn has_room_in(&self, load: &Load) -> bool {
        load.tasks < self.most && load.bytes < MAX_BYTES
    }

    /// Waits until the worker may claim more.
    pub(in crate::worker) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }
}

impl Drop for BlockedTask {
    fn drop(&mut self) {
        let mut load = self.blocked.load();
        load.tasks -= 1;
        load.bytes -= self.bytes;
        load.warned &= load.tasks > self.blocked.most / 2;
        drop(load);
        self.blocked.freed.notify_waiters();
    }
}
