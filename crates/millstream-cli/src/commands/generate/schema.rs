//! `millstream schema`: schemas of the JSON output.

use anyhow::Result;
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::commands::schemas;
use crate::exit::{Exit, Usage};
use crate::output::Output;

/// Prints the JSON Schema of each line that a command prints with --json
///
/// Without a command it lists all commands. The page "JSON output" of the book describes the fields of each.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream schema
  millstream schema topic list
  millstream schema lag > lag.schema.json")]
pub(crate) struct SchemaArgs {
    /// The words of the command
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum SchemaView {
    Commands {
        commands: Vec<&'static str>,
    },
    Schema {
        /// The schema of a line of the command.
        schema: Value,
    },
}

impl SchemaArgs {
    pub(crate) fn run(self, output: Output) -> Result<Exit> {
        let view = if self.words.is_empty() {
            SchemaView::Commands { commands: schemas::commands().collect() }
        } else {
            let command = self.words.join(" ");
            let Some(schema) = schemas::line(&command) else {
                let why = format!("there is no command {command:?}: `millstream schema` lists them");
                return Err(Usage(why).into());
            };
            SchemaView::Schema { schema: schema.into() }
        };
        output.show(&view, |view| match view {
            SchemaView::Commands { commands } => commands.join("\n"),
            SchemaView::Schema { schema } => format!("{schema:#}"),
        })?;
        Ok(Exit::Done)
    }
}
