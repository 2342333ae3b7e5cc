//! Mistakes of the roles of idempotency and of cancels.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::batches::BatchId;
use millstream_core::cancels::{CancelMark, CancelMarks, CancelRequest, Cancels, WorkPlace};
use millstream_core::idempotency::{Begun, Idempotency, MAX_RESULT_LEN, Marker, Operation};
use millstream_core::log::ProgressRight;
use millstream_core::results::StoredResult;
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

#[async_trait]
impl Cancels for Broken {
    async fn cancel(
        &self,
        place: &WorkPlace,
        id: &str,
        request: &CancelRequest,
    ) -> Result<Option<CancelMark>> {
        let cancels = self.inner.cancels()?;
        if let (Mutant::CancelHitsAllGroups, WorkPlace::Group(tp, _)) = (self.sabotage, place) {
            for group in self.inner.catalog().groups(&tp.topic).await? {
                cancels.cancel(&WorkPlace::Group(tp.clone(), group), id, &CancelRequest::default()).await?;
            }
        }
        let before = match self.sabotage {
            Mutant::CancelMarkStays => cancels.mark(place, id, Duration::ZERO).await?,
            _ => None,
        };
        if before.is_some() {
            return Ok(before);
        }
        let mut request = request.clone();
        match self.sabotage {
            Mutant::CancelForgetsResult => request.result = None,
            Mutant::CancelAnyTask => request.number = None,
            Mutant::CancelRemovesUnseen => request.removes = true,
            _ => {}
        }
        let mark = cancels.cancel(place, id, &request).await?;
        Ok(match (self.sabotage, mark) {
            (Mutant::CancelNeverAhead, Some(CancelMark::Ahead))
            | (Mutant::CancelSaysAsked, Some(CancelMark::Cancelled)) => Some(CancelMark::Asked),
            (Mutant::CancelAlwaysAhead, Some(CancelMark::Asked)) => Some(CancelMark::Ahead),
            (Mutant::CancelInventsMarks, None) => Some(CancelMark::Cancelled),
            (_, mark) => mark,
        })
    }

    async fn cancel_batch(&self, place: &WorkPlace, batch: &BatchId) -> Result<()> {
        match self.sabotage {
            Mutant::CancelBatchForgotten => Ok(()),
            _ => self.inner.cancels()?.cancel_batch(place, batch).await,
        }
    }

    async fn mark(&self, place: &WorkPlace, id: &str, wait: Duration) -> Result<Option<CancelMark>> {
        let wait = if self.is(Mutant::CancelWaitsForNothing) { Duration::ZERO } else { wait };
        if self.memo().forgotten.contains(id) {
            return Ok(None);
        }
        self.inner.cancels()?.mark(place, id, wait).await
    }

    async fn forget(&self, place: &WorkPlace, id: &str) -> Result<()> {
        match self.sabotage {
            Mutant::CancelMarkKept => Ok(()),
            Mutant::CancelForgetsAnswers => {
                // One that is answered goes too: a mark of nobody is in its place.
                self.memo().forgotten.insert(id.to_owned());
                self.inner.cancels()?.forget(place, id).await
            }
            _ => self.inner.cancels()?.forget(place, id).await,
        }
    }

    async fn marks(&self, place: &WorkPlace, version: u64, wait: Duration) -> Result<Option<CancelMarks>> {
        let version = if self.is(Mutant::CancelMarksUnchanged) { u64::MAX } else { version };
        let mut marks = self.inner.cancels()?.marks(place, version, wait).await?;
        if let Some(found) = &mut marks {
            match self.sabotage {
                Mutant::CancelMarksHidden => found.marks.clear(),
                Mutant::CancelOneBatch => found.batches.truncate(1),
                Mutant::CancelClaimForgotten => found.marks.iter_mut().for_each(|it| it.claim.clear()),
                _ => {}
            }
        }
        Ok(marks)
    }

    async fn share(&self, place: &WorkPlace) -> Result<()> {
        match self.sabotage {
            Mutant::CancelShareForgotten => Ok(()),
            _ => self.inner.cancels()?.share(place).await,
        }
    }

    async fn answer(
        &self,
        right: &ProgressRight,
        id: &str,
        mark: CancelMark,
        result: Option<&StoredResult>,
    ) -> Result<Option<CancelMark>> {
        let given = match (self.sabotage, mark) {
            (Mutant::CancelAheadUnchecked, CancelMark::Ahead) => CancelMark::Cancelled,
            _ => mark,
        };
        let result = result.filter(|_| !self.is(Mutant::CancelAnswerForgetsResult));
        match self.inner.cancels()?.answer(right, id, given, result).await {
            Err(error) if error.kind() == ErrorKind::Fenced && self.is(Mutant::CancelFenceIgnored) => {
                Ok(Some(mark))
            }
            Ok(_) if self.is(Mutant::CancelAnswersAgain) => Ok(Some(mark)),
            Ok(None) if self.is(Mutant::CancelAnswersInvented) => Ok(Some(CancelMark::Asked)),
            other => other,
        }
    }
}
