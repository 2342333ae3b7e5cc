//! The group: who is a member, which partitions each member should own, and the leases of those that it owns.

pub(in crate::consumer) mod assignment;
pub(in crate::consumer) mod lease;
pub(in crate::consumer) mod lease_keeper;
pub(in crate::consumer) mod lease_table;
pub(in crate::consumer) mod membership;
pub(in crate::consumer) mod ownership;
pub(in crate::consumer) mod pending_acquires;
pub(in crate::consumer) mod restore;
