//! Dead letters of a group by their errors, newest first, as far as one page may read.

use std::time::Duration;

use millstream::admin::DeadLetterFilter;
use millstream::crates::core::error_groups::{ErrorGroup, ErrorGroups};
use millstream::{DeadLetterQueue, Error, MessageId, Partition};
use tokio::time::Instant;

/// Maximum number of letters that are read for a page.
const LOOKS: u64 = 20_000;
/// Time after which no further letters are read.
const BUDGET: Duration = Duration::from_secs(2);
/// Number of letters of one step.
const STEP: u64 = 1_000;
/// Number of commands that the list of letters costs before it is read.
const OPENING: u64 = 2;
/// Number of commands of a page of a partition: the first one finds out how large letters are.
const OF_PAGE: u64 = 2;
/// Maximum number of errors that are counted apart.
const GROUPS: usize = 500;

/// The errors of the newest dead letters.
#[derive(Debug)]
pub(crate) struct Errors {
    pub(crate) groups: Vec<ErrorGroup<(Partition, MessageId)>>,
    /// Number of letters whose errors are not counted apart.
    pub(crate) others: u64,
    pub(crate) looked_at: u64,
    /// Whether all letters were read.
    pub(crate) is_complete: bool,
    /// Number of commands that reading them took, at least.
    pub(crate) commands: u64,
}

impl Errors {
    /// Reads the newest letters.
    ///
    /// # Errors
    /// Those of `DeadLetterWalk::run_once`.
    pub(crate) async fn read(queue: &DeadLetterQueue) -> Result<Self, Error> {
        let (began, mut groups) = (Instant::now(), ErrorGroups::new(GROUPS));
        // One letter more than are read: the walk is done only if there are no further ones.
        let mut walk = queue.walk_newest_first(&DeadLetterFilter::default(), Some(LOOKS + 1));
        while !walk.is_done() && walk.looked_at() < LOOKS && began.elapsed() < BUDGET {
            let step = (LOOKS - walk.looked_at()).min(STEP) as usize;
            for letter in walk.run_once(step).await? {
                let example = (letter.topic_partition.partition, letter.id);
                groups.add(&letter.error, letter.id.timestamp(), example);
            }
        }
        let (others, looked_at, is_complete) = (groups.others(), walk.looked_at(), walk.is_done());
        let commands = OPENING + walk.requests() * OF_PAGE;
        Ok(Self { groups: groups.into_groups(), others, looked_at, is_complete, commands })
    }
}
