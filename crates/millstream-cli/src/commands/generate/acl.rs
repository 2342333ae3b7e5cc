//! `millstream acl`: rules of access for users of the server.

use anyhow::Result;
use clap::{Args, ValueEnum};
use millstream::{Access, TopicName, acl};
use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::Exit;
use crate::global::Global;
use crate::output::Output;

/// Prints the command that creates a user of the server with the least rights
///
/// Nothing is changed: run what is printed as an administrator of the server, on every node of a cluster, or put it into its
/// ACL file behind `user` instead of `ACL SETUSER`. The user has no password yet: add `>password` or `#` and its SHA-256.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream acl producer --topic orders
  millstream acl worker --topic orders --topic refunds --as-user billing
  millstream --namespace shop acl read-only | redis-cli")]
pub(crate) struct Acl {
    /// What the user is for
    access: Use,
    /// Topic that the user may touch; may be given several times. Default: all topics and delay queues of the namespace
    #[arg(long, short, value_name = "TOPIC")]
    topic: Vec<TopicName>,
    /// Adds the right to WAITAOF, which sends with the durability `fsynced` need. Servers before 7.2 do not know it
    #[arg(long)]
    fsynced: bool,
    /// Name of the user. Default: the use
    #[arg(long, value_name = "NAME", id = "name")]
    as_user: Option<String>,
}

/// What a user is for.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Use {
    /// Sends messages, also scheduled and recurring ones
    Producer,
    /// Sends messages, also with unique ids and to packed topics: may therefore read and write the logs and the retries of all groups
    UniqueProducer,
    /// Handles messages, with retries, dead letters and upkeep; may also send
    Worker,
    /// Takes locks and leads elections; the topics do not matter
    Locks,
    /// Looks and changes, as this command does
    Admin,
    /// Looks
    ReadOnly,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct AclView {
    user: String,
    rules: Vec<String>,
}

impl Acl {
    pub(crate) fn run(self, global: &Global, output: Output) -> Result<Exit> {
        let (access, name) = match self.access {
            Use::Producer => (Access::Producer, "producer"),
            Use::UniqueProducer => (Access::UniqueProducer, "unique-producer"),
            Use::Worker => (Access::Worker, "worker"),
            Use::Locks => (Access::Locks, "locks"),
            Use::Admin => (Access::Admin, "admin"),
            Use::ReadOnly => (Access::ReadOnly, "read-only"),
        };
        let namespace = global.namespace()?;
        let mut rules = acl(access, namespace.as_ref(), &self.topic);
        if self.fsynced {
            rules.push("+waitaof".to_owned());
        }
        let user = self.as_user.unwrap_or_else(|| format!("millstream-{name}"));
        output.show(&AclView { user, rules }, |view| {
            format!("ACL SETUSER {} reset on {}\n", view.user, view.rules.join(" "))
        })?;
        Ok(Exit::Done)
    }
}
