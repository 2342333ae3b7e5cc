//! `millstream doctor`: checks the state of the server.

use anyhow::Result;
use clap::Args;
use millstream::admin::{Level, Report};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::message::sanitize;
use crate::commands::schemas::{Table, of};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Output, Tone};

/// Checks each server: version, persistence, memory, permissions, clock, …; the worst result first
///
/// The exit code is 3 if there is an error; with --strict also if there is a warning.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream doctor
  millstream doctor --strict --json | jq '.data.reports[] | select(.level != \"ok\")'")]
pub(crate) struct Doctor {
    /// Treats warnings as errors
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DoctorView {
    sound: bool,
    reports: Vec<ReportView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReportView {
    /// `ok`, `warn` or `error`.
    #[schemars(extend("enum" = ["ok", "warn", "error"]))]
    level: String,
    /// Address of the server that it is about, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    node: Option<String>,
    subject: String,
    found: String,
    /// Empty if no action is needed.
    advice: String,
}

impl DoctorView {
    fn text(&self, output: Output) -> String {
        let width = self.reports.iter().map(|report| report.subject.len()).max().unwrap_or(0);
        let mut text = String::new();
        for ReportView { level, node, subject, found, advice } in &self.reports {
            let tone = match level.as_str() {
                "ok" => Tone::Good,
                "warn" => Tone::Doubtful,
                _ => Tone::Bad,
            };
            let level = output.paint(tone, &format!("{level:5}"));
            let found = node.iter().fold(found.clone(), |found, node| format!("{node}: {found}"));
            let found = sanitize::text(found.as_bytes());
            text += &format!("{level}  {subject:width$}  {found}\n");
            if !advice.is_empty() {
                text += &format!("{:7}{:width$}  {advice}\n", "", "");
            }
        }
        text
    }
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("doctor", of::<DoctorView>())];

impl Doctor {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let reports = cx.admin().doctor().await?;
        let allowed = if self.strict { Level::Ok } else { Level::Warn };
        let sound = reports.iter().all(|report| report.level <= allowed);
        let view = |Report { level, node, subject, found, advice }| ReportView {
            level: level.to_string(),
            node,
            subject,
            found,
            advice,
        };
        let view = DoctorView { sound, reports: reports.into_iter().map(view).collect() };
        cx.output.show(&view, |view| view.text(cx.output))?;
        Ok(if sound { Exit::Done } else { Exit::Wrong })
    }
}
