//! Dead letters one after the other, over all partitions: whatever is done with many of them begins here.

use std::fmt;

use millstream_core::inspect::{MAX_PAGE_BYTES, Page, Range};
use millstream_core::{Backend, DeadLetter, GroupName, Limits, MessageId, Result, TopicPartition};

use super::DeadLetterFilter;
use crate::cursor::Cursor;
use crate::merge::{Fetch, Merge};

/// The most letters that one step looks at.
const LOOKS: usize = 1_000;
/// About how many letters are fetched at once, over all partitions.
const AHEAD: usize = 500;

/// Goes through dead letters, oldest first (or newest), over all partitions.
pub struct DeadLetterWalk {
    merge: Merge<'static, DeadLetter>,
    filter: DeadLetterFilter,
    limits: Limits,
    left: u64,
    looked_at: u64,
    last: Option<Cursor>,
    done: bool,
}

/// Where a walk begins, and where it ends.
pub(super) struct Route {
    pub(super) newest_first: bool,
    /// Behind this one.
    pub(super) after: Option<Cursor>,
    /// The last id of each partition, of those that the filter names.
    pub(super) ends: Option<Vec<MessageId>>,
    /// The most letters.
    pub(super) limit: u64,
}

impl DeadLetterWalk {
    pub(super) fn new(
        backend: &Backend,
        lanes: Vec<TopicPartition>,
        group: &GroupName,
        filter: &DeadLetterFilter,
        route: Route,
    ) -> Self {
        let (backend, group) = (backend.clone(), group.clone());
        let Route { newest_first, after, ends, limit } = route;
        let whole = filter.range(newest_first);
        let count = lanes.len();
        let fetch: Fetch<'static, DeadLetter> = Box::new(move |lane, behind, portion| {
            let range = match (behind, after) {
                (Some(id), _) => whole.behind(id),
                (None, Some(cursor)) if newest_first => {
                    Range { before: whole.before.min(cursor.before(lane)), ..whole }
                }
                (None, Some(cursor)) => Range { after: whole.after.max(cursor.after(lane)), ..whole },
                (None, None) => whole,
            };
            let end = ends.as_ref().and_then(|ends| ends.get(lane)).map_or(MessageId::MAX, |end| end.next());
            let range = Range { before: range.before.min(end), ..range };
            let (role, tp, group) = (backend.dead_letters.clone(), lanes[lane].clone(), group.clone());
            Box::pin(async move {
                if range.is_empty() {
                    Ok(Page::empty())
                } else {
                    role.list(&tp, &group, range, portion).await
                }
            })
        });
        let ahead = usize::try_from(limit).unwrap_or(AHEAD).min(AHEAD);
        let merge = Merge::new(count, newest_first, ahead, |letter: &DeadLetter| letter.id, fetch);
        let (filter, limits) = (filter.clone(), Limits::default());
        Self { merge, filter, limits, left: limit, looked_at: 0, last: after, done: limit == 0 }
    }

    /// Up to `most` letters that fit the filter, of the next 1,000 and about 4 MiB: so also none, while there are more.
    ///
    /// # Errors
    /// Transient ones: asked again, it goes on where it was.
    pub async fn run_once(&mut self, most: usize) -> Result<Vec<DeadLetter>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        for _ in 0..LOOKS {
            if self.done || found.len() >= most || bytes >= MAX_PAGE_BYTES {
                break;
            }
            let (lane, letter) = match self.merge.next().await {
                Ok(Some(next)) => next,
                Ok(None) => {
                    self.done = true;
                    break;
                }
                // Those that were found are not lost for it; it comes again if it is still so.
                Err(_) if !found.is_empty() => break,
                Err(error) => return Err(error),
            };
            self.looked_at += 1;
            self.last = Some(Cursor { id: letter.id, lane });
            bytes += size(&letter);
            if self.filter.fits(&letter, &self.limits) {
                found.push(letter);
                self.left -= 1;
                self.done = self.left == 0;
            }
        }
        Ok(found)
    }

    /// Whether it has come to its end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// How many letters were looked at so far.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Where another walk would go on; `None` at the end.
    pub(super) fn next(&self) -> Option<Cursor> {
        self.last.filter(|_| self.merge.more())
    }
}

/// Bytes of the body.
pub(super) fn size(letter: &DeadLetter) -> usize {
    letter.body.iter().map(|(name, value)| name.len() + value.len()).sum()
}

impl fmt::Debug for DeadLetterWalk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterWalk")
            .field("filter", &self.filter)
            .field("looked_at", &self.looked_at)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}
