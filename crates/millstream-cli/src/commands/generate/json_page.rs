//! `millstream markdown json`: prints the page of the JSON output, a page of the book. Like `millstream markdown`, it is
//! for developers of the commands.

use std::collections::BTreeMap;

use anyhow::Result;
use schemars::Schema;
use serde_json::{Map, Value};

use crate::commands::schemas;
use crate::exit::Exit;
use crate::output::Output;

const HEAD: &str = include_str!("json_page.md");

/// Prints the page.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn run(output: Output) -> Result<Exit> {
    output.write(&page())?;
    Ok(Exit::Done)
}

fn page() -> String {
    let mut text = HEAD.replace("ERROR_FIELDS", table(&schemas::error()).trim_end());
    for (commands, data) in sections(schemas::commands().map(|command| (command, schemas::data(command)))) {
        text += &format!("\n### {}\n\n", commands.join(", "));
        match data {
            Some(data) => {
                let about = about(data.as_value());
                if !about.is_empty() {
                    text += &format!("{about}\n\n");
                }
                text += &table(&data);
            }
            None => text += "No data: only an error is printed as JSON.\n",
        }
    }
    text
}

/// Joins the commands that print the same data.
fn sections<'a>(all: impl Iterator<Item = (&'a str, Option<Schema>)>) -> Vec<(Vec<&'a str>, Option<Schema>)> {
    let mut sections: Vec<(Vec<&str>, Option<Schema>)> = Vec::new();
    for (command, data) in all {
        match sections.iter_mut().find(|(_, known)| *known == data) {
            Some((commands, _)) => commands.push(command),
            None => sections.push((vec![command], data)),
        }
    }
    sections
}

/// A field of the data: its types, whether it is always there, and its description.
#[derive(Debug, Default, PartialEq, Eq)]
struct PageField {
    types: Vec<String>,
    optional: bool,
    about: String,
}

/// Formats the fields of a value, each in a row.
fn table(schema: &Schema) -> String {
    let mut fields = Fields::default();
    fields.read(".", schema.as_value(), false);
    let mut text = "| field | type | |\n|---|---|---|\n".to_owned();
    for path in &fields.order {
        let PageField { types, optional, about } = &fields.all[path];
        // Said above the table.
        if path == "." && types.as_slice() == ["object"] {
            continue;
        }
        let absent = if *optional { ", may be absent" } else { "" };
        text += &format!("| `{path}` | {}{absent} | {} |\n", types.join(" or "), about.replace('|', "\\|"));
    }
    text
}

/// The fields that were found, in the order of the schema.
#[derive(Debug, Default)]
struct Fields {
    order: Vec<String>,
    all: BTreeMap<String, PageField>,
}

impl Fields {
    fn read(&mut self, path: &str, schema: &Value, optional: bool) {
        self.add(path, schema, optional);
        self.beneath(path, schema, false);
    }

    /// Adds a field; one that is in several alternatives has the types of all.
    fn add(&mut self, path: &str, schema: &Value, optional: bool) {
        if !self.all.contains_key(path) {
            self.order.push(path.to_owned());
        }
        let field = self.all.entry(path.to_owned()).or_default();
        field.optional |= optional;
        for name in types(schema) {
            if !field.types.contains(&name) {
                field.types.push(name);
            }
        }
        if field.about.is_empty() {
            field.about = about(schema);
        }
    }

    /// Adds the fields of an object, or of the items of an array.
    fn beneath(&mut self, path: &str, schema: &Value, optional: bool) {
        let Some(object) = schema.as_object() else { return };
        let base = path.trim_end_matches('.');
        if let Some(properties) = object.get("properties").and_then(Value::as_object) {
            let required = object.get("required").and_then(Value::as_array);
            for (name, property) in properties {
                let is_required = required.is_some_and(|all| all.iter().any(|it| it == name));
                self.read(&format!("{base}.{name}"), property, optional || !is_required);
            }
        }
        for values in map_values(object) {
            self.read(&format!("{base}.*"), values, true);
        }
        if let Some(items) = object.get("items").filter(|items| items.is_object()) {
            let path = if path == "." { ".[]".to_owned() } else { format!("{path}[]") };
            if items.get("properties").is_none() && items.get("anyOf").is_none() {
                // The type of the array says it.
                self.beneath(&path, items, false);
            } else {
                self.read(&path, items, false);
            }
        }
        let alternatives: Vec<&Value> = alternatives(object).filter(|it| !is_null(it)).collect();
        for alternative in &alternatives {
            self.beneath(path, alternative, optional || alternatives.len() > 1);
        }
    }
}

fn alternatives(object: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let lists = ["anyOf", "oneOf"].into_iter().filter_map(|key| object.get(key)?.as_array());
    lists.flatten()
}

/// Returns the schemas of the values of an object whose names are data.
fn map_values(object: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let additional = object.get("additionalProperties").filter(|values| values.is_object());
    let patterns = object.get("patternProperties").and_then(Value::as_object);
    additional.into_iter().chain(patterns.into_iter().flat_map(Map::values))
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|it| it == "null")
}

/// Returns the names of the types that a value may have.
fn types(schema: &Value) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |name: String| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    match schema.get("type") {
        Some(Value::String(name)) => add(type_name(name, schema)),
        Some(Value::Array(all)) => {
            all.iter().filter_map(Value::as_str).for_each(|name| add(type_name(name, schema)));
        }
        _ if schema.as_object().is_some_and(|object| alternatives(object).next().is_some()) => {
            let all = schema.as_object().into_iter().flat_map(alternatives);
            all.flat_map(types).for_each(add);
        }
        _ => add("any".to_owned()),
    }
    names
}

fn type_name(name: &str, schema: &Value) -> String {
    match schema.get("items") {
        Some(items) if name == "array" => format!("array of {}", types(items).join(" or ")),
        _ => name.to_owned(),
    }
}

fn about(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use schemars::json_schema;

    use super::*;

    #[test]
    fn commands_with_the_same_data_have_one_section() {
        let (text, number) = (json_schema!({ "type": "string" }), json_schema!({ "type": "integer" }));
        let all =
            [("a", Some(text.clone())), ("b", None), ("c", Some(number.clone())), ("d", Some(text.clone()))];
        let expected = [(vec!["a", "d"], Some(text)), (vec!["b"], None), (vec!["c"], Some(number))];
        assert_eq!(sections(all.into_iter()), expected);
    }

    #[test]
    fn a_row_has_the_path_the_types_and_the_description_of_a_field() {
        let schema = json_schema!({
            "type": "object",
            "properties": {
                "total": { "type": ["integer", "null"], "description": "Sum\nof all." },
                "topics": {
                    "type": "array",
                    "items": {
                        "anyOf": [
                            { "type": "object", "properties": { "lag": { "type": "integer" } }, "required": ["lag"] },
                            { "type": "object", "properties": { "error": { "type": "string" } } },
                        ],
                    },
                },
                "growth": { "anyOf": [
                    { "type": "object", "properties": { "ms": { "type": "integer" } }, "required": ["ms"] },
                    { "type": "null" },
                ] },
                "ids": { "type": "array", "items": { "type": "string" } },
                "counts": { "type": "object", "additionalProperties": { "type": "integer" } },
            },
            "required": ["total", "topics", "growth", "ids", "counts"],
        });
        let expected = [
            "| field | type | |",
            "|---|---|---|",
            "| `.total` | integer or null | Sum of all. |",
            "| `.topics` | array of object |  |",
            "| `.topics[]` | object |  |",
            "| `.topics[].lag` | integer, may be absent |  |",
            "| `.topics[].error` | string, may be absent |  |",
            "| `.growth` | object or null |  |",
            "| `.growth.ms` | integer |  |",
            "| `.ids` | array of string |  |",
            "| `.counts` | object |  |",
            "| `.counts.*` | integer, may be absent |  |",
        ];
        assert_eq!(table(&schema).lines().collect::<Vec<_>>(), expected);
    }
}
