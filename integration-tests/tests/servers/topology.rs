//! Clusters, Sentinels, replicas, and the connections to them.

pub(crate) mod cluster;
pub(crate) mod cluster_sharing;
pub(crate) mod connections;
pub(crate) mod durability;
pub(crate) mod packets;
pub(crate) mod power;
pub(crate) mod sentinel;
