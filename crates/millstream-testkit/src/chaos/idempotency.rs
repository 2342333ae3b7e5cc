//! Chaos for markers of operations.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::idempotency::{Begun, Idempotency, Marker, Operation};

use super::Client;
use super::faults::Role;
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Idempotency for Client {
    async fn begin(&self, operation: &Operation, holder: &str, token: &str, ttl: Duration) -> Result<Begun> {
        call!(self, Idempotency, idempotency?.begin(operation, holder, token; ttl))
    }

    async fn extend(&self, markers: &[Marker]) -> Vec<Result<()>> {
        let inner = match self.0.backend.idempotency() {
            Ok(inner) => inner.clone(),
            Err(error) => return markers.iter().map(|_| Err(error.clone())).collect(),
        };
        let (markers, count) = (markers.to_vec(), markers.len());
        let request = async move { inner.extend(&markers).await };
        self.call(Role::Idempotency, request, |error| (0..count).map(|_| Err(error.clone())).collect()).await
    }

    async fn complete(&self, marker: &Marker, result: &[u8], retention: Duration) -> Result<()> {
        call!(self, Idempotency, idempotency?.complete(marker, result; retention))
    }

    async fn abandon(&self, marker: &Marker) -> Result<()> {
        call!(self, Idempotency, idempotency?.abandon(marker;))
    }
}
