//! Claims: taking tasks, keeping them while handlers run, and settling them.

pub(in crate::worker) mod claim;
pub(in crate::worker) mod heard;
pub(in crate::worker) mod held;
pub(in crate::worker) mod renew;
pub(in crate::worker) mod settle;
