//! `millstream scaler`: an external scaler of KEDA.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream_keda::{Scaler as Server, Trigger};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::schemas::{Table, of};
use crate::context::{self, Context};
use crate::exit::Exit;
use crate::{human, parse};

/// Serves the backlog of groups to KEDA, which scales Kubernetes deployments by it and starts them from zero
///
/// It is an external scaler (gRPC over plain HTTP/2) for triggers of the types `external-push`, which starts the first replica as soon as
/// there is a message, and `external`. The metadata of a trigger are `topic`, `group`, `targetValue` (the backlog for each replica)
/// and `activationTargetValue` (the backlog above which the first replica is started, 0 by default).
///
/// The backlog is all remaining work, as `millstream lag` shows it: messages that were never handed out, that are handed out and not
/// settled, that wait for a retry, and delayed messages that are due.
///
/// There is no authentication: whoever can reach the address can read backlogs. It changes nothing on the server, and ends with a signal.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream scaler --address 0.0.0.0:9466
  millstream scaler --check topic=orders,group=billing,targetValue=100")]
pub(crate) struct Scaler {
    /// Address to listen on; port 0 for any free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9466")]
    address: SocketAddr,
    /// Interval between two reads of a group that is watched, at least 100ms
    #[arg(long, value_parser = parse::reads, value_name = "TIME", default_value = "1s")]
    interval: Duration,
    /// Prints what a trigger with these metadata is answered, and ends
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', value_parser = pair, conflicts_with_all = ["address", "interval"])]
    check: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or("it is KEY=VALUE,…: topic=orders,group=billing,targetValue=100")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum ScalerPrinted {
    /// The address at which it can be reached.
    Listening { address: SocketAddr },
    /// With --check.
    Checked {
        /// Whether at least one replica has to run.
        active: bool,
        /// All work of the group.
        backlog: u64,
        /// The backlog for each replica.
        target: u32,
    },
}

impl ScalerPrinted {
    fn text(&self) -> String {
        match self {
            Self::Listening { address } => address.to_string(),
            Self::Checked { active, backlog, target } => {
                let active = if *active { "active" } else { "not active" };
                let replicas = human::of(backlog.div_ceil((*target).into()), "replica", "replicas");
                let backlog = human::count(*backlog);
                let target = human::count((*target).into());
                format!(
                    "{active}: backlog {backlog}, target {target}: {replicas}, between the minimum and the maximum"
                )
            }
        }
    }
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("scaler", of::<ScalerPrinted>())];

impl Scaler {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let scaler = Server::new(cx.mq.backend()).interval(self.interval);
        if !self.check.is_empty() {
            let trigger = Trigger::from_metadata(self.check)?;
            let activity = scaler.read(&trigger).await?;
            let (active, backlog, target) = (activity.is_active, activity.backlog, trigger.target.get());
            cx.output.show(&ScalerPrinted::Checked { active, backlog, target }, ScalerPrinted::text)?;
            return Ok(Exit::Done);
        }
        // From now on signals do not end the process.
        let stopped = context::stopped();
        tokio::pin!(stopped);
        if context::is_ready(&mut stopped).await? {
            return Ok(Exit::Done);
        }
        let server = scaler.serve(self.address).await?;
        cx.output.show(&ScalerPrinted::Listening { address: server.address() }, ScalerPrinted::text)?;
        stopped.await?;
        server.shutdown().await;
        Ok(Exit::Done)
    }
}
