//! Loops of a worker: claiming tasks, working on each, keeping the claims meanwhile, settling, and trimming dead tasks.

pub(in crate::worker) mod cancels;
pub(in crate::worker) mod claim;
pub(in crate::worker) mod filling;
pub(in crate::worker) mod limits;
pub(in crate::worker) mod renew;
pub(in crate::worker) mod settle;
pub(in crate::worker) mod trim;
pub(in crate::worker) mod work;
