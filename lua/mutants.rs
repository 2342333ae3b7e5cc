//! Scripts with mistakes, for tests of tests. Only with the feature `mutants`, which no published crate turns on.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

static REPLACED: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Has every backend that is opened in this process from now on run `source` under the name of this script.
///
/// The right to each of its commands is checked as for the original: see [`Script::checked`](crate::Script::checked).
///
/// # Panics
/// If there is no script of this name.
pub fn replace(name: &str, source: impl Into<String>) {
    assert!(crate::ALL.iter().any(|script| script.name == name), "there is no script {name}");
    REPLACED.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), source.into());
}

/// Returns the source that a script was replaced by.
pub(crate) fn replaced(name: &str) -> Option<String> {
    REPLACED.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
}
