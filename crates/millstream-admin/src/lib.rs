#![doc = include_str!("../README.md")]

mod admin;
mod batches;
mod reading;

mod faults;

mod dead_letters;
mod doctor;
mod groups;
pub mod human;
mod limits;
mod locks;
mod memory;
mod owners;
mod reset;
mod shelf;
mod stats;
mod steps;
#[cfg(test)]
mod tests;
mod topics;
mod verify;

pub use admin::Admin;
pub use batches::{BatchCancelled, MemberRanges, NumberRanges};
pub use dead_letters::{
    DeadLetterQueue, Edit, Imported, REPLAYED_FROM, REPLAYED_ORIGIN, REPLAYED_REASON, Refusal, Replay,
    ReplayTo, Replayed, Replayer, from_line, to_line,
};
pub use doctor::{Report, diagnose};
pub use faults::Level;
pub use groups::ExpiredGroup;
pub use limits::simulation::{Flow, FlowOutcome, Short, Simulation};
pub use memory::{Memory, ServerMemory, Size};
pub use owners::{OwnedPartition, Owners, Standing};
pub use reading::cursor::Cursor;
pub use reading::messages::{Browse, Filter, Message, Messages};
pub use reading::pending::{PartError, PendingEntry, PendingOrder, PendingPage, PendingQuery};
pub use reading::positions::parse_positions;
pub use reading::tail::Tail;
pub use reading::walk::MessageWalk;
pub use reset::SeekPreview;
pub use shelf::cancel::{Cancel, CancelEnd, CancelState};
pub use shelf::locate::{Locate, Located, LocatedIn, Locations};
pub use shelf::status::{Known, Status, WorkState, WorkStatus};
pub use shelf::{
    Facts, Failed, FailedId, Retry, Shelf, ShelfActing, ShelfAction, ShelfFilter, ShelfPage, ShelfQuery,
    ShelfWalk, Survey, Trimmed, WaitingRetries, WaitingRetry,
};
pub use stats::{CatchUp, GroupStats, RateMeter, Rates, TopicStats, TopicSurvey, Totals};
pub use steps::{WorkSteps, batch_of, step_word};
pub use topics::{Emptiness, InUse, LostPreview, PartitionTrimmed, TrimPreview};
#[cfg(feature = "packing")]
pub use topics::{PackedSize, Trained, Training};
pub use verify::{Repaired, Verdict, Verified, VerifyOptions, advice};
