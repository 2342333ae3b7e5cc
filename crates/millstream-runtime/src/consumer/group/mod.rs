//! The group: its members, the assignment of partitions to them, and the leases of owned partitions.

pub(in crate::consumer) mod assignment;
pub(in crate::consumer) mod lease;
pub(in crate::consumer) mod lease_keeper;
pub(in crate::consumer) mod lease_table;
pub(in crate::consumer) mod membership;
pub(in crate::consumer) mod ownership;
pub(in crate::consumer) mod pending_acquires;
pub(in crate::consumer) mod restore;
