//! A lock as it is shown.

use std::time::Duration;

use millstream::admin::LockState;
use schemars::JsonSchema;
use serde::Serialize;

use crate::human::ms;
use crate::{human, output};

/// State of a lock.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct LockView {
    pub(super) lock: String,
    /// `null` if nobody holds it.
    pub(super) holder: Option<String>,
    /// The fence, or epoch, of the grant.
    pub(super) fence: Option<u64>,
    /// The time until the lock ends unless it is renewed; 0 if it was not renewed in time and nobody has taken it over.
    pub(super) expires_in_ms: Option<u64>,
    pub(super) ttl_ms: Option<u64>,
    /// The number of clients that wait for it.
    pub(super) waiting: u64,
    /// The time since the arrival of the first of them.
    pub(super) first_waits_ms: Option<u64>,
}

impl LockView {
    pub(super) fn of(state: &LockState) -> Self {
        let holder = state.holder.as_ref();
        Self {
            lock: state.name.to_string(),
            holder: holder.map(|it| it.owner.clone()),
            fence: holder.map(|it| it.epoch),
            expires_in_ms: holder.map(|it| ms(it.expires_in)),
            ttl_ms: holder.map(|_| ms(state.ttl)),
            waiting: state.waiting,
            first_waits_ms: state.first_waits.map(ms),
        }
    }

    pub(super) fn table(locks: &[Self]) -> String {
        let rows = locks.iter().map(|lock| {
            [
                lock.lock.clone(),
                human::or_none(lock.holder.as_deref(), str::to_owned),
                human::or_none(lock.fence, |fence| fence.to_string()),
                human::or_none(lock.expires_in_ms, time),
                human::count(lock.waiting),
                human::or_none(lock.first_waits_ms, time),
            ]
        });
        output::table(&["lock", "holder", ">fence", ">ends in", ">waiting", ">longest"], rows)
    }

    /// Formats it with these names for the lock, its holder, its fence, and the clients that wait.
    pub(super) fn text(&self, lock: &str, holder: &str, fence: &str, waiting: &str) -> String {
        let longest = self.first_waits_ms.map(|ms| format!(", the first for {}", time(ms)));
        output::list([
            (lock, self.lock.clone()),
            (holder, human::or_none(self.holder.as_deref(), str::to_owned)),
            (fence, human::or_none(self.fence, |fence| fence.to_string())),
            ("ends in", human::or_none(self.expires_in_ms, time)),
            ("ttl", human::or_none(self.ttl_ms, time)),
            (waiting, human::count(self.waiting) + &longest.unwrap_or_default()),
        ])
    }
}

fn time(ms: u64) -> String {
    human::duration(Duration::from_millis(ms))
}
