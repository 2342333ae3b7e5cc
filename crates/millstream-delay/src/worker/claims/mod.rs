//! State of claims: which tasks a worker holds until when, and since when the server has answered it.

pub(in crate::worker) mod answers;
pub(in crate::worker) mod held;
