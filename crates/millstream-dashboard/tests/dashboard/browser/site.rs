//! A dashboard that is served, under a prefix of a host.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use millstream::Millstream;
use millstream_dashboard::{Access, dashboard};
use tokio::net::TcpListener;

/// A host with a dashboard at `/admin/mq`.
pub(crate) struct Site {
    pub(crate) mq: Millstream,
    base: String,
    requests: Arc<AtomicU64>,
}

/// A user, as a layer of the host finds them.
#[derive(Clone)]
struct User(&'static str);

impl Site {
    pub(crate) async fn start() -> Self {
        Self::over(queue().await).await
    }

    /// One of a queue in which a verification finds something.
    pub(crate) async fn unsound() -> Self {
        Self::over(super::place::unsound(&queue().await)).await
    }

    async fn over(mq: Millstream) -> Self {
        let admin = dashboard(mq.clone()).access(|parts| match parts.extensions.get::<User>() {
            Some(User(name)) => Access::admin(*name),
            None => Access::none("nobody"),
        });
        let requests = Arc::new(AtomicU64::new(0));
        let counted = requests.clone();
        let log_in = move |mut request: Request, next: Next| {
            if !request.uri().path().contains("assets") {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            request.extensions_mut().insert(User("ann"));
            next.run(request)
        };
        let app = Router::new().nest("/admin/mq", admin.router()).layer(from_fn(log_in));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address: SocketAddr = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { mq, base: format!("http://{address}/admin/mq"), requests }
    }

    /// Address of a page.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Number of requests so far, without files.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Returns an empty queue, in a namespace of its own.
async fn queue() -> Millstream {
    let namespace = format!("dashboard-{}-{:016x}", std::process::id(), fastrand::u64(..));
    Millstream::at(super::url()).namespace(namespace).connect().await.expect("the servers of the tests")
}
