//! The idempotency role in memory.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::Result;
use millstream_core::idempotency::{Begun, Idempotency, Marker, Operation, check_begin, check_complete};

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::clock::Now;
use crate::state::markers::{MarkerPhase, Markers, Stored};

#[async_trait]
impl Idempotency for MemoryBackend {
    async fn begin(&self, operation: &Operation, holder: &str, token: &str, ttl: Duration) -> Result<Begun> {
        check_begin(holder, token, ttl)?;
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        match state.markers.get(operation, now) {
            Some(Stored { phase: MarkerPhase::Done(result), .. }) => return Ok(Begun::Done(result.clone())),
            // One that would last longer than twice its ttl counts as absent: the clock was set back.
            Some(Stored { token: other, phase: MarkerPhase::Running { holder, ttl }, expires })
                if other != token && expires.since(now) <= *ttl * 2 =>
            {
                let expires_in = expires.since(now);
                return Ok(Begun::Running { holder: holder.clone(), expires_in });
            }
            _ => {}
        }
        let marker = Marker::new(operation.clone(), holder, token, ttl);
        run(&mut state.markers, &marker, now);
        Ok(Begun::Started(marker))
    }

    async fn extend(&self, markers: &[Marker]) -> Vec<Result<()>> {
        let mut state = self.lock();
        let now = self.now();
        let extend = |marker: &Marker| {
            ours(&mut state.markers, marker, now)?;
            run(&mut state.markers, marker, now);
            Ok(())
        };
        markers.iter().map(extend).collect()
    }

    async fn complete(&self, marker: &Marker, result: &[u8], retention: Duration) -> Result<()> {
        check_complete(result, retention)?;
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let markers = &mut state.markers;
        if let Some(Stored { token, phase: MarkerPhase::Done(_), .. }) = markers.get(&marker.operation, now)
            && *token == marker.token
        {
            return Ok(());
        }
        ours(markers, marker, now)?;
        let (token, phase) = (marker.token.clone(), MarkerPhase::Done(Bytes::copy_from_slice(result)));
        markers.put(&marker.operation, Stored { token, phase, expires: now.plus(retention) }, now);
        Ok(())
    }

    async fn abandon(&self, marker: &Marker) -> Result<()> {
        let mut state = self.lock();
        let now = self.now();
        ours(&mut state.markers, marker, now)?;
        state.markers.remove(&marker.operation);
        Ok(())
    }
}

/// Fails unless the operation runs under this marker, or its marker has expired and nobody began it since.
fn ours(markers: &mut Markers, marker: &Marker, now: Now) -> Result<()> {
    match markers.get(&marker.operation, now) {
        None => Ok(()),
        Some(Stored { token, phase: MarkerPhase::Running { .. }, .. }) if *token == marker.token => Ok(()),
        Some(_) => Err(marker.fenced()),
    }
}

fn run(markers: &mut Markers, marker: &Marker, now: Now) {
    let phase = MarkerPhase::Running { holder: marker.holder.clone(), ttl: marker.ttl };
    let stored = Stored { token: marker.token.clone(), phase, expires: now.plus(marker.ttl) };
    markers.put(&marker.operation, stored, now);
}
