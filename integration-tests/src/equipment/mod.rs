//! What servers of tests are given: small disks, and certificates.

pub mod certificates;
pub mod disk;
