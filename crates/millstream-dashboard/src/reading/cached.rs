//! Values that are read once for all who look at them, however many tabs are open.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream::Error;
use tokio::time::Instant;

/// Factor of the time that a read took for which its value is used: so reads take a tenth of the time at most.
const REST: u32 = 9;
/// Longest time for which a value is used.
const LONGEST: Duration = Duration::from_secs(60);
/// Maximum number of values that are kept, unless a cache says otherwise.
const KEPT: usize = 2_000;
/// Time after which a value that nobody asks for is dropped, if there are too many.
const UNUSED: Duration = Duration::from_secs(60);

/// Returns for how long at least a value is used that took this time to read.
pub(crate) fn rest(took: Duration) -> Duration {
    (took * REST).min(LONGEST)
}

/// A value, or why it could not be read, and when it was read.
#[derive(Clone, Debug)]
struct Read<V, E> {
    at: Instant,
    /// Time for which it is used.
    age: Duration,
    /// Whether it was changed since.
    stale: bool,
    value: Result<Arc<V>, E>,
    /// The last value that could be read.
    last: Option<Arc<V>>,
}

impl<V, E> Read<V, E> {
    fn is_fresh(&self) -> bool {
        !self.stale && self.at.elapsed() < self.age
    }
}

type Slot<V, E> = Arc<tokio::sync::Mutex<Option<Read<V, E>>>>;

/// Values by key. Only one caller reads a value at a time; the others wait for it.
#[derive(Debug)]
pub(crate) struct Cached<K, V, E = Error> {
    age: Duration,
    keeps_errors: bool,
    kept: usize,
    slots: Mutex<HashMap<K, Slot<V, E>>>,
}

impl<K: Clone + Eq + Hash, V, E: Clone> Cached<K, V, E> {
    /// Creates a cache whose values are used for this time, or longer if they take long to read.
    pub(crate) fn new(age: Duration) -> Self {
        Self { age, keeps_errors: true, kept: KEPT, slots: Mutex::default() }
    }

    /// Keeps so many values.
    pub(crate) fn keeping(self, kept: usize) -> Self {
        Self { kept, ..self }
    }

    /// Does not keep errors: what fails reads values that keep theirs.
    pub(crate) fn without_errors(self) -> Self {
        Self { keeps_errors: false, ..self }
    }

    /// Returns the value, which is read if it is too old.
    ///
    /// # Errors
    /// Those of `read`, also for callers that come within the time.
    pub(crate) async fn get(&self, key: &K, read: impl AsyncFnOnce() -> Result<V, E>) -> Result<Arc<V>, E> {
        self.get_paced(key, |_| Some(Duration::ZERO), read).await
    }

    /// Returns the value, which is read if it is too old. `pace` returns for how long at least a new one is used; `None` does
    /// not keep it.
    ///
    /// # Errors
    /// Those of `read`, also for callers that come within the time.
    pub(crate) async fn get_paced(
        &self,
        key: &K,
        pace: impl Fn(&V) -> Option<Duration>,
        read: impl AsyncFnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        let slot = self.slot(key);
        let mut slot = slot.lock().await;
        if let Some(fresh) = slot.as_ref().filter(|it| it.is_fresh()) {
            return fresh.value.clone();
        }
        let began = Instant::now();
        let value = read().await.map(Arc::new);
        self.put(&mut slot, began, value, pace)
    }

    /// Returns many values, of which those that are too old are read together. `read` receives their keys, each with the
    /// value before, and returns as many results.
    pub(crate) async fn get_many(
        &self,
        keys: &[K],
        pace: impl Fn(&V) -> Option<Duration>,
        read: impl AsyncFnOnce(Vec<(K, Option<Arc<V>>)>) -> Vec<Result<V, E>>,
    ) -> BTreeMap<K, Result<Arc<V>, E>>
    where
        K: Ord,
    {
        let (mut values, mut old) = (BTreeMap::new(), Vec::new());
        // In the order of the keys, so that two callers do not wait for each other.
        for key in keys.iter().collect::<BTreeSet<_>>() {
            let slot = self.slot(key).lock_owned().await;
            match slot.as_ref().filter(|it| it.is_fresh()) {
                Some(fresh) => drop(values.insert(key.clone(), fresh.value.clone())),
                None => old.push((key.clone(), slot)),
            }
        }
        if old.is_empty() {
            return values;
        }
        let asked = old.iter().map(|(key, slot)| {
            let last = slot.as_ref().and_then(|it| it.last.clone());
            (key.clone(), last)
        });
        let began = Instant::now();
        let read = read(asked.collect()).await;
        for ((key, mut slot), value) in old.into_iter().zip(read) {
            values.insert(key, self.put(&mut slot, began, value.map(Arc::new), &pace));
        }
        values
    }

    fn put(
        &self,
        slot: &mut Option<Read<V, E>>,
        began: Instant,
        value: Result<Arc<V>, E>,
        pace: impl Fn(&V) -> Option<Duration>,
    ) -> Result<Arc<V>, E> {
        let paced = match &value {
            Ok(value) => pace(value),
            Err(_) => self.keeps_errors.then_some(Duration::ZERO),
        };
        let age = paced.map(|least| self.age.max(least).max(rest(began.elapsed())));
        let last = value.as_ref().ok().cloned().or_else(|| slot.as_ref()?.last.clone());
        let read = |age| Read { at: Instant::now(), age, stale: false, value: value.clone(), last };
        *slot = age.map(read);
        value
    }

    /// Makes the next caller read a value again.
    pub(crate) fn expire(&self, key: &K) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = slots.get(key).cloned() else { return };
        match slot.try_lock() {
            Ok(mut slot) => slot.iter_mut().for_each(|it| it.stale = true),
            // It is being read, perhaps from before the change.
            Err(_) => drop(slots.remove(key)),
        }
    }

    fn slot(&self, key: &K) -> Slot<V, E> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= self.kept {
            // A slot that is locked is in use.
            let read_at = |slot: &Slot<V, E>| slot.try_lock().ok().map(|it| it.as_ref().map(|it| it.at));
            let is_used = |at: &Option<Instant>| at.is_some_and(|at| at.elapsed() < UNUSED);
            slots.retain(|_, slot| read_at(slot).is_none_or(|at| is_used(&at)));
            if slots.len() >= self.kept {
                // Many keys in a short time, as of a reader who varies a filter: the oldest quarter goes.
                let mut times: Vec<_> = slots.values().filter_map(read_at).collect();
                times.sort_unstable();
                let until = times.get(self.kept / 4).copied().flatten();
                slots.retain(|_, slot| read_at(slot).is_none_or(|at| at > until));
            }
        }
        slots.entry(key.clone()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use futures_util::future::join_all;
    use millstream::ErrorKind;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_callers_cost_one_read() {
        let (cached, reads) = (Cached::<_, _>::new(Duration::from_secs(2)), Cell::new(0));
        let read = async || {
            reads.set(reads.get() + 1);
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(reads.get())
        };
        let got = join_all((0..50).map(|_| cached.get(&"a", read))).await;
        assert!(got.into_iter().all(|value| *value.expect("read") == 1));
        tokio::time::advance(Duration::from_millis(1_980)).await;
        assert_eq!(*cached.get(&"a", read).await.expect("read"), 1);
        tokio::time::advance(Duration::from_millis(30)).await;
        assert_eq!(*cached.get(&"a", read).await.expect("read"), 2);
        assert_eq!(*cached.get(&"b", read).await.expect("read"), 3, "another key");
    }

    #[tokio::test(start_paused = true)]
    async fn many_keys_in_a_short_time_are_not_all_kept() {
        let cached = Cached::<u32, u32>::new(Duration::from_secs(2));
        for key in 0..10_000 {
            assert_eq!(*cached.get(&key, async || Ok(key)).await.expect("read"), key);
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(cached.slots.lock().expect("lock").len() <= KEPT);
        }
        let kept = async || Err(Error::new(ErrorKind::Unavailable, "it is kept"));
        for key in 9_000..10_000 {
            assert_eq!(*cached.get(&key, kept).await.expect("the newest are"), key);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_read_less_often_and_an_error_is_kept_too() {
        let cached = Cached::<_, _>::new(Duration::from_secs(2));
        let slow = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(1)
        };
        let fails = async || Err(Error::new(ErrorKind::Unavailable, "away"));
        assert_eq!(*cached.get(&(), slow).await.expect("read"), 1);
        tokio::time::advance(Duration::from_millis(8_900)).await;
        assert_eq!(*cached.get(&(), fails).await.expect("it is not read yet"), 1);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(cached.get(&(), fails).await.is_err());
        assert!(cached.get(&(), slow).await.is_err(), "the error is shared");
        cached.expire(&());
        assert_eq!(*cached.get(&(), slow).await.expect("read"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn many_values_are_read_together_and_only_those_that_are_old() {
        let cached = Cached::<&str, usize>::new(Duration::from_secs(2));
        let batches = RefCell::new(Vec::new());
        let read = async |asked: Vec<(&'static str, Option<Arc<usize>>)>| {
            let next = |(key, last): &(&str, Option<Arc<usize>>)| {
                let last = last.as_ref().map_or(0, |last| **last);
                if *key == "gone" { Err(Error::new(ErrorKind::NotFound, "gone")) } else { Ok(last + 1) }
            };
            let values = asked.iter().map(next).collect();
            batches.borrow_mut().push(asked.into_iter().map(|(key, _)| key).collect::<Vec<_>>().join(" "));
            values
        };
        let slow = |value: &usize| Some(Duration::from_secs(if *value > 1 { 10 } else { 0 }));
        let first = cached.get_many(&["b", "a", "gone"], slow, read).await;
        assert!(first["gone"].is_err() && first["a"].as_ref().is_ok_and(|it| **it == 1));
        cached.get_many(&["a", "b"], slow, read).await;
        cached.expire(&"b");
        let second = cached.get_many(&["a", "b"], slow, read).await;
        assert!(second["b"].as_ref().is_ok_and(|it| **it == 2), "it follows the one before");
        tokio::time::advance(Duration::from_secs(3)).await;
        cached.get_many(&["a", "b"], slow, read).await;
        assert_eq!(*batches.borrow(), ["a b gone", "b", "a"], "b is used for ten seconds");
        let again = async || Ok(7);
        assert_eq!(*cached.get_paced(&"x", |_| None, again).await.expect("read"), 7);
        assert_eq!(
            *cached.get_paced(&"x", |_| None, async || Ok(8)).await.expect("read"),
            8,
            "it is not kept"
        );
    }
}
