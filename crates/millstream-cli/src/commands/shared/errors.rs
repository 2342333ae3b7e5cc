//! Groups of errors with the same fingerprint, as several commands show them.

use anyhow::Result;
use millstream::Timestamp;
use millstream::crates::core::{ErrorGroup, ErrorGroups};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::message::sanitize;
use crate::context::Context;
use crate::{human, output};

/// The errors of what failed.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct ErrorsView<E> {
    /// The number of items.
    count: u64,
    /// The number of different errors; a lower bound if there are `others`.
    different: usize,
    /// The number of items whose errors are in no group, since there are too many different ones.
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
    /// The newest item.
    example: E,
    #[serde(skip)]
    text: String,
}

impl<E> ErrorsView<E> {
    /// Creates it with the first `limit` groups. `example` converts their examples, to text and for programs.
    pub(in crate::commands) fn of<I>(
        groups: ErrorGroups<I>,
        limit: usize,
        example: impl Fn(I) -> (String, E),
    ) -> Self {
        let (count, others) = (groups.count(), groups.others());
        let groups = groups.into_groups();
        let different = groups.len();
        let row = |group: ErrorGroup<I>| {
            let (text, example) = example(group.example);
            let (fingerprint, pattern, count) = (group.fingerprint.to_string(), group.pattern, group.count);
            Row { fingerprint, pattern, count, first_ms: group.first, last_ms: group.last, example, text }
        };
        let errors = groups.into_iter().take(limit).map(row).collect();
        Self { count, different, others, errors }
    }

    /// Formats a table of the groups.
    fn table(&self) -> String {
        let row = |it: &Row<E>| {
            let error = if it.pattern.is_empty() { "(no error)" } else { &it.pattern };
            [
                it.fingerprint.clone(),
                human::count(it.count),
                human::time(it.first_ms),
                human::time(it.last_ms),
                sanitize::line(it.text.as_bytes()),
                sanitize::line(error.as_bytes()),
            ]
        };
        let titles = ["fingerprint", ">count", "first", "last", "example", "error"];
        output::table(&titles, self.errors.iter().map(row))
    }

    /// Shows the groups, and notes about what the table does not show.
    pub(in crate::commands) fn show(&self, cx: &Context, (one, many): (&str, &str)) -> Result<()>
    where
        E: Serialize,
    {
        cx.output.show(self, Self::table)?;
        let shown = self.errors.len();
        if shown < self.different {
            let (shown, all) =
                (human::count(shown as u64), human::of(self.different as u64, "error", "errors"));
            cx.output.note(&format!("{shown} of {all}; --limit shows more"));
        }
        if self.others > 0 {
            let others = human::of(self.others, one, many);
            let why = "which are not counted one by one: there are too many";
            cx.output.note(&format!("{others} with other errors, {why}"));
        }
        Ok(())
    }
}
