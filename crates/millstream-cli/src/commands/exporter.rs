//! `millstream exporter`: serves metrics, probes and lags of a server over HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::crates::core::QueueName;
use millstream::metrics::{Metrics, MetricsConfig, Sampler, SamplerConfig, ServerConfig};
use millstream::{ErrorKind, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::schemas::{Table, of};
use crate::context::{self, Context};
use crate::exit::Exit;
use crate::parse;

/// Serves metrics of topics, groups and delay queues to Prometheus, and lags to autoscalers
///
/// `/metrics` has the figures that are read from the server (lag, pending, dead letters, members, …), `/lag` and
/// `/lag/TOPIC/GROUP` the lags as JSON, `/livez` and `/readyz` are probes. Figures of producers and handlers are counted
/// by the programs in which they run, and served there.
///
/// There is no authentication: whoever can reach the address can read names and figures. Run one or two exporters for
/// each server: all of them return the same. It changes nothing on the server, and ends with a signal.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream exporter
  millstream exporter --address 0.0.0.0:9464 --interval 30s
  millstream exporter --once | grep '^millstream_backlog'")]
pub(crate) struct Exporter {
    /// Address to listen on; port 0 for any free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9464")]
    address: SocketAddr,
    /// Interval between two reads of the server, at least 100ms
    #[arg(long, value_parser = parse::reads, value_name = "TIME", default_value = "15s")]
    interval: Duration,
    /// Reads this topic only; can be repeated. Default: all topics
    #[arg(long, value_name = "NAME")]
    topic: Vec<TopicName>,
    /// Reads this delay queue only; can be repeated. Default: all delay queues, or none if topics are named
    #[arg(long, value_name = "NAME")]
    queue: Vec<QueueName>,
    /// Maximum number of series of one metric: beyond it the groups with the least work have none, and `millstream_left_out` counts
    /// them
    #[arg(long, value_name = "N", value_parser = parse::limit, default_value = "1000")]
    max_series: usize,
    /// Reads the server once, prints the metrics and ends
    #[arg(long, conflicts_with = "address")]
    once: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum ExporterPrinted {
    /// The address at which it can be reached.
    Listening { address: SocketAddr },
    /// With --once: what `/metrics` would answer.
    Rendered { metrics: String },
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("exporter", of::<ExporterPrinted>())];

impl Exporter {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        // They may be created later, so that is no error while it runs; and none of a name that is wrong would ever be told.
        for topic in &self.topic {
            if let Err(error) = cx.admin().topic(topic).await
                && error.kind() == ErrorKind::NotFound
            {
                if self.once {
                    return Err(error.into());
                }
                cx.output.note(&format!("{error}: it has no figures until it is created"));
            }
        }
        let metrics = Metrics::with(&MetricsConfig::default().max_series(self.max_series))?;
        if self.once {
            let sampler = Sampler::new(cx.mq.backend().clone(), metrics.observer(), self.sampler())?;
            let read = sampler.run_once().await;
            if let Err(error) = &read
                && error.is_transient()
            {
                return Err(error.clone().into());
            }
            let text = metrics.render();
            cx.output.show(&ExporterPrinted::Rendered { metrics: text.clone() }, |_| text)?;
            // What cannot be read is not a number, and does not prevent the others from being shown.
            return read.map(|()| Exit::Done).map_err(Into::into);
        }
        let stopped = context::stopped();
        let config = ServerConfig::default().address(self.address).sampler(self.sampler());
        let server = metrics.serve(cx.mq.backend(), config).await?;
        let address = server.address();
        cx.output.show(&ExporterPrinted::Listening { address }, |_| format!("http://{address}/metrics"))?;
        stopped.await?;
        server.shutdown().await;
        Ok(Exit::Done)
    }

    fn sampler(&self) -> SamplerConfig {
        let all = SamplerConfig::default().interval(self.interval);
        if self.topic.is_empty() && self.queue.is_empty() {
            return all;
        }
        all.topics(self.topic.iter().cloned()).queues(self.queue.iter().cloned())
    }
}
