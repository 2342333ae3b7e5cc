//! What an operator sees and does.

pub(crate) mod admin;
pub(crate) mod alerts;
pub(crate) mod dictionaries;
pub(crate) mod lost_dictionaries;
pub(crate) mod metrics;
pub(crate) mod moved;
pub(crate) mod packed_letters;
pub(crate) mod replaying;
pub(crate) mod running;
pub(crate) mod told;
pub(crate) mod verify;
