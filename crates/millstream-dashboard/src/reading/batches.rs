//! One batch, with the first of its members that are missing or dead.

use std::time::SystemTime;

use millstream::batch::{BatchState, MemberState};
use millstream::{BatchId, Error, Millstream, Timestamp};

/// Maximum number of ranges of each state.
pub(crate) const RANGES: usize = 20;
/// Maximum number of members that are read of each state. `Admin::batch_members` reads until it has enough ranges, and the
/// first range of a batch may have millions.
const MEMBERS: usize = 65_536;
/// Commands for the state of a batch, and for the members of one state.
const COMMANDS: (u64, u64) = (3, 4);

/// Numbers of members, from the first to the last of each range.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    pub(crate) ranges: Vec<(u32, u32)>,
    /// Whether there are further ones behind these.
    pub(crate) more: bool,
}

impl Ranges {
    fn of(numbers: &[u32], next: Option<u32>) -> Self {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for number in numbers {
            let is_full = ranges.len() == RANGES;
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *number => *last = *number,
                _ if is_full => return Self { ranges, more: true },
                _ => ranges.push((*number, *number)),
            }
        }
        Self { ranges, more: next.is_some() }
    }
}

/// A batch as it was read.
pub(crate) struct Batch {
    pub(crate) state: BatchState,
    pub(crate) missing: Ranges,
    pub(crate) dead: Ranges,
    pub(crate) at: Timestamp,
    /// Number of commands that it cost.
    pub(crate) commands: u64,
}

impl Batch {
    /// Reads a batch.
    ///
    /// # Errors
    /// Those of `Admin::batch`.
    pub(super) async fn read(mq: &Millstream, id: &BatchId) -> Result<Self, Error> {
        let state = mq.admin().batch(id).await?;
        let (role, at) = (mq.backend().batches()?, Timestamp::from(SystemTime::now()));
        let (mut missing, mut dead, mut commands) = (Ranges::default(), Ranges::default(), COMMANDS.0);
        for (of, count, ranges) in [
            (MemberState::Missing, state.missing(), &mut missing),
            (MemberState::Dead, state.dead, &mut dead),
        ] {
            // All members are looked through for one that may not be there.
            if count > 0 {
                let (numbers, next) = role.numbers(id, of, 0, MEMBERS).await?;
                *ranges = Ranges::of(&numbers, next);
                commands += COMMANDS.1;
            }
        }
        Ok(Self { state, missing, dead, at, commands })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ranges_and_it_says_whether_there_are_more() {
        let of = |numbers: &[u32], next| {
            let Ranges { ranges, more } = Ranges::of(numbers, next);
            (ranges, more)
        };
        assert_eq!(of(&[], None), (vec![], false));
        assert_eq!(of(&[0, 1, 2, 5, 7, 8], None), (vec![(0, 2), (5, 5), (7, 8)], false));
        assert_eq!(of(&[3, 4], Some(5)), (vec![(3, 4)], true));
        let odd: Vec<u32> = (0..21).map(|it| it * 2).collect();
        let (ranges, more) = of(&odd, None);
        assert_eq!((ranges.len(), ranges.last(), more), (20, Some(&(38, 38)), true));
        assert!(!of(&odd[..20], None).1, "20 are all");
        let mut long = odd[..20].to_vec();
        long.push(39);
        assert_eq!(of(&long, None).0.last(), Some(&(38, 39)), "the last one grows");
    }
}
