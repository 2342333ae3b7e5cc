//! States of zstd that are kept for the next use: to make one takes longer than to compress a small pack.

use std::sync::{Mutex, PoisonError};

use crate::compression::Failed;

/// States that are free. There are as many as were in use at once.
pub(crate) struct Pool<T>(Mutex<Vec<T>>);

impl<T> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Uses a free state, or a new one. One whose use has failed is dropped.
    pub(crate) fn with<R>(
        &self,
        make: impl FnOnce() -> std::io::Result<T>,
        use_it: impl FnOnce(&mut T) -> std::io::Result<R>,
    ) -> Result<R, Failed> {
        let free = self.lock().pop();
        let mut state = match free {
            Some(state) => state,
            None => make()?,
        };
        let result = use_it(&mut state)?;
        self.lock().push(state);
        Ok(result)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
