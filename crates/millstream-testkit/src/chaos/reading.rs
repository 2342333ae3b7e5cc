//! Chaos for readers and watches. A wait ends when the connection is cut.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::log::{Fetched, Reader};
use millstream_core::members::{Revision, Watch};
use millstream_core::pages::PageSizer;
use millstream_core::{GroupName, Result, TopicName};
use tokio::time::{Instant, sleep};

use super::faults::{Fate, Plan, Role};
use super::{Client, unconfirmed};

/// A reader behind an unreliable connection.
///
/// After an error, or after a dropped fetch, the inner reader starts over with the pending entries.
pub(super) struct ChaosReader {
    client: Client,
    inner: Box<dyn Reader>,
    /// Set during a fetch. If it is set when the next one begins, a reply may be lost.
    busy: bool,
    /// Sizes pages for the bandwidth of the link, as every reader behind a slow link has to.
    pages: PageSizer,
}

impl ChaosReader {
    pub(super) fn new(client: Client, inner: Box<dyn Reader>) -> Self {
        Self { client, inner, busy: false, pages: PageSizer::default() }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Reader for ChaosReader {
    fn start_over(&mut self) {
        self.inner.start_over();
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        if std::mem::replace(&mut self.busy, true) {
            self.inner.start_over();
            self.pages.lost();
        }
        let max = self.pages.count(max);
        let plan = self.client.plan(Role::Reader);
        arrive(&self.client, &plan).await?;
        let fetched = tokio::select! {
            biased;
            fetched = self.client.signed(self.inner.fetch(max, wait)) => fetched?,
            () = self.client.until_cut(&plan) => return Err(cut_off(&self.client).await),
        };
        let (bytes, began) = (size(&fetched), Instant::now());
        self.client.receive(&plan, bytes).await?;
        self.pages.came(fetched.entries.len(), usize::try_from(bytes).unwrap_or(usize::MAX), began.elapsed());
        self.busy = false;
        Ok(fetched)
    }
}

/// A watch behind an unreliable connection.
pub(super) struct ChaosWatch {
    client: Client,
    topic: TopicName,
    group: GroupName,
    inner: Option<Box<dyn Watch>>,
}

impl ChaosWatch {
    pub(super) fn new(client: Client, topic: TopicName, group: GroupName, inner: Box<dyn Watch>) -> Self {
        Self { client, topic, group, inner: Some(inner) }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Watch for ChaosWatch {
    async fn changed(&mut self, seen: Revision, wait: Duration) -> Result<()> {
        let inner = self.inner.take();
        let plan = self.client.plan(Role::Watch);
        arrive(&self.client, &plan).await?;
        let mut inner = match inner {
            Some(inner) => inner,
            None => self.client.0.backend.members().watch(&self.topic, &self.group).await?,
        };
        tokio::select! {
            biased;
            changed = inner.changed(seen, wait) => changed?,
            () = self.client.until_cut(&plan) => return Err(cut_off(&self.client).await),
        }
        self.client.receive(&plan, 0).await?;
        self.inner = Some(inner);
        Ok(())
    }
}

/// Sends a request to the server. A request is not executed after its caller gave up, since a new reader ends the
/// requests of the one before it.
pub(super) async fn arrive(client: &Client, plan: &Plan) -> Result<()> {
    client.send(plan).await?;
    if !client.answers(plan.timeout.saturating_sub(plan.there)).await {
        client.awake().await;
        return Err(unconfirmed("timed out"));
    }
    if let Fate::Stalled(stall) = plan.fate {
        sleep(stall.min(plan.timeout)).await;
        if stall >= plan.timeout {
            client.awake().await;
            return Err(unconfirmed("timed out"));
        }
    }
    Ok(())
}

/// Waits under the faults of a role, for a caller that holds no state during the wait.
pub(super) async fn wait<T>(
    client: &Client,
    role: Role,
    waiting: impl Future<Output = Result<T>>,
) -> Result<T> {
    let plan = client.plan(role);
    arrive(client, &plan).await?;
    let answer = tokio::select! {
        biased;
        answer = waiting => answer?,
        () = client.until_cut(&plan) => return Err(cut_off(client).await),
    };
    client.receive(&plan, 0).await?;
    Ok(answer)
}

/// Returns the total size of the bodies in a reply, in bytes.
pub(super) fn size(fetched: &Fetched) -> u64 {
    let fields = fetched.entries.iter().flat_map(|entry| &entry.fields);
    fields.map(|(name, value)| (name.len() + value.len()) as u64).sum()
}

pub(super) async fn cut_off(client: &Client) -> millstream_core::Error {
    client.awake().await;
    unconfirmed("connection reset")
}
