//! The server of the scaler.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream;
use millstream_core::{Error, ErrorKind, Result};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::scaler::Scaler;
use crate::service::ExternalScaler;

/// Time that requests have to end when the server is stopped.
const GRACE: Duration = Duration::from_secs(5);
/// Interval in which an idle connection is asked whether it is alive, and the time for its answer.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Maximum number of requests and streams of a connection at the same time: KEDA uses one connection for all objects.
const STREAMS: u32 = 1_100;
/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Running scaler. Dropping it stops it in the background.
#[must_use = "a server that is dropped stops"]
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) async fn start(scaler: Scaler, wanted: SocketAddr) -> Result<Self> {
        let cannot = |error: std::io::Error| {
            let message = format!("cannot listen on {wanted}: {error}");
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let listener = TcpListener::bind(wanted).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "backlogs are served without authentication to every client that can connect");
        }
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let incoming = stream::unfold(listener, async |listener| {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => return Some((Ok::<_, std::io::Error>(stream), listener)),
                    Err(error) => {
                        // The process has too many files open, for example: that passes.
                        tracing::warn!(%error, "the scaler cannot accept a connection");
                        sleep(PAUSE).await;
                    }
                }
            }
        });
        let task = tokio::spawn(async move {
            let serve = tonic::transport::Server::builder()
                .max_concurrent_streams(STREAMS)
                .http2_keepalive_interval(Some(KEEPALIVE))
                .http2_keepalive_timeout(Some(KEEPALIVE))
                .serve_with_incoming_shutdown(
                    ExternalScaler::new(scaler, stopped.clone()),
                    Box::pin(incoming),
                    stopped.clone().cancelled_owned(),
                );
            let limit = async {
                stopped.cancelled().await;
                sleep(GRACE).await;
            };
            tokio::select! {
                biased;
                served = serve => {
                    if let Err(error) = served {
                        tracing::error!(%error, "the scaler ended");
                    }
                }
                () = limit => tracing::warn!("requests to the scaler were cut off"),
            }
        });
        Ok(Self { address, stop, task: Some(task) })
    }

    /// Returns the address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, ends open streams, and waits up to 5 s for requests to end.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take()
            && let Ok(Err(error)) = timeout(GRACE * 2, task).await
        {
            tracing::error!(%error, "the scaler ended abnormally");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}
