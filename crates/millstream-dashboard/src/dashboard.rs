//! The dashboard as a value that is configured and becomes a router, or a server.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use millstream::{Error, ErrorKind, Millstream, Result, TopicName};
use tokio::net::TcpListener;

use crate::access::{Access, Permission};
use crate::actions::Actions;
use crate::actions::verified::Verifications;
use crate::app::{App, Redact};
use crate::audit::{self, Audit};
use crate::auth::{Auth, Users};
use crate::log_ins::LogIns;
use crate::proxies::Proxies;
use crate::reading::Reading;
use crate::redaction::{Origin, Redaction};
use crate::routing::{self, table};
use crate::serve::Server;

/// Configures a dashboard of a queue.
///
/// Without [`access`](Dashboard::access) or [`users`](Dashboard::users) it answers only requests of this machine.
pub fn dashboard(mq: Millstream) -> Dashboard {
    let redact: Redact = Box::new(|_| Redaction::none());
    Dashboard {
        mq,
        auth: Auth::Local(Permission::Admin),
        at_most: Permission::Admin,
        redact,
        origins: Vec::new(),
        proxies: Proxies::default(),
        trusts_loopback: !is_in_container(),
        audit_topic: TopicName::new(audit::TOPIC).ok(),
        late_after: Duration::from_secs(300),
    }
}

/// Dashboard of a queue. [`dashboard`] creates one.
#[must_use = "a dashboard does nothing until it is a router or a server"]
pub struct Dashboard {
    mq: Millstream,
    auth: Auth,
    at_most: Permission,
    redact: Redact,
    origins: Vec<String>,
    proxies: Proxies,
    trusts_loopback: bool,
    audit_topic: Option<TopicName>,
    late_after: Duration,
}

/// Returns whether this process runs in a container, whose loopback others share.
fn is_in_container() -> bool {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        || marks.into_iter().any(|mark| Path::new(mark).exists())
}

/// Route of the dashboard, for tests and documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteInfo {
    /// Method: `GET` or `POST`.
    pub method: &'static str,
    /// Path with placeholders: `/topics/{topic}`.
    pub path: &'static str,
    /// Right that it needs.
    pub needs: Permission,
}

/// Returns all routes, in the order of the table that the router is made from.
pub fn routes() -> impl Iterator<Item = RouteInfo> {
    table::ROUTES.iter().map(|route| RouteInfo {
        method: if route.method == axum::http::Method::GET { "GET" } else { "POST" },
        path: route.path,
        needs: route.needs,
    })
}

impl Dashboard {
    /// Sets the function that returns the rights of the user of each request: from an extension that a layer of the host
    /// has added, or from a header that a proxy sets and that no client can set itself.
    pub fn access(self, access: impl Fn(&Parts) -> Access + Send + Sync + 'static) -> Self {
        Self { auth: Auth::Host(Arc::new(access)), ..self }
    }

    /// Sets a list of users with passwords.
    pub fn users(self, users: Users) -> Self {
        Self { auth: Auth::Users(users), ..self }
    }

    /// Limits what any user may do, whatever their rights are.
    pub fn at_most(self, permission: Permission) -> Self {
        Self { at_most: permission, ..self }
    }

    /// Sets the function that returns what of messages is never shown, searched or exported, nor sent to a topic where less is
    /// hidden. Texts of errors are not redacted, but for those of messages that could not be decoded: they quote the message.
    pub fn redact(self, redact: impl Fn(Origin<'_>) -> Redaction + Send + Sync + 'static) -> Self {
        Self { redact: Box::new(redact), ..self }
    }

    /// Allows changes from pages of another origin, as `https://ops.example.com`: for a proxy that changes the `Host` header.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origins.push(origin.into());
        self
    }

    /// Trusts proxies at these addresses and networks (`10.0.0.7`, `10.1.2.0/24`) to say who the client is, in the header
    /// `X-Forwarded-For`: failed log-ins are counted by that, and their connections are not limited. Name no network that clients
    /// are in: they could say what they like.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a text that is neither.
    pub fn trusted_proxies<'a>(self, addresses: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        Ok(Self { proxies: Proxies::parse(addresses)?, ..self })
    }

    /// Sets whether everybody who can connect from this machine may use a dashboard without authentication. Default: not in a container,
    /// whose loopback others share. It concerns [`serve`](Self::serve) alone. A request with a header of a proxy is refused in any case;
    /// one through a proxy that adds none is not recognised: use [`users`](Self::users) behind a proxy.
    pub fn trust_loopback(self, trust: bool) -> Self {
        Self { trusts_loopback: trust, ..self }
    }

    /// Sets the topic in which the audit log is kept: `millstream-audit-shop`. Default: `millstream-audit`. By such a name every
    /// program knows that it [may not send there](TopicName::check_target). `None` keeps none: the log is then
    /// that of the process, and events of `tracing` with the target `millstream_dashboard::audit`, as it is always.
    ///
    /// The topic is created with the first action, of one partition that keeps the newest 10,000 messages. All processes with
    /// the same topic share the log. The beginning and the end of each action is a message; an action whose beginning cannot be
    /// written is refused.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a name that is [none of an audit log](TopicName::is_audit).
    pub fn audit_topic(self, topic: impl Into<Option<TopicName>>) -> Result<Self> {
        let audit_topic = topic.into();
        if let Some(topic) = audit_topic.as_ref().filter(|topic| !topic.is_audit()) {
            let why = format!("{topic} is no name of an audit log: {}-{topic} is", TopicName::AUDIT);
            return Err(Error::new(ErrorKind::InvalidName, why));
        }
        Ok(Self { audit_topic, ..self })
    }

    /// Sets the age of the oldest message of a group from which on the group is shown as one that is behind. Default: 5 minutes, as
    /// the alert `MillstreamMessageTooOld`.
    pub fn late_after(self, age: Duration) -> Self {
        Self { late_after: age, ..self }
    }

    /// Makes a router, to be served or nested in one of the host. Links are relative, so it may be under any prefix.
    ///
    /// Actions run on the tokio runtime of the host, and end with it.
    pub fn router(self) -> Router {
        let Self { mq, auth, at_most, redact, origins, proxies, audit_topic, late_after, .. } = self;
        let audit = Arc::new(Audit::new(&mq, audit_topic));
        let reading = Arc::new(Reading::new(&mq, &audit, late_after));
        let actions = Actions::new(audit.clone());
        let (log_ins, verifications) = (LogIns::behind(proxies), Verifications::default());
        let app = App { mq, auth, log_ins, at_most, redact, origins, reading, audit, actions, verifications };
        routing::router(&Arc::new(app))
    }

    /// Serves it on an address; port 0 is any free port.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an address that other machines can reach, and where the loopback is not trusted, unless
    /// authentication is configured.
    /// [`ErrorKind::Unavailable`] if it cannot listen.
    pub async fn serve(self, address: SocketAddr) -> Result<Server> {
        if matches!(self.auth, Auth::Local(_)) && !address.ip().is_loopback() {
            let why = format!(
                "{address} can be reached from other machines, and no authentication is configured: name a list of users, \
                 or listen on 127.0.0.1"
            );
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        if matches!(self.auth, Auth::Local(_)) && !self.trusts_loopback {
            let why = "in a container others share the loopback, and no authentication is configured: name a list of users, or say \
                       that the loopback is trusted";
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        let cannot = |error: std::io::Error| {
            let why = format!("cannot listen on {address}: {error}");
            Error::new(ErrorKind::Unavailable, why).with_source(error)
        };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let proxies = self.proxies.clone();
        Ok(Server::start(listener, address, self.router(), proxies))
    }
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard").field("at_most", &self.at_most).finish_non_exhaustive()
    }
}
