//! The idempotency role: one key for each marker, which expires by itself.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::idempotency::{Begun, Idempotency, Marker, Operation, check_begin, check_complete};
use millstream_core::sorted::sort_by;
use redis::Value;

use crate::backend::RedisBackend;
use crate::conn::cluster::together::together;
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::scripts::script;
use crate::scripts::script::Call;
use crate::scripts::times::ceil_ms;

/// Maximum number of markers in one pipeline of extensions.
const CHUNK: usize = 500;

#[async_trait]
impl Idempotency for RedisBackend {
    async fn begin(&self, operation: &Operation, holder: &str, token: &str, ttl: Duration) -> Result<Begun> {
        check_begin(holder, token, ttl)?;
        let inner = &self.inner;
        let call = inner.scripts.marker_begin.call([&inner.keys.marker(operation)]);
        let call = call.arg(token).arg(holder).arg(ceil_ms(ttl));
        let answer = script::run_one(&inner.messages, call).await;
        let answer = answer.map_err(|error| during(error, "begin", operation))?;
        let mut answer = reply::array(answer)?.into_iter();
        let mut next = || answer.next().ok_or_else(|| unexpected("too few values"));
        match reply::int(next()?)? {
            0 => Ok(Begun::Started(Marker::new(operation.clone(), holder, token, ttl))),
            1 => Ok(Begun::Done(reply::bytes(next()?)?)),
            2 => {
                let holder = reply::text(next()?)?;
                let expires_in = u64::try_from(reply::int(next()?)?).unwrap_or(0);
                Ok(Begun::Running { holder, expires_in: Duration::from_millis(expires_in) })
            }
            other => Err(unexpected(format_args!("{other} as the state of a marker"))),
        }
    }

    async fn extend(&self, markers: &[Marker]) -> Vec<Result<()>> {
        let mut results = Vec::with_capacity(markers.len());
        for chunk in markers.chunks(CHUNK) {
            let keys: Vec<_> = chunk.iter().map(|it| self.inner.keys.marker(&it.operation)).collect();
            // By node: one that does not answer costs its own markers only.
            let servers = self.inner.by_server(keys.iter());
            let request = async |positions: &Vec<usize>| {
                let calls = positions.iter().map(|at| {
                    let marker = &chunk[*at];
                    let call = self.inner.scripts.marker_extend.call([&keys[*at]]);
                    call.arg(marker.token.as_str()).arg(marker.holder.as_str()).arg(ceil_ms(marker.ttl))
                });
                // Not among messages: an extension must not wait for a page of them.
                script::run(&self.inner.leases, calls.collect()).await
            };
            let requests = servers.iter().map(|positions| request(positions).boxed()).collect();
            let answers = servers.iter().flatten().zip(together(requests).await.into_iter().flatten());
            let mut extended: Vec<_> =
                answers.map(|(at, answer)| (*at, ended(answer, "extend", &chunk[*at]))).collect();
            sort_by(&mut extended, |(one, _), (other, _)| one.cmp(other));
            results.extend(extended.into_iter().map(|(_, extended)| extended));
        }
        results
    }

    async fn complete(&self, marker: &Marker, result: &[u8], retention: Duration) -> Result<()> {
        check_complete(result, retention)?;
        let key = self.inner.keys.marker(&marker.operation);
        let call = self.inner.scripts.marker_complete.call([&key]);
        self.end("complete", marker, call.arg(marker.token.as_str()).arg(result).arg(ceil_ms(retention)))
            .await
    }

    async fn abandon(&self, marker: &Marker) -> Result<()> {
        let key = self.inner.keys.marker(&marker.operation);
        let call = self.inner.scripts.marker_abandon.call([&key]);
        self.end("abandon", marker, call.arg(marker.token.as_str())).await
    }
}

impl RedisBackend {
    async fn end(&self, what: &str, marker: &Marker, call: Call<'_>) -> Result<()> {
        ended(script::run_one(&self.inner.messages, call).await, what, marker)
    }
}

fn ended(answer: Result<Value>, what: &str, marker: &Marker) -> Result<()> {
    answer.map(drop).map_err(|error| match error.kind() {
        ErrorKind::Fenced => marker.fenced(),
        _ => during(error, what, &marker.operation),
    })
}

fn during(error: Error, what: &str, operation: &Operation) -> Error {
    error.during(format_args!("{what} {operation}")).at(operation.topic())
}
