//! Dead letters of a group by their errors, newest first, as far as one page may read.

use std::time::Duration;

use millstream::admin::DeadLetterQuery;
use millstream::layers::core::error_groups::{ErrorGroup, ErrorGroups};
use millstream::{DeadLetterQueue, Error, MessageId, Partition};
use tokio::time::Instant;

/// Maximum number of letters that are read for a page.
const LOOKS: u64 = 20_000;
/// Time after which no further letters are read.
const BUDGET: Duration = Duration::from_secs(2);
/// Number of letters of one step.
const STEP: usize = 1_000;
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
    /// Those of `DeadLetterQueue::page`.
    pub(crate) async fn read(queue: &DeadLetterQueue, partitions: u32) -> Result<Self, Error> {
        let (began, mut groups) = (Instant::now(), ErrorGroups::new(GROUPS));
        let mut query = DeadLetterQuery {
            newest_first: true,
            limit: STEP,
            looks: STEP as u64,
            ..DeadLetterQuery::default()
        };
        let (mut looked_at, mut pages) = (0, 0);
        let is_complete = loop {
            let page = queue.page(&query).await?;
            (looked_at, pages) = (looked_at + page.looked_at, pages + 1);
            for letter in page.letters {
                let example = (letter.topic_partition.partition, letter.id);
                groups.add(&letter.error, letter.id.timestamp(), example);
            }
            query.after = page.next;
            if query.after.is_none() {
                break true;
            }
            if looked_at >= LOOKS || began.elapsed() >= BUDGET {
                break false;
            }
        };
        let others = groups.others();
        // A page asks each partition once.
        let commands = 2 + pages * u64::from(partitions);
        Ok(Self { groups: groups.into_groups(), others, looked_at, is_complete, commands })
    }
}
