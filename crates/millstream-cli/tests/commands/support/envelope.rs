//! The envelope of JSON output. Each line that a test reads is held against the schema of its command, as the command
//! itself prints it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

use crate::support::cli::{Ran, bare};

/// What stands in a line.
#[derive(Debug)]
pub(crate) enum Line {
    Data(Value),
    Error(Value),
}

/// The path of the command, and the content of the line.
#[track_caller]
pub(crate) fn read(line: &str) -> (String, Line) {
    let mut value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let command = value["command"].as_str().unwrap_or_else(|| panic!("no envelope: {line}")).to_owned();
    let wrong: Vec<_> = errors(&command, &value);
    assert!(wrong.is_empty(), "{command}: not as its schema says: {}: {line}", wrong.join("; "));
    let content = match value.get_mut("data") {
        Some(data) => Line::Data(data.take()),
        None => Line::Error(value["error"].take()),
    };
    (command, content)
}

/// The data of each line, none of which is an error.
#[track_caller]
pub(crate) fn lines(text: &str) -> Vec<Value> {
    let (data, error) = parts(text);
    assert!(error.is_none(), "an error: {text}");
    data
}

/// The data of all lines, and the error in the last one.
#[track_caller]
pub(crate) fn parts(text: &str) -> (Vec<Value>, Option<Value>) {
    let (mut all, mut failed) = (Vec::new(), None);
    for line in text.lines() {
        assert!(failed.is_none(), "a line behind an error: {text}");
        match read(line).1 {
            Line::Data(data) => all.push(data),
            Line::Error(error) => failed = Some(error),
        }
    }
    (all, failed)
}

/// The data of the only line.
#[track_caller]
pub(crate) fn data(text: &str) -> Value {
    let mut all = lines(text);
    assert_eq!(all.len(), 1, "one value: {text}");
    all.remove(0)
}

/// Holds that the schema refuses the line with a field more, without one that is required, and with a value of another type.
#[track_caller]
pub(crate) fn is_strict(line: &str) {
    let value: Value = serde_json::from_str(line).expect("JSON");
    let command = value["command"].as_str().expect("a command").to_owned();
    let validator = validator(&command);
    let mut objects = Vec::new();
    find_objects(&value, "", &mut objects);
    let refuses = |wrong: &Value, what: &str| {
        assert!(validator.0.validate(wrong, validator.1).is_err(), "{command}: {what} passes: {wrong}");
    };
    for (path, names) in objects {
        let mut wrong = value.clone();
        wrong.pointer_mut(&path).expect("an object")["unknown"] = Value::Bool(true);
        refuses(&wrong, &format!("an unknown field in {path:?}"));
        for name in names {
            let mut wrong = value.clone();
            wrong.pointer_mut(&path).expect("an object")[&name] = serde_json::json!({ "another": ["type"] });
            refuses(&wrong, &format!("another type of {path}/{name}"));
        }
    }
    for name in ["version", "command", "data"] {
        let mut wrong = value.clone();
        wrong.as_object_mut().expect("an object").remove(name);
        refuses(&wrong, &format!("a line without {name}"));
    }
    let optional = OPTIONAL.iter().map(ToString::to_string).collect::<std::collections::BTreeSet<_>>();
    let required = value["data"].as_object().into_iter().flat_map(|data| data.keys());
    for name in required.filter(|name| !optional.contains(*name)) {
        let mut wrong = value.clone();
        wrong["data"].as_object_mut().expect("an object").remove(name);
        refuses(&wrong, &format!("data without {name}"));
    }
}

/// Fields of data that need not be there.
const OPTIONAL: [&str; 3] = ["attempt", "partition", "error"];

/// Finds the objects of a line with the names of their fields. Not those that are data of users or maps by name.
fn find_objects(value: &Value, path: &str, into: &mut Vec<(String, Vec<String>)>) {
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| find_objects(item, &format!("{path}/{at}"), into));
        }
        Value::Object(fields) => {
            let fixed = |name: &&String| !["payload", "headers", "schema"].contains(&name.as_str());
            let names: Vec<String> = fields.keys().filter(fixed).cloned().collect();
            let is_map = |name: &str| ["reasons", "shards"].contains(&name) || is_by_partition(name, fields);
            for name in names.iter().filter(|name| !is_map(name)) {
                find_objects(&fields[name], &format!("{path}/{name}"), into);
            }
            into.push((path.to_owned(), names));
        }
        _ => {}
    }
}

/// Whether a field is a map from partitions to numbers.
fn is_by_partition(name: &str, fields: &serde_json::Map<String, Value>) -> bool {
    name == "partitions" && fields[name].is_object()
}

/// What is wrong with a line of a command by its schema.
pub(crate) fn errors(command: &str, value: &Value) -> Vec<String> {
    let validator = validator(command);
    let all = |error: boon::ValidationError<'_, '_>| {
        let mut causes = vec![format!("{error:#}")];
        causes.extend(error.causes.iter().map(|cause| format!("{cause:#}")));
        causes
    };
    validator.0.validate(value, validator.1).err().map(all).unwrap_or_default()
}

/// The schema of a command, asked for once.
fn validator(command: &str) -> Arc<(Schemas, SchemaIndex)> {
    static KNOWN: Mutex<BTreeMap<String, Arc<(Schemas, SchemaIndex)>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("schema.json", schema(command)).expect("a name");
        // It is checked by what its `$schema` says.
        let index = compiler.compile("schema.json", &mut schemas);
        let index = index.unwrap_or_else(|error| panic!("{command}: {error}"));
        Arc::new((schemas, index))
    };
    known.entry(command.to_owned()).or_insert_with(make).clone()
}

/// What `millstream schema` prints of a command.
pub(crate) fn schema(command: &str) -> Value {
    // Wrong arguments may name no command, or one with others beneath: these print errors alone, as `man` does.
    let is_leaf = known().contains(command);
    let words = if is_leaf { command } else { "man" };
    let args: Vec<&str> = ["schema"].into_iter().chain(words.split(' ')).collect();
    let ran = Ran::of(&mut bare(&args));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{command}: {ran:?}");
    let text = if is_leaf {
        ran.stdout
    } else {
        ran.stdout.replace("\"const\": \"man\"", &format!("\"const\": {command:?}"))
    };
    serde_json::from_str(&text).expect("a schema")
}

/// The commands that have a schema.
pub(crate) fn known() -> std::collections::BTreeSet<String> {
    Ran::of(&mut bare(&["schema"])).stdout.lines().map(str::to_owned).collect()
}
