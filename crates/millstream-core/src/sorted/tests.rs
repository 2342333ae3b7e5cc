//! Sorted maps and sets do what those of the standard library do.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_map_is_what_a_tree_is(steps in prop::collection::vec((0..4, 0u8..8, any::<u8>()), 0..64)) {
        let (mut map, mut tree) = (SortedMap::new(), BTreeMap::new());
        for (step, key, value) in steps {
            match step {
                0 | 1 => prop_assert_eq!(map.insert(key, value), tree.insert(key, value)),
                2 => prop_assert_eq!(map.remove(&key), tree.remove(&key)),
                _ => {
                    *map.get_or_default(key) ^= value;
                    *tree.entry(key).or_default() ^= value;
                }
            }
            prop_assert_eq!(map.get(&key), tree.get(&key));
            prop_assert!(map.iter().map(|(key, value)| (key, value)).eq(&tree));
            prop_assert!(map.above(Some(&key)).iter().map(|(key, _)| key).eq(tree.range(key + 1..).map(|it| it.0)));
        }
        prop_assert_eq!(map.above(None::<&u8>).len(), tree.len());
    }

    #[test]
    fn a_slice_is_sorted_as_by_the_standard_library(values in prop::collection::vec((0u8..8, any::<u8>()), 0..200)) {
        let (mut by_first, mut all) = (values.clone(), values.clone());
        sort_by(&mut by_first, |one, other| one.0.cmp(&other.0));
        sort(&mut all);
        let (mut stable, mut whole) = (values.clone(), values);
        stable.sort_by_key(|it| it.0);
        whole.sort_unstable();
        prop_assert_eq!((by_first, all), (stable, whole));
    }

    #[test]
    fn a_set_is_what_a_tree_is(steps in prop::collection::vec((0..4, 0u8..8), 0..64)) {
        let (mut set, mut tree) = (SortedSet::new(), BTreeSet::new());
        for (step, value) in steps {
            match step {
                0 | 1 => prop_assert_eq!(set.insert(value), tree.insert(value)),
                2 => prop_assert_eq!(set.remove(&value), tree.remove(&value)),
                _ => prop_assert_eq!(set.pop_first(), tree.pop_first()),
            }
            prop_assert_eq!(set.contains(&value), tree.contains(&value));
            prop_assert!(set.iter().eq(&tree));
        }
    }
}
