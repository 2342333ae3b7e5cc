//! Counts of dead letters. They are made in the background, and pages show how far they are.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use millstream::admin::{Failed, FailedId, ShelfFilter, ShelfQuery, ShelfWalk};
use millstream::crates::core::error_groups::ErrorGroups;
use millstream::{DeadLetterQueue, Error, GroupName, MessageId, Partition, Timestamp, TopicName};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::budget::Budget;
use super::cached;

/// Time that a page waits for the end of a count. After it the count takes half of the time at most.
const WAIT: Duration = Duration::from_millis(40);
/// Number of letters of one step.
const STEP: usize = 1_000;
/// Shortest time for which a count that has ended is used.
const SHORTEST: Duration = Duration::from_secs(2);
/// Time after which a count that no page asks for stops. Tabs ask every 2.5 s. The next page that asks continues it.
const UNASKED: Duration = Duration::from_secs(10);
/// Maximum number of steps at the same time, of all counts.
const AT_ONCE: usize = 2;
/// Maximum number of counts that are kept.
const KEPT: usize = 200;
/// Number of commands that the list of letters costs before it is read.
const OPENING: u64 = 2;
/// Number of commands of a page of a partition: the first one finds out how large letters are.
const OF_PAGE: u64 = 2;
/// Maximum number of errors that are counted apart.
const GROUPS: usize = 500;
/// Number of letters that are shown beside a count.
pub(crate) const SAMPLE: usize = 10;

/// Dead letters that match a filter, counted from the newest to the oldest.
#[derive(Clone, Debug)]
pub(crate) struct LetterCount {
    /// Time of the beginning: letters that died later are not counted.
    pub(crate) at: Timestamp,
    /// Whether all letters were examined. Otherwise the numbers are lower bounds.
    pub(crate) is_complete: bool,
    /// Number of letters examined.
    pub(crate) looked_at: u64,
    /// Number of letters that match.
    pub(crate) matched: u64,
    pub(crate) errors: ErrorGroups<FailedId>,
    /// Newest matching letter of each partition.
    pub(crate) up_to: BTreeMap<Partition, MessageId>,
    /// Those counted last: the oldest ones, once the count is complete.
    pub(crate) last: VecDeque<Failed>,
}

impl LetterCount {
    fn new() -> Self {
        Self {
            at: Timestamp::from(SystemTime::now()),
            is_complete: false,
            looked_at: 0,
            matched: 0,
            errors: ErrorGroups::new(GROUPS),
            up_to: BTreeMap::new(),
            last: VecDeque::new(),
        }
    }

    fn add(&mut self, letter: Failed) {
        let facts = letter.facts();
        self.matched += 1;
        self.errors.add(facts.error, facts.at, facts.named());
        self.up_to.entry(facts.partition).or_insert(facts.id);
        if self.last.len() == SAMPLE {
            self.last.pop_front();
        }
        self.last.push_back(letter);
    }
}

/// How far a count is.
#[derive(Clone, Debug)]
struct State {
    count: Arc<LetterCount>,
    /// When it ended, or failed, and for how long that is used.
    ended: Option<(Instant, Duration)>,
    failed: Option<Error>,
}

impl State {
    fn is_fresh(&self) -> bool {
        self.ended.is_some_and(|(at, age)| at.elapsed() < age)
    }
}

/// A count.
struct Counting {
    topic: TopicName,
    state: watch::Sender<State>,
    /// Locked by the task that counts.
    walk: Arc<tokio::sync::Mutex<ShelfWalk>>,
    /// When a page asked for it for the last time; `None` if no page will.
    asked: Mutex<Option<Instant>>,
    /// The count before it, which is shown until this one is complete.
    before: Option<Arc<LetterCount>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Counting {
    fn new(queue: &DeadLetterQueue, filter: &ShelfFilter, before: Option<Arc<LetterCount>>) -> Self {
        let (filter, limit) = (filter.clone(), usize::MAX);
        let all = ShelfQuery { filter, limit, newest_first: true, ..ShelfQuery::default() };
        let count = Arc::new(LetterCount::new());
        Self {
            topic: queue.topic().name.clone(),
            state: watch::Sender::new(State { count, ended: None, failed: None }),
            walk: Arc::new(tokio::sync::Mutex::new(queue.walk_from(&all))),
            asked: Mutex::new(Some(Instant::now())),
            before,
        }
    }

    /// Returns its result, if that may still be used.
    fn fresh(&self) -> Option<Result<Arc<LetterCount>, Error>> {
        let state = self.state.borrow();
        let result = || state.failed.clone().map_or_else(|| Ok(state.count.clone()), Err);
        state.is_fresh().then(result)
    }

    /// Returns the complete count that is shown while the next one is made.
    fn complete(&self) -> Option<Arc<LetterCount>> {
        let now = self.state.borrow().count.clone();
        if now.is_complete { Some(now) } else { self.before.clone() }
    }

    /// Counts until everything is counted, nobody asks any more, or an error. Afterwards it can be called again.
    async fn run(&self, steps: &Semaphore, budget: &Budget) {
        // Another task counts.
        let Ok(mut walk) = self.walk.try_lock() else { return };
        let (began, mut busy) = (Instant::now(), Duration::ZERO);
        let mut paid = if walk.requests() == 0 { 0 } else { OPENING + walk.requests() * OF_PAGE };
        while lock(&self.asked).is_some_and(|at| at.elapsed() < UNASKED) {
            let Ok(permit) = steps.acquire().await else { return };
            let step = Instant::now();
            let found = walk.run_once(STEP).await;
            drop(permit);
            let took = step.elapsed();
            busy += took;
            let commands = OPENING + walk.requests() * OF_PAGE;
            let due = budget.charge(&self.topic, commands - paid);
            paid = commands;
            let is_done = walk.is_done();
            let is_over = is_done || found.is_err();
            self.state.send_modify(|state| {
                let count = Arc::make_mut(&mut state.count);
                count.looked_at = walk.looked_at();
                count.is_complete = is_done;
                match found {
                    Ok(letters) => {
                        letters.into_iter().for_each(|letter| count.add(letter));
                        state.failed = None;
                    }
                    Err(error) => state.failed = Some(error),
                }
                let age = SHORTEST.max(due).max(cached::rest(busy));
                state.ended = is_over.then(|| (Instant::now(), if is_done { age } else { SHORTEST }));
            });
            if is_over {
                return;
            }
            if began.elapsed() > WAIT {
                tokio::time::sleep(took).await;
            }
        }
    }
}

/// A filter, as the parameters of a page have it.
pub(crate) type FilterKey = Vec<(&'static str, String)>;
type Key = (TopicName, GroupName, FilterKey);

/// Counts of all groups that somebody looks at.
pub(crate) struct LetterCounts {
    counts: Mutex<HashMap<Key, Arc<Counting>>>,
    /// Tasks that count: they end with the dashboard.
    tasks: Mutex<JoinSet<()>>,
    steps: Arc<Semaphore>,
    budget: Arc<Budget>,
}

impl LetterCounts {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            counts: Mutex::default(),
            tasks: Mutex::default(),
            steps: Arc::new(Semaphore::new(AT_ONCE)),
            budget,
        }
    }

    /// Returns a count: a complete one, unless it takes longer than a page may. All who ask for the same share it.
    ///
    /// # Errors
    /// Those of `ShelfWalk::run_once`, and of `open`.
    pub(crate) async fn get(
        &self,
        (topic, group, key): (&TopicName, &GroupName, FilterKey),
        filter: &ShelfFilter,
        open: impl AsyncFnOnce() -> Result<DeadLetterQueue, Error>,
    ) -> Result<Arc<LetterCount>, Error> {
        let key = (topic.clone(), group.clone(), key);
        let found = lock(&self.counts).get(&key).cloned();
        let is_over = |it: &Counting| it.state.borrow().count.is_complete;
        let counting = match found {
            Some(counting) if !is_over(&counting) || counting.fresh().is_some() => counting,
            _ => {
                let queue = open().await?;
                let mut counts = lock(&self.counts);
                // Somebody else may have begun it meanwhile.
                let found = counts.get(&key).cloned();
                match found {
                    Some(counting) if !is_over(&counting) => counting,
                    found => {
                        let before = found.and_then(|it| it.complete());
                        let counting = Arc::new(Counting::new(&queue, filter, before));
                        make_room(&mut counts);
                        counts.insert(key, counting.clone());
                        counting
                    }
                }
            }
        };
        *lock(&counting.asked) = Some(Instant::now());
        if let Some(result) = counting.fresh() {
            return result;
        }
        let mut state = counting.state.subscribe();
        let (running, steps, budget) = (counting.clone(), self.steps.clone(), self.budget.clone());
        {
            let mut tasks = lock(&self.tasks);
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move { running.run(&steps, &budget).await });
        }
        // The time is over if it is not complete: it is shown as it is then.
        let _ = timeout(WAIT, state.wait_for(State::is_fresh)).await;
        let so_far = || counting.complete().unwrap_or_else(|| counting.state.borrow().count.clone());
        counting.fresh().unwrap_or_else(|| Ok(so_far()))
    }

    /// Makes the next caller count the letters of a group again.
    pub(crate) fn expire(&self, topic: &TopicName, group: &GroupName) {
        lock(&self.counts).retain(|(of, in_group, _), counting| {
            let stays = of != topic || in_group != group;
            if !stays {
                *lock(&counting.asked) = None;
            }
            stays
        });
    }
}

/// Drops the counts that nobody has asked for, for the longest time.
fn make_room(counts: &mut HashMap<Key, Arc<Counting>>) {
    if counts.len() >= KEPT {
        let mut times: Vec<Option<Instant>> = counts.values().map(|it| *lock(&it.asked)).collect();
        times.sort_unstable();
        let until = times[KEPT / 4];
        counts.retain(|_, it| *lock(&it.asked) > until);
    }
}
