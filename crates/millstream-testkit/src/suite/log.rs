//! The log role: append, fetch, settle, trim.

mod fencing;
mod reading;
mod settling;
mod trimming;
mod waiting;

use super::suite;
use crate::case::Case;

pub(super) fn cases() -> Vec<Case> {
    [reading::cases(), waiting::cases(), settling::cases(), fencing::cases(), trimming::cases()].concat()
}
