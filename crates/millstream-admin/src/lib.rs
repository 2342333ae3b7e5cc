#![doc = include_str!("../README.md")]

mod admin;

mod cursor;
mod faults;
mod merge;

mod doctor;
mod groups;
mod memory;
mod messages;
mod owners;
mod pending;
mod stats;
mod topics;
mod verify;

pub use admin::Admin;
pub use cursor::Cursor;
pub use doctor::{Level, Report, diagnose};
pub use groups::ExpiredGroup;
pub use memory::{Memory, Size};
pub use messages::{Browse, Filter, Message, Messages, Tail};
pub use owners::{OwnedPartition, Owners, Standing};
pub use pending::{PendingEntry, PendingOrder, PendingPage, PendingQuery};
pub use stats::{GroupStats, TopicStats, Totals};
pub use topics::InUse;
pub use verify::{Repaired, Verdict, Verified, VerifyOptions, advice};
