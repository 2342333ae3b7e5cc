//! Mistakes of the idempotency role.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::idempotency::{Begun, Idempotency, MAX_RESULT_LEN, Marker, Operation};
use millstream_core::{ErrorKind, Result};

use super::{Broken, Mutant};

const DAY: Duration = Duration::from_secs(86_400);

#[async_trait]
impl Idempotency for Broken {
    async fn begin(&self, operation: &Operation, holder: &str, token: &str, ttl: Duration) -> Result<Begun> {
        let asked = self.collided(operation)?;
        let mut token = token.to_owned();
        if self.is(Mutant::BeginTokenIgnored) {
            let mut memo = self.memo();
            memo.count += 1;
            token = format!("{token}-{}", memo.count);
        }
        let given = if self.is(Mutant::MarkerNeverExpires) { DAY } else { ttl };
        let begun = self.inner.idempotency()?.begin(&asked, holder, &token, given).await?;
        Ok(match (self.sabotage, begun) {
            (Mutant::BegunByTwo, Begun::Running { .. }) => {
                Begun::Started(Marker::new(operation.clone(), holder, &token, ttl))
            }
            (Mutant::ResultForgotten, Begun::Done(_)) => Begun::Done(Bytes::new()),
            (Mutant::LastResultWins, Begun::Done(result)) => {
                Begun::Done(self.memo().results.get(operation).cloned().map_or(result, Bytes::from))
            }
            (_, Begun::Started(marker)) => {
                let marker = Marker::new(operation.clone(), holder, &marker.token, ttl);
                self.memo().markers.insert(operation.clone(), marker.clone());
                Begun::Started(marker)
            }
            (_, begun) => begun,
        })
    }

    async fn extend(&self, markers: &[Marker]) -> Vec<Result<()>> {
        if self.is(Mutant::MarkerExtendForgotten) {
            return markers.iter().map(|_| Ok(())).collect();
        }
        let mut results = Vec::new();
        for marker in markers {
            results.push(self.extend_one(marker).await);
        }
        if self.is(Mutant::MarkersAllOrNothing) && results.iter().any(Result::is_err) {
            return markers.iter().map(|marker| Err(marker.fenced())).collect();
        }
        results
    }

    async fn complete(&self, marker: &Marker, result: &[u8], retention: Duration) -> Result<()> {
        let mut marker = self.asked(marker)?;
        let mut result = result.to_vec();
        self.absent_is_lost(&marker).await?;
        match self.sabotage {
            Mutant::LargeResultCut => result.truncate(MAX_RESULT_LEN),
            Mutant::CompleteUnfenced => marker = self.last(marker),
            _ => {}
        }
        self.memo().results.insert(marker.operation.clone(), result.clone());
        let kept = if self.is(Mutant::ResultNeverLeaves) { DAY } else { retention };
        self.inner.idempotency()?.complete(&marker, &result, kept).await
    }

    async fn abandon(&self, marker: &Marker) -> Result<()> {
        let marker = self.asked(marker)?;
        match self.sabotage {
            Mutant::AbandonForgotten => Ok(()),
            Mutant::AbandonUnfenced => self.inner.idempotency()?.abandon(&self.last(marker)).await,
            Mutant::DoneIsAbandoned => {
                let abandoned = self.inner.idempotency()?.abandon(&marker).await;
                abandoned.or_else(|error| if error.kind() == ErrorKind::Fenced { Ok(()) } else { Err(error) })
            }
            _ => self.inner.idempotency()?.abandon(&marker).await,
        }
    }
}

impl Broken {
    async fn extend_one(&self, marker: &Marker) -> Result<()> {
        let marker = self.asked(marker)?;
        self.absent_is_lost(&marker).await?;
        let extended = self.inner.idempotency()?.extend(std::slice::from_ref(&marker)).await;
        extended.into_iter().next().unwrap_or(Ok(()))
    }

    /// Fails if this mistake is active and the marker has expired.
    async fn absent_is_lost(&self, marker: &Marker) -> Result<()> {
        if !self.is(Mutant::ExpiredMarkerIsLost) {
            return Ok(());
        }
        let role = self.inner.idempotency()?;
        match role.begin(&marker.operation, "probe", "probe", Duration::from_secs(1)).await? {
            Begun::Started(probe) => {
                role.abandon(&probe).await?;
                Err(marker.fenced())
            }
            _ => Ok(()),
        }
    }

    /// Returns the marker of the current holder.
    fn last(&self, marker: Marker) -> Marker {
        self.memo().markers.get(&marker.operation).cloned().unwrap_or(marker)
    }

    /// Returns the marker with the operation that is requested from the backend instead.
    fn asked(&self, marker: &Marker) -> Result<Marker> {
        let operation = self.collided(&marker.operation)?;
        Ok(Marker::new(operation, &marker.holder, &marker.token, marker.ttl))
    }

    fn collided(&self, operation: &Operation) -> Result<Operation> {
        if !self.is(Mutant::OperationsCollide) {
            return Ok(operation.clone());
        }
        // As if the id was cut at a character that has a meaning in keys.
        let id: Vec<u8> = operation.id().iter().copied().take_while(|byte| *byte != b':').collect();
        Operation::new(operation.topic().clone(), operation.group().clone(), id)
    }
}
