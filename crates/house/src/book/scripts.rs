//! The reference of the Lua scripts, from their headers.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use crate::tree::files;

const HEAD: &str = "# Scripts

Made from the headers of the files in `lua`. Rules that all of them keep: [the protocol](protocol.md#scripts). All keys of a call are in one
slot. Parts are functions that several scripts share: a script is sent with those that it includes in front.

| script | what it does |
|---|---|
";

/// What a header says.
#[derive(Default)]
struct Header {
    purpose: String,
    /// Rows of keys and arguments: place, name, meaning.
    rows: Vec<[String; 3]>,
    includes: String,
    returns: String,
}

pub(super) fn page() -> Result<String> {
    let (mut page, mut sections) = (HEAD.to_owned(), String::new());
    let mut count = 0;
    let all = files();
    let scripts = all.iter().filter(|(path, _)| path.ends_with(".lua") && path.starts_with("lua/"));
    for (path, text) in scripts.filter(|(path, _)| !path.starts_with("lua/parts/")) {
        let name = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".lua");
        let Header { purpose, rows, includes, returns } = header(name, text);
        ensure!(!purpose.is_empty() && !returns.is_empty(), "{path} has no header");
        let _ = writeln!(page, "| [`{name}`](#{name}) | {} |", cell(&purpose));
        let _ =
            write!(sections, "\n## {name}\n\n`{path}`: {}\n\n| | name | |\n|---|---|---|\n", shown(&purpose));
        for [place, name, meaning] in rows {
            let _ = writeln!(sections, "| `{place}` | `{name}` | {} |", cell(&meaning));
        }
        let _ = writeln!(sections, "\nReturns {}", shown(&returns));
        if !includes.is_empty() {
            let _ = writeln!(sections, "\nParts: {includes}");
        }
        count += 1;
    }
    ensure!(count > 50, "only {count} scripts");
    Ok(page + &sections)
}

fn cell(text: &str) -> String {
    shown(text).replace('|', "\\|")
}

/// The text with what would be a tag of HTML as text; in code it is text anyway.
fn shown(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() })
        .collect::<Vec<_>>()
        .join("`")
}

/// Reads the comment at the beginning of a script. A line that begins no part of its own continues the one before.
fn header(name: &str, text: &str) -> Header {
    let mut header = Header::default();
    let lines = text.lines().map_while(|line| line.strip_prefix("-- "));
    for line in lines {
        if let Some(purpose) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")) {
            header.purpose = purpose.to_owned();
        } else if let Some((place, rest)) = line.split_once("] ").filter(|_| is_place(line)) {
            let (name, meaning) = rest.split_once(' ').unwrap_or((rest, ""));
            header.rows.push([format!("{place}]"), name.to_owned(), meaning.to_owned()]);
        } else if let Some(parts) = line.strip_prefix("include ") {
            header.includes = parts.to_owned();
        } else if let Some(returns) = line.strip_prefix("returns ") {
            header.returns = returns.to_owned();
        } else {
            let last = if !header.returns.is_empty() {
                &mut header.returns
            } else if let Some([.., meaning]) = header.rows.last_mut() {
                meaning
            } else {
                &mut header.purpose
            };
            last.push(' ');
            *last += line;
        }
    }
    header
}

fn is_place(line: &str) -> bool {
    line.starts_with("KEYS[") || line.starts_with("ARGV[")
}

#[cfg(test)]
mod tests {
    use super::header;

    #[test]
    fn a_header_is_read_with_lines_that_continue() {
        let text = "-- f: does it.\n-- KEYS[1] log STREAM the log,\n-- of all\n-- ARGV[1] who the token\n-- include clock\n-- returns 1,\n-- or 0\nlocal a = 1\n";
        let found = header("f", text);
        assert_eq!((found.purpose.as_str(), found.returns.as_str()), ("does it.", "1, or 0"));
        assert_eq!(found.rows[0], ["KEYS[1]", "log", "STREAM the log, of all"].map(str::to_owned));
        assert_eq!((found.rows.len(), found.includes.as_str()), (2, "clock"));
    }
}
