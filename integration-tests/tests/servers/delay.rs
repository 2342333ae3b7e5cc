//! Delayed messages and tasks: precision, cost, races, kills and faults.

pub(crate) mod clock;
pub(crate) mod cost;
pub(crate) mod faults;
pub(crate) mod herd;
pub(crate) mod kills;
pub(crate) mod limits;
pub(crate) mod oom;
pub(crate) mod precision;
pub(crate) mod races;
