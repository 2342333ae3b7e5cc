//! What a page of Markdown says: its words, its sentences, its links and its headings.

/// The number of words of a text, those of code and tables too: `wc -w`.
#[must_use]
pub fn words(page: &str) -> usize {
    page.split_whitespace().count()
}

/// The words of each sentence of a page, without those of code, tables, headings and HTML. An item of a list is a sentence
/// of its own.
#[must_use]
pub fn sentences(page: &str) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut paragraph = String::new();
    let mut end = |paragraph: &mut String| {
        lengths.extend(split(paragraph));
        paragraph.clear();
    };
    for line in prose(page) {
        let trimmed = line.trim().trim_start_matches("> ");
        let item =
            trimmed.strip_prefix("- ").or_else(|| trimmed.strip_prefix("* ")).or_else(|| numbered(trimmed));
        let no_prose = ["#", "|", "<", "[!", "---"].iter().any(|start| trimmed.starts_with(start));
        if trimmed.is_empty() || no_prose || item.is_some() {
            end(&mut paragraph);
        }
        if !no_prose {
            paragraph += item.unwrap_or(trimmed);
            paragraph.push(' ');
        }
    }
    end(&mut paragraph);
    lengths
}

/// The text behind the number of an item: `1. `.
fn numbered(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.strip_prefix(". ").filter(|_| rest.len() < line.len())
}

/// The words of each sentence of a paragraph. A sentence ends with a full stop before a space; a piece of code, or a link, is
/// one word or more, whatever it has inside.
fn split(paragraph: &str) -> Vec<usize> {
    let mut plain = String::new();
    for (at, part) in paragraph.split('`').enumerate() {
        // Code has no sentences.
        if at % 2 == 0 { plain += part } else { plain += &part.replace(['.', '!', '?'], "_") }
    }
    let mut lengths = Vec::new();
    let mut words = 0;
    for word in plain.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)) {
        words += 1;
        let bare = word.trim_end_matches(['*', ')', '"', '_', '”']);
        if bare.ends_with(['.', '!', '?']) && !["e.g.", "i.e.", "etc."].contains(&bare) {
            lengths.push(words);
            words = 0;
        }
    }
    lengths.extend((words > 0).then_some(words));
    lengths
}

/// The lines of a page that are not in a block of code or in a comment.
pub fn prose(page: &str) -> impl Iterator<Item = &str> {
    let (mut code, mut comment) = (false, false);
    page.lines().filter(move |line| {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            code = !code;
            return false;
        }
        if !code && trimmed.starts_with("<!--") {
            comment = true;
        }
        let shown = !code && !comment;
        if comment && trimmed.trim_end().ends_with("-->") {
            comment = false;
        }
        shown
    })
}

/// The targets of the links and pictures of a page, each with its place: the bytes from where it begins to where it ends.
#[must_use]
pub fn links(page: &str) -> Vec<(std::ops::Range<usize>, &str)> {
    let mut found = Vec::new();
    for line in prose(page) {
        let at = line.as_ptr() as usize - page.as_ptr() as usize;
        for (start, end) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"'), ("href=\"", '"')] {
            for (begin, _) in line.match_indices(start) {
                // What is written as code is none.
                if line[..begin].matches('`').count() % 2 == 1 {
                    continue;
                }
                let begin = begin + start.len();
                let Some(length) = line[begin..].find(end) else { continue };
                found.push((at + begin..at + begin + length, &line[begin..begin + length]));
            }
        }
        // `[name]: target`
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            let end = at + line.len();
            found.push((end - target.len()..end, target));
        }
    }
    found.sort_by_key(|(place, _)| place.start);
    found
}

/// The anchor of a heading: `## Dead letters` is `dead-letters`.
#[must_use]
pub fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|c| c.is_alphanumeric() || ['-', '_'].contains(c)).collect()
}

/// The anchors of a page. The second heading of the same words has a number.
#[must_use]
pub fn anchors(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for anchor in prose(page).filter(|line| line.starts_with('#')).map(anchor) {
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|name| !found.contains(name));
        found.extend(free);
    }
    let named = page.match_indices("id=\"").filter_map(|(at, _)| page[at + 4..].split('"').next());
    found.extend(named.map(str::to_owned));
    found
}

#[cfg(test)]
mod tests {
    use super::{anchor, anchors, links, sentences};

    #[test]
    fn a_sentence_is_what_ends_with_a_stop_or_an_item() {
        let page = "# A head that does not count\n\nOne two three. Four `a.b. c` five,\nsix (seven).\n\n- eight\n- nine ten\n\n\
                    | a | table |\n\n```text\nno sentence.\n```\n1. eleven twelve e.g. thirteen.\n<!-- nothing\nat all -->\n";
        assert_eq!(sentences(page), [3, 6, 1, 2, 4]);
    }

    #[test]
    fn links_are_found_with_their_places() {
        let page =
            "See [a](b.md#c) and `[x](y)`.\n```text\n[n](o)\n```\n<img src=\"p.svg\">\n[q]: https://r\n";
        let found = links(page);
        assert_eq!(
            found.iter().map(|(_, target)| *target).collect::<Vec<_>>(),
            ["b.md#c", "p.svg", "https://r"]
        );
        assert!(found.iter().all(|(place, target)| &page[place.clone()] == *target));
    }

    #[test]
    fn an_anchor_is_that_of_github() {
        assert_eq!(anchor("## What dies / when / what is seen"), "what-dies--when--what-is-seen");
        assert_eq!(anchor("### `append_dedup`"), "append_dedup");
        assert_eq!(anchors("# A b\n```\n# no\n```\n## A b\n<a id=\"x\"></a>\n"), ["a-b", "a-b-1", "x"]);
    }
}
