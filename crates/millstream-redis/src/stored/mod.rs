//! Stored forms beside the message itself: what a script reads or writes as one string.

pub(crate) mod item;
pub(crate) mod losses;
pub(crate) mod note;
pub(crate) mod ranges;
pub(crate) mod running;
pub(crate) mod settled;
pub(crate) mod task_state;
