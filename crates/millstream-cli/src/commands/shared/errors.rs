//! Groups of errors with the same fingerprint, as several commands show them.

use millstream::Timestamp;
use millstream::crates::core::{ErrorGroup, ErrorGroups};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::message::sanitize;
use crate::{human, output};

/// The errors of dead letters or dead tasks.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct ErrorsView<E> {
    /// The number of letters or tasks.
    count: u64,
    /// The number of different errors; a lower bound if there are `others`.
    different: usize,
    /// The number of letters or tasks whose errors are in no group, since there are too many different ones.
    others: u64,
    /// The groups, largest first.
    errors: Vec<Row<E>>,
}

/// A group of errors.
#[derive(Debug, Serialize, JsonSchema)]
struct Row<E> {
    fingerprint: String,
    /// The error without its variable parts.
    pattern: String,
    count: u64,
    #[schemars(with = "u64")]
    first_ms: Timestamp,
    #[schemars(with = "u64")]
    last_ms: Timestamp,
    /// The newest letter or task.
    example: E,
}

impl<E> ErrorsView<E> {
    /// Creates it with the first `limit` groups. `example` converts their examples.
    pub(in crate::commands) fn of<I>(groups: ErrorGroups<I>, limit: usize, example: impl Fn(I) -> E) -> Self {
        let (count, others) = (groups.count(), groups.others());
        let groups = groups.into_groups();
        let different = groups.len();
        let row = |group: ErrorGroup<I>| Row {
            fingerprint: group.fingerprint.to_string(),
            pattern: group.pattern,
            count: group.count,
            first_ms: group.first,
            last_ms: group.last,
            example: example(group.example),
        };
        let errors = groups.into_iter().take(limit).map(row).collect();
        Self { count, different, others, errors }
    }

    /// Formats a table of the groups.
    pub(in crate::commands) fn table(&self, example: impl Fn(&E) -> String) -> String {
        let row = |it: &Row<E>| {
            let error = if it.pattern.is_empty() { "(no error)" } else { &it.pattern };
            [
                it.fingerprint.clone(),
                human::count(it.count),
                human::time(it.first_ms),
                human::time(it.last_ms),
                example(&it.example),
                sanitize::line(error.as_bytes()),
            ]
        };
        let titles = ["fingerprint", ">count", "first", "last", "example", "error"];
        output::table(&titles, self.errors.iter().map(row))
    }

    /// Returns notes about what the table does not show.
    pub(in crate::commands) fn notes(&self, one: &str, many: &str) -> Vec<String> {
        let mut notes = Vec::new();
        let shown = self.errors.len();
        if shown < self.different {
            let (shown, all) =
                (human::count(shown as u64), human::of(self.different as u64, "error", "errors"));
            notes.push(format!("{shown} of {all}; --limit shows more"));
        }
        if self.others > 0 {
            let others = human::of(self.others, one, many);
            notes.push(format!(
                "{others} with other errors, which are not counted one by one: there are too many"
            ));
        }
        notes
    }
}
