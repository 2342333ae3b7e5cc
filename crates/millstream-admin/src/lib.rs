#![doc = include_str!("../README.md")]

mod admin;

mod cursor;
mod faults;
mod merge;

mod dead_letters;
mod doctor;
mod groups;
mod memory;
mod messages;
mod owners;
mod pending;
mod reset;
mod stats;
mod tail;
mod topics;
mod verify;

pub use admin::Admin;
pub use cursor::Cursor;
pub use dead_letters::{
    DeadLetterFilter, DeadLetterPage, DeadLetterQuery, DeadLetterQueue, DeadLetterWalk, Edit, Imported,
    REPLAYED_FROM, REPLAYED_ORIGIN, REPLAYED_REASON, Refusal, Replay, ReplayTo, Replayed, Replayer, Survey,
    from_line, to_line,
};
pub use doctor::{Level, Report, diagnose};
pub use groups::ExpiredGroup;
pub use memory::{Memory, Size};
pub use messages::{Browse, Filter, Message, Messages};
pub use owners::{OwnedPartition, Owners, Standing};
pub use pending::{PendingEntry, PendingOrder, PendingPage, PendingQuery};
pub use reset::SeekPreview;
pub use stats::{GroupStats, TopicStats, TopicSurvey, Totals};
pub use tail::Tail;
pub use topics::InUse;
pub use verify::{Repaired, Verdict, Verified, VerifyOptions, advice};
