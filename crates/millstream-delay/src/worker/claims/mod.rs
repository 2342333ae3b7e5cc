//! State of claims: which tasks a worker holds until when, how many of them wait for limits, and since when the server has answered it.

pub(in crate::worker) mod answers;
pub(in crate::worker) mod blocked;
pub(in crate::worker) mod cancelled;
pub(in crate::worker) mod held;
