//! The log role: append, fetch, settle, hold, seek, trim.

mod deduplicating;
mod durability;
mod fencing;
mod histories;
mod holding;
mod measuring;
pub(super) mod packs;
mod reading;
pub(super) mod results;
mod retaining;
mod seeking;
mod settling;
mod trimming;
mod unique;
mod waiting;

use super::suite;
use crate::case::Case;

pub(super) fn cases() -> Vec<Case> {
    [
        reading::cases(),
        waiting::cases(),
        settling::cases(),
        holding::cases(),
        histories::cases(),
        fencing::cases(),
        seeking::cases(),
        trimming::cases(),
        retaining::cases(),
        measuring::cases(),
        durability::cases(),
        deduplicating::cases(),
        deduplicating::numbers::cases(),
        unique::cases(),
        results::cases(),
        results::progress::cases(),
    ]
    .concat()
}
