//! A map and a set as sorted vectors, for few entries: partitions, topics, members, the groups of one request.
//!
//! They iterate in the order of their keys as a `BTreeMap` does, and a lookup takes as many comparisons. What differs is compile
//! time: each pair of types of a `BTreeMap` is some 10 000 lines of LLVM IR, here it is some 1000. Adding and removing moves
//! all entries behind, so what may have many thousands of them, and changes in the middle, stays a `BTreeMap`.
//!
//! Read access is that of a slice. For the same reason there is no sorting: `collect` and `extend` add one entry after the other.
//!
//! [`sort`] and [`sort_by`] sort a slice with code that is compiled once for all types. The sort of the standard library is faster by a
//! factor, and some 3000 lines of LLVM IR for each type.

mod sorting;

use std::borrow::Borrow;
use std::ops::Deref;
use std::{slice, vec};

pub use sorting::{sort, sort_by};

/// A map, sorted by its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

/// A sorted set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedSet<K>(Vec<K>);

impl<K, V> SortedMap<K, V> {
    /// Creates an empty map.
    pub const fn new() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Returns the place of a key, or the one where it would be added.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(other, _)| other.borrow().cmp(key))
    }

    /// Returns whether the map has a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Returns the value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(&self.0[at].1)
    }

    /// Returns the value of a key, to change it.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(&mut self.0[at].1)
    }

    /// Returns the value of a key, which is added with a new value if it is missing.
    pub fn get_or_insert_with(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        let at = self.find(&key).unwrap_or_else(|at| {
            self.0.insert(at, (key, new()));
            at
        });
        &mut self.0[at].1
    }

    /// Returns the value of a key, which is added with the default value if it is missing.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.get_or_insert_with(key, V::default)
    }

    /// Sets the value of a key. Returns the value before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Removes the keys for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keep(key, value));
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the keys, in their order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + ExactSizeIterator {
        self.0.iter().map(|(key, _)| key)
    }

    /// Returns the values, in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator {
        self.0.iter().map(|(_, value)| value)
    }

    /// Returns the values, to change them, in the order of their keys.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Returns the values, in the order of their keys.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.0.into_iter().map(|(_, value)| value)
    }

    /// Returns the entries whose keys are above this one; all of them for `None`.
    pub fn above<Q: Ord + ?Sized>(&self, key: Option<&Q>) -> &[(K, V)]
    where
        K: Borrow<Q>,
    {
        let first = key.map_or(0, |key| self.find(key).map_or_else(|at| at, |at| at + 1));
        &self.0[first..]
    }
}

impl<K> SortedSet<K> {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord> SortedSet<K> {
    /// Returns whether the set has a value.
    pub fn contains<Q: Ord + ?Sized>(&self, value: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|other| other.borrow().cmp(value)).is_ok()
    }

    /// Adds a value. Returns false if it was there already.
    pub fn insert(&mut self, value: K) -> bool {
        let Err(at) = self.0.binary_search(&value) else { return false };
        self.0.insert(at, value);
        true
    }

    /// Removes a value. Returns false if it was not there.
    pub fn remove<Q: Ord + ?Sized>(&mut self, value: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let found = self.0.binary_search_by(|other| other.borrow().cmp(value));
        found.is_ok_and(|at| {
            self.0.remove(at);
            true
        })
    }

    /// Removes and returns the first value.
    pub fn pop_first(&mut self) -> Option<K> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// Removes the values for which `keep` is false.
    pub fn retain(&mut self, keep: impl FnMut(&K) -> bool) {
        self.0.retain(keep);
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// What both have in common.
macro_rules! sorted_vector {
    ($sorted:ident<$key:ident $(, $value:ident)?>, $item:ty, $entry:pat => $($part:ident),+) => {
        impl<$key $(, $value)?> Default for $sorted<$key $(, $value)?> {
            fn default() -> Self {
                Self::new()
            }
        }

        impl<$key $(, $value)?> Deref for $sorted<$key $(, $value)?> {
            type Target = [$item];

            fn deref(&self) -> &[$item] {
                &self.0
            }
        }

        impl<$key: Ord $(, $value)?> Extend<$item> for $sorted<$key $(, $value)?> {
            fn extend<I: IntoIterator<Item = $item>>(&mut self, entries: I) {
                for $entry in entries {
                    self.insert($($part),+);
                }
            }
        }

        impl<$key: Ord $(, $value)?> FromIterator<$item> for $sorted<$key $(, $value)?> {
            fn from_iter<I: IntoIterator<Item = $item>>(entries: I) -> Self {
                let mut sorted = Self::new();
                sorted.extend(entries);
                sorted
            }
        }

        impl<$key $(, $value)?> IntoIterator for $sorted<$key $(, $value)?> {
            type Item = $item;
            type IntoIter = vec::IntoIter<$item>;

            fn into_iter(self) -> Self::IntoIter {
                self.0.into_iter()
            }
        }

        impl<'a, $key $(, $value)?> IntoIterator for &'a $sorted<$key $(, $value)?> {
            type Item = &'a $item;
            type IntoIter = slice::Iter<'a, $item>;

            fn into_iter(self) -> Self::IntoIter {
                self.0.iter()
            }
        }
    };
}

sorted_vector!(SortedMap<K, V>, (K, V), (key, value) => key, value);
sorted_vector!(SortedSet<K>, K, value => value);

#[cfg(test)]
mod tests;
