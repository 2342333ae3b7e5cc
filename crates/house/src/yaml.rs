//! Whether a file is YAML as we write it. A parser would be one more dependency, and would let through more than everybody can read.

use std::collections::BTreeSet;

/// A line of YAML without its comment. Nothing if a quote or a bracket stays open.
#[must_use]
pub fn bare(line: &str) -> Option<&str> {
    let (mut quote, mut open, mut before) = (None, Vec::new(), ' ');
    for (at, c) in line.char_indices() {
        if let Some(end) = quote {
            quote = Some(end).filter(|end| *end != c);
        } else {
            match c {
                '#' if before == ' ' => return open.is_empty().then(|| line[..at].trim_end()),
                '"' | '\'' if !before.is_alphanumeric() => quote = Some(c),
                '[' => open.push(']'),
                '{' => open.push('}'),
                ']' | '}' if open.pop() != Some(c) => return None,
                _ => {}
            }
        }
        before = c;
    }
    (quote.is_none() && open.is_empty()).then(|| line.trim_end())
}

/// What is wrong with YAML as we write it: two spaces a level, a key or an item a line, flows and texts in quotes on one line.
#[must_use]
pub fn faults(text: &str) -> Vec<String> {
    let (mut wrong, mut levels, mut block) = (Vec::new(), Vec::<(usize, BTreeSet<&str>)>::new(), None);
    let mut opened = true;
    for (number, line) in text.lines().enumerate() {
        let mut indent = line.len() - line.trim_start_matches(' ').len();
        let mut fault = |why: &str| wrong.push(format!("{}: {why}: {line}", number + 1));
        if line.trim().is_empty() || block.is_some_and(|parent| indent > parent) {
            continue;
        }
        block = None;
        let Some(content) = bare(line) else {
            fault("a quote or bracket stays open");
            continue;
        };
        let mut content = content.trim_start_matches(' ');
        if line == "---" {
            levels.clear();
            opened = true;
        }
        if content.is_empty() || line == "---" {
            continue;
        }
        if indent % 2 == 1 || content.contains('\t') {
            fault("two spaces are a level");
        }
        let mut is_item = false;
        while let Some(rest) = content.strip_prefix("- ") {
            levels.retain(|(level, _)| *level <= indent);
            (is_item, content, indent) = (true, rest, indent + 2);
        }
        let split = content.split_once(": ").or_else(|| Some((content.strip_suffix(':')?, "")));
        let Some((key, value)) = split.filter(|_| !content.starts_with(['"', '\'', '[', '{'])) else {
            if !is_item {
                fault("neither a key nor an item");
            }
            opened = false;
            continue;
        };
        levels.retain(|(level, _)| *level <= indent);
        match levels.last_mut() {
            Some((level, keys)) if *level == indent => {
                if !keys.insert(key) {
                    fault("this key stands there twice");
                }
            }
            _ if opened || is_item => levels.push((indent, BTreeSet::from([key]))),
            _ => fault("it belongs to nothing"),
        }
        opened = value.is_empty();
        block = ["|", "|-", ">", ">-"].contains(&value).then_some(indent);
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::faults;

    #[test]
    fn what_is_no_yaml_of_ours_is_found() {
        let good = "# c\n---\na:\n  b: [1, { c: \"#\" }] # c\n  d:\n    - x: 1\n      y: |\n        any: [\n\n    - -z\n---\na: it's\n";
        assert_eq!(faults(good), Vec::<String>::new());
        for bad in
            ["a: [1", "a: 1\na: 2", "a: 1\n  b: 2", " a: 1", "a: \"x", "- a: 1\n  a: 2", "a\n", "a: {b: ]}"]
        {
            assert_eq!(faults(bad).len(), 1, "{bad:?}: {:?}", faults(bad));
        }
    }
}
