//! The reference of the keys, from the comments of `keys.rs`.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

use crate::tree::read;

const FILE: &str = "crates/millstream-core/src/keys.rs";

const HEAD: &str = "# Keys

Made from the comments of `crates/millstream-core/src/keys.rs`, which alone makes keys. What they hold: [the protocol](protocol.md).

`{T:p:I}` is partition `I` of the topic `T`, `{Q:q:I}` shard `I` of the delay queue `Q`, `{lock:s:I}` shard `I` of all locks: each is the
hash tag of the key. `PLACE` is a partition or a shard. A namespace is a prefix of every key: `shop:stream:topic:…`.

| key | type | holds | name in scripts and code |
|---|---|---|---|
";

/// What stands for the arguments of a key.
const ARGUMENTS: [(&str, &str); 14] = [
    ("Tag(tp)", "{T:p:I}"),
    ("Tag(&id.place)", "{T:p:I}"),
    ("PlaceTag(place)", "PLACE"),
    ("PlaceTag(&id.place)", "PLACE"),
    ("ShardTag(shard)", "{Q:q:I}"),
    ("LockTag(name)", "{lock:s:I}"),
    ("id.number", "NUMBER"),
    ("state.as_str()", "STATE"),
    ("Escaped(operation.id())", "ID"),
    ("{group}", "G"),
    ("{producer:032x}", "PRODUCER"),
    ("{topic}", "T"),
    ("{queue}", "Q"),
    ("{shard}", "I"),
];

pub(super) fn page() -> Result<String> {
    let source = read(FILE).context(FILE)?;
    let mut page = HEAD.to_owned();
    let (mut comment, mut name, mut rows) = (String::new(), String::new(), 0);
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("    /// ") {
            if !comment.is_empty() {
                comment.push(' ');
            }
            comment += text;
        } else if let Some(rest) = line.strip_prefix("    pub fn ") {
            rest.split('(').next().unwrap_or_default().clone_into(&mut name);
        } else if let Some((_, made)) = line.split_once("format_args!(\"") {
            // A pattern is no key.
            if !made.contains('*') && !name.is_empty() {
                let key = pattern(made);
                let (kind, holds) = comment.split_once(": ").unwrap_or(("", &comment));
                let _ = writeln!(page, "| `{key}` | {} | {} | `{name}` |", kind.to_lowercase(), plain(holds));
                rows += 1;
            }
        } else if line == "    }" {
            comment.clear();
            name.clear();
        }
        if line.starts_with("#[cfg(test)]") {
            break;
        }
    }
    ensure!(rows > 50, "{FILE} is written in another way: {rows} keys");
    Ok(page)
}

/// The key with a name in the place of each argument.
fn pattern(made: &str) -> String {
    let (text, rest) = made.split_once('"').unwrap_or((made, ""));
    let mut key = text.replace("{{", "\u{1}").replace("}}}", "}\u{2}").replace("}}", "\u{2}");
    for argument in rest.split(')').flat_map(|part| part.split(", ")).map(str::trim) {
        let known =
            ARGUMENTS.iter().find(|(code, _)| code.trim_end_matches(')') == argument.trim_end_matches(')'));
        if let Some((_, shown)) = known {
            key = match key.find("{}").map(|at| (at, 2)).or_else(|| key.find("{:032x}").map(|at| (at, 7))) {
                Some((at, length)) if key.find("{:032x}").is_none_or(|hex| at <= hex) => {
                    format!("{}{shown}{}", &key[..at], &key[at + length..])
                }
                _ => key.replacen("{:032x}", shown, 1),
            };
        }
    }
    for (code, shown) in ARGUMENTS {
        key = key.replace(code, shown);
    }
    key.replace('\u{1}', "{").replace('\u{2}', "}").replace("{reader}", "READER").replace("{name}", "NAME")
}

/// Links of a comment lead to code: their names stay.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain += before;
        let (name, after) = link.split_once(']').unwrap_or((link, ""));
        plain += name;
        rest =
            after.strip_prefix('(').and_then(|after| after.split_once(')')).map_or(after, |(_, after)| after);
    }
    (plain + rest).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn arguments_have_names() {
        assert_eq!(pattern("a:{}:{group}\", Tag(tp)))"), "a:{T:p:I}:G");
        assert_eq!(pattern("r:{}:{:032x}\", PlaceTag(&id.place), id.number))"), "r:PLACE:NUMBER");
        assert_eq!(pattern("q:{{{queue}}}:meta\"))"), "q:{Q}:meta");
    }
}
