//! `millstream dashboard`: serves the web dashboard of a queue.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use clap::Args;
use millstream::TopicName;
use millstream::crates::core::QueueName;
use millstream_dashboard::{Origin, Permission, Redaction, Users, dashboard, routes};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::schemas::{Table, of};
use crate::context::{self, Context};
use crate::exit::Exit;
use crate::output;

/// Serves a web dashboard: topics, groups, dead letters by error, retries, delay queues, locks, the server
///
/// Without --users it listens on this machine only, and whoever can use this machine may do everything, or look with
/// --read-only. With --users it asks for a name and a password, and may listen on another address: put TLS in front of it then. In a
/// container it needs --users, or --trust-loopback. A request with a header of a proxy is refused without --users; a proxy that adds none
/// is not recognised.
/// All links are relative, so a proxy may serve it under any prefix.
///
/// It ends with a signal. Actions that still run then stop: what they have changed stays changed.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dashboard
  millstream dashboard --read-only
  millstream dashboard --address 0.0.0.0:9465 --users users.txt --redact 'payments=payload,key'
  millstream dashboard --routes")]
pub(crate) struct Dashboard {
    /// Address to listen on; port 0 for any free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9465")]
    address: SocketAddr,
    /// File with a line for each user: name, right (read, operate, admin or none), password of 12 or more characters, and rights
    /// to single topics: `bob none secret-of-bob orders=operate`
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Lets nobody change anything
    #[arg(long)]
    read_only: bool,
    /// Never shows, searches, exports or moves to where they are shown these parts of messages of a topic or delay queue (`*` for
    /// all): payload, key, headers, or header:NAME; can be repeated
    #[arg(long, value_name = "NAME=PART,…")]
    redact: Vec<Rule>,
    /// Accepts changes from pages of this origin: for a proxy that changes the Host header; can be repeated
    #[arg(long, value_name = "URL")]
    origin: Vec<String>,
    /// Trusts a proxy at this address or in this network to say who the client is, in X-Forwarded-For; can be repeated
    #[arg(long, value_name = "ADDRESS")]
    trusted_proxy: Vec<String>,
    /// In a container, where others share the loopback, lets everybody in who can connect from it
    #[arg(long, conflicts_with = "users")]
    trust_loopback: bool,
    /// Topic in which every action is recorded, `millstream-audit-NAME`: it is created with the first one, and keeps the newest
    /// 10,000 messages
    #[arg(long, value_name = "TOPIC", default_value = TopicName::AUDIT)]
    audit_topic: TopicName,
    /// Records actions on stderr only
    #[arg(long, conflicts_with = "audit_topic")]
    no_audit_topic: bool,
    /// Age of the oldest message of a group from which on the group is shown as one that is behind
    #[arg(long, value_parser = crate::parse::reads, value_name = "TIME", default_value = "5m")]
    late_after: std::time::Duration,
    /// Prints all paths with the right that each needs, and ends
    #[arg(long, conflicts_with_all = ["address", "users", "read_only", "redact", "origin", "trusted_proxy", "trust_loopback", "audit_topic", "no_audit_topic", "late_after"])]
    routes: bool,
}

/// What is hidden of a topic or queue.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// `None` for all.
    name: Option<String>,
    hidden: Redaction,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parts) = text.split_once('=').ok_or("it is NAME=PART,…: payments=payload,key")?;
        let name = match name {
            "*" => None,
            name if name.parse::<TopicName>().is_ok() || name.parse::<QueueName>().is_ok() => {
                Some(name.to_owned())
            }
            name => return Err(format!("{name:?} is no name of a topic or delay queue")),
        };
        let mut hidden = Redaction::none();
        for part in parts.split(',') {
            hidden = match part.split_once(':') {
                None if part == "payload" => hidden.payload(),
                None if part == "key" => hidden.key(),
                None if part == "headers" => hidden.headers(),
                Some(("header", name)) if !name.is_empty() => hidden.header(name),
                _ => {
                    return Err(format!(
                        "{part:?} is no part of a message: payload, key, headers or header:NAME"
                    ));
                }
            };
        }
        Ok(Self { name, hidden })
    }
}

impl Rule {
    fn is_for(&self, origin: Origin<'_>) -> bool {
        let name = match origin {
            Origin::Topic(topic) => topic.as_str(),
            Origin::Queue(queue) => queue.as_str(),
        };
        self.name.as_deref().is_none_or(|of| of == name)
    }
}

/// A path, with the right that it needs.
#[derive(Debug, Serialize, JsonSchema)]
struct Route {
    method: &'static str,
    path: &'static str,
    needs: &'static str,
}

/// What the command prints.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum DashboardPrinted {
    /// With --routes.
    Routes(Vec<Route>),
    /// The address at which it can be reached.
    Listening { address: SocketAddr },
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("dashboard", of::<DashboardPrinted>())];

impl Dashboard {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        if self.routes {
            let all = routes().map(|it| Route { method: it.method, path: it.path, needs: it.needs.as_str() });
            cx.output.show(&DashboardPrinted::Routes(all.collect()), |_| {
                let rows = routes().map(|it| [it.method, it.path, it.needs.as_str()]);
                output::table(&["method", "path", "right"], rows)
            })?;
            return Ok(Exit::Done);
        }
        let mut dashboard = dashboard(cx.mq.clone());
        if let Some(path) = &self.users {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            dashboard = dashboard.users(Users::parse(&text)?);
        }
        if self.read_only {
            dashboard = dashboard.at_most(Permission::Read);
        }
        dashboard = dashboard.audit_topic((!self.no_audit_topic).then_some(self.audit_topic))?;
        dashboard = dashboard.late_after(self.late_after);
        dashboard = self.origin.into_iter().fold(dashboard, millstream_dashboard::Dashboard::origin);
        dashboard = dashboard.trusted_proxies(self.trusted_proxy.iter().map(String::as_str))?;
        if self.trust_loopback {
            dashboard = dashboard.trust_loopback(true);
        }
        let rules = self.redact;
        dashboard = dashboard.redact(move |origin| {
            let hidden = rules.iter().filter(|rule| rule.is_for(origin)).map(|rule| &rule.hidden);
            hidden.fold(Redaction::none(), Redaction::and)
        });
        // From now on signals do not end the process.
        let stopped = context::stopped();
        tokio::pin!(stopped);
        if context::is_ready(&mut stopped).await? {
            return Ok(Exit::Done);
        }
        let server = dashboard.serve(self.address).await?;
        let address = server.address();
        cx.output.show(&DashboardPrinted::Listening { address }, |_| format!("http://{address}/"))?;
        stopped.await?;
        server.shutdown().await;
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_redaction_are_read() {
        let rule: Rule = "payments=payload,key,header:token".parse().expect("a rule");
        assert_eq!(rule.hidden, Redaction::none().payload().key().header("token"));
        let payments = "payments".parse().expect("a name");
        let orders = "orders".parse().expect("a name");
        assert!(rule.is_for(Origin::Topic(&payments)) && !rule.is_for(Origin::Topic(&orders)));
        let all: Rule = "*=headers".parse().expect("a rule");
        assert!(all.is_for(Origin::Topic(&orders)) && all.hidden == Redaction::none().headers());
        for bad in ["payments", "pay ments=key", "payments=", "payments=body", "payments=header:", "=key"] {
            assert!(bad.parse::<Rule>().is_err(), "{bad}");
        }
    }
}
