//! Signals to messages and tasks whose handlers wait for them.

use std::borrow::Borrow;

use millstream_core::{Error, ErrorKind, Reply, Result, WorkId, steps::Signalled, steps::check_name};
use serde::Serialize;

use crate::Millstream;

impl Millstream {
    /// Signals a message or task that waits for this in its [steps](crate::Steps::signal), or will: the wait ends, and its handler runs again. A signal may come
    /// before the wait; the first one of a name counts. The value is sent as JSON.
    ///
    /// The id is that of the message for its group: [`Steps::id`](crate::Steps::id) in the handler, [`Producer::work_id`](crate::Producer::work_id) where it was sent, or
    /// [`DelayQueue::work_id`](crate::delay::DelayQueue::work_id) of a task.
    ///
    /// ```
    /// # use millstream::{Millstream, Result, Signalled, WorkId};
    /// # async fn example(mq: Millstream, link: &str) -> Result<()> {
    /// match mq.signal(link.parse::<WorkId>()?, "approved", "by Ada").await? {
    ///     Signalled::Late => println!("the time for this is over"),
    ///     Signalled::Gone => println!("it is done, or was never there"),
    ///     _ => println!("thank you"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a bad name, [`ErrorKind::Encode`], [`ErrorKind::TooLarge`] if the steps of the message would have more than 256 KiB,
    /// [`ErrorKind::GroupMissing`] if the group does not exist; [`ErrorKind::Unsupported`] for a backend without steps; transient errors.
    pub async fn signal(
        &self,
        id: impl Borrow<WorkId>,
        name: &str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<Signalled> {
        check_name(name)?;
        let value = Reply::json(&value);
        let encoded = value.payload().map_err(|why| Error::new(ErrorKind::Encode, why))?;
        self.backend().steps()?.signal(id.borrow(), name, encoded.clone()).await
    }
}
