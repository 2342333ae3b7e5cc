//! One partition: its worker, and the worker's parts.

pub(in crate::consumer) mod dispatch;
pub(in crate::consumer) mod hooks;
pub(in crate::consumer) mod in_flight;
pub(in crate::consumer) mod leases;
pub(in crate::consumer) mod lifecycle;
pub(in crate::consumer) mod poison;
pub(in crate::consumer) mod rights;
pub(in crate::consumer) mod server_clock;
pub(in crate::consumer) mod settle;
pub(in crate::consumer) mod slot;
pub(in crate::consumer) mod source;
pub(in crate::consumer) mod upkeep;
pub(in crate::consumer) mod worker;
