//! Stores of large payloads.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::error::Result;

use super::PayloadReference;

/// Store of payloads that are too large for messages, such as a bucket of S3 or [a directory](super::DirectoryStore).
///
/// Objects are written once, each under a name of its own, and never changed.
///
/// # Deleting
/// There is no operation that deletes, since no consumer can know that it is the last one to read an object. Delete by age, for example
/// with a lifecycle rule of the bucket. An object has to live longer than its message can be read: the retention of the topic, plus the
/// longest time over all retries, plus the time that dead letters are kept and may be replayed. A send that fails after its object was put
/// leaves an object without a message, which ends in the same way.
///
/// # Example
/// A bucket. `Client` stands for that of an object store:
///
/// ```
/// use async_trait::async_trait;
/// use bytes::Bytes;
/// use millstream_core::{Error, ErrorKind, Result};
/// use millstream_payload::{PayloadReference, PayloadStore};
/// # #[derive(Debug)] enum Failed { NoSuchKey, Forbidden, Other(String) }
/// # impl std::fmt::Display for Failed { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "{self:?}") } }
/// # impl std::error::Error for Failed {}
/// # #[derive(Debug)] struct Client;
/// # impl Client {
/// #     async fn put_object(&self, _: &str, _: String, _: Bytes) -> std::result::Result<(), Failed> { Ok(()) }
/// #     async fn get_object(&self, _: &str, _: String) -> std::result::Result<Bytes, Failed> { Err(Failed::NoSuchKey) }
/// # }
///
/// #[derive(Debug)]
/// struct Bucket {
///     client: Client,
///     name: String,
/// }
///
/// /// The kind decides what becomes of a message: transient ones are waited for.
/// fn error(failed: Failed) -> Error {
///     let kind = match failed {
///         Failed::Forbidden => ErrorKind::Denied,
///         _ => ErrorKind::Unavailable,
///     };
///     Error::new(kind, failed.to_string()).with_source(failed)
/// }
///
/// #[async_trait]
/// impl PayloadStore for Bucket {
///     async fn put(&self, reference: &PayloadReference, payload: Bytes) -> Result<()> {
///         let key = format!("millstream/{}", reference.name());
///         self.client.put_object(&self.name, key, payload).await.map_err(error)
///     }
///
///     async fn get(&self, reference: &PayloadReference) -> Result<Option<Bytes>> {
///         let key = format!("millstream/{}", reference.name());
///         match self.client.get_object(&self.name, key).await {
///             Ok(payload) => Ok(Some(payload)),
///             Err(Failed::NoSuchKey) => Ok(None),
///             Err(failed) => Err(error(failed)),
///         }
///     }
/// }
/// ```
#[async_trait]
pub trait PayloadStore: fmt::Debug + Send + Sync + 'static {
    /// Stores a payload. When it returns, the payload is as durable as the store makes it: the message is sent then.
    ///
    /// # Errors
    /// The send fails with the kind of the error.
    async fn put(&self, reference: &PayloadReference, payload: Bytes) -> Result<()>;

    /// Returns a payload; `None` if there is no object of this name. It should read no more than the [length](PayloadReference::length) of the
    /// reference, which is within the limit of the consumer. The caller checks length and hash.
    ///
    /// # Errors
    /// Those that are [transient](millstream_core::Error::is_transient) use no attempt of the message: it is tried again later.
    /// Others are failed attempts.
    async fn get(&self, reference: &PayloadReference) -> Result<Option<Bytes>>;
}

#[async_trait]
impl<S: PayloadStore + ?Sized> PayloadStore for Arc<S> {
    async fn put(&self, reference: &PayloadReference, payload: Bytes) -> Result<()> {
        (**self).put(reference, payload).await
    }

    async fn get(&self, reference: &PayloadReference) -> Result<Option<Bytes>> {
        (**self).get(reference).await
    }
}
