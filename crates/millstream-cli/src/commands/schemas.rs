//! Schemas of the JSON output: which data each command prints, and the schema of its lines.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

#[cfg(feature = "dashboard")]
use crate::commands::dashboard;
#[cfg(feature = "exporter")]
use crate::commands::exporter;
#[cfg(feature = "keda")]
use crate::commands::scaler;
use crate::commands::scheduled::{delayed, retries, schedule};
#[cfg(feature = "top")]
use crate::commands::top;
use crate::commands::{
    batch, consume, dlq, doctor, generate, group, lag, limits, lock, memory, message, owners, pending, plan,
    produce, queue, tail, topic, verify,
};
use crate::envelope::{self, ErrorView};

/// The schema of a type; `None` for a command that prints no data as JSON.
pub(in crate::commands) type Data = Option<fn(&mut SchemaGenerator) -> Schema>;

/// Commands by their paths, with the data that they print.
pub(in crate::commands) type Table = &'static [(&'static str, Data)];

/// Returns the schema of a type.
pub(in crate::commands) const fn of<T: JsonSchema>() -> Data {
    Some(T::json_schema)
}

/// All commands, each once.
const TABLES: &[Table] = &[
    topic::DATA,
    group::DATA,
    lag::DATA,
    owners::DATA,
    pending::DATA,
    retries::DATA,
    message::find::DATA,
    message::follow::DATA,
    message::status::DATA,
    message::cancel::DATA,
    message::steps::DATA,
    memory::DATA,
    dlq::DATA,
    verify::DATA,
    doctor::DATA,
    produce::DATA,
    tail::DATA,
    consume::DATA,
    delayed::DATA,
    schedule::DATA,
    queue::DATA,
    queue::dead::DATA,
    batch::DATA,
    limits::DATA,
    lock::DATA,
    #[cfg(feature = "top")]
    top::DATA,
    #[cfg(feature = "exporter")]
    exporter::DATA,
    #[cfg(feature = "keda")]
    scaler::DATA,
    #[cfg(feature = "dashboard")]
    dashboard::DATA,
    plan::DATA,
    generate::DATA,
];

fn entries() -> impl Iterator<Item = (&'static str, Data)> {
    TABLES.iter().flat_map(|table| table.iter().copied())
}

/// Returns the paths of all commands.
pub(crate) fn commands() -> impl Iterator<Item = &'static str> {
    entries().map(|(command, _)| command)
}

/// Returns the schema of the data that a command prints; `None` if it prints none, or does not exist.
pub(crate) fn data(command: &str) -> Option<Schema> {
    let (_, data) = entries().find(|(name, _)| *name == command)?;
    data.map(make)
}

/// Returns the schema of each line that a command prints; `None` if there is no such command.
pub(crate) fn line(command: &str) -> Option<Schema> {
    let (_, data) = entries().find(|(name, _)| *name == command)?;
    Some(envelope::schema(command, data.map(make).as_ref(), &error()))
}

/// Returns the schema of an error.
pub(crate) fn error() -> Schema {
    make(ErrorView::json_schema)
}

fn make(of: fn(&mut SchemaGenerator) -> Schema) -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        // A reader finds everything in place, and no type refers to itself.
        settings.inline_subschemas = true;
    });
    let mut schema: Value = of(&mut settings.into_generator()).into();
    close(&mut schema, false);
    schema.try_into().unwrap_or_default()
}

/// Refuses fields that are not in the schema of an object. Where alternatives add fields to those of an object (`is_part`),
/// only what no alternative knows is refused.
fn close(value: &mut Value, is_part: bool) {
    let object = match value {
        Value::Object(object) => object,
        Value::Array(values) => return values.iter_mut().for_each(|value| close(value, is_part)),
        _ => return,
    };
    const ALTERNATIVES: [&str; 3] = ["oneOf", "anyOf", "allOf"];
    let has_fields = object.contains_key("properties");
    let has_alternatives = ALTERNATIVES.iter().any(|key| object.contains_key(*key));
    for (key, value) in object.iter_mut() {
        match key.as_str() {
            // Names of fields, whatever they are.
            "properties" | "patternProperties" => {
                value.as_object_mut().into_iter().flatten().for_each(|(_, field)| close(field, false));
            }
            key if ALTERNATIVES.contains(&key) => close(value, is_part || has_fields),
            _ => close(value, false),
        }
    }
    if has_fields && !is_part {
        let refused = if has_alternatives { "unevaluatedProperties" } else { "additionalProperties" };
        object.entry(refused).or_insert(Value::Bool(false));
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;

    /// Adds the paths of the commands that have no others beneath.
    fn leaves(command: &Command, path: &str, into: &mut Vec<String>) {
        for beneath in command.get_subcommands().filter(|it| !it.is_hide_set()) {
            let path = format!("{path} {}", beneath.get_name());
            if beneath.has_subcommands() {
                leaves(beneath, &path, into);
            } else {
                into.push(path.trim().to_owned());
            }
        }
    }

    #[test]
    fn every_command_has_its_schema() {
        let mut there = Vec::new();
        leaves(&crate::Cli::command(), "", &mut there);
        let mut listed: Vec<_> = commands().collect();
        there.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, there);
        assert!(line("topic list").is_some() && line("topic").is_none());
    }

    #[test]
    fn objects_refuse_what_they_do_not_know() {
        let mut schema = serde_json::json!({
            "anyOf": [
                {"properties": {"properties": {"type": "object", "properties": {"a": {}}}}},
                {"properties": {"b": {}}, "oneOf": [{"properties": {"c": {}}}, {"required": ["b"]}]},
            ],
        });
        close(&mut schema, false);
        let expected = serde_json::json!({
            "anyOf": [
                {
                    "properties": {
                        "properties": {"type": "object", "properties": {"a": {}}, "additionalProperties": false},
                    },
                    "additionalProperties": false,
                },
                {
                    "properties": {"b": {}},
                    "oneOf": [{"properties": {"c": {}}}, {"required": ["b"]}],
                    "unevaluatedProperties": false,
                },
            ],
        });
        assert_eq!(schema, expected);
    }
}
