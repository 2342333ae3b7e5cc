//! The public items of each library crate as text, `docs/api/CRATE.txt`: a change of the API is seen in a review.
//!
//! Read from the pages that rustdoc writes, which show what a user sees: items of macros, and items that come from another crate.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::run::{cargo, program, root, target};

/// The library crates, each behind those whose items it may show as its own. `millstream-lua` has only scripts, whose texts
/// `lua/scripts.lock` holds.
const CRATES: [&str; 16] = [
    "millstream-core",
    "millstream-engine",
    "millstream-memory",
    "millstream-redis",
    "millstream-runtime",
    "millstream-delay",
    "millstream-lock",
    "millstream-sql",
    "millstream-packing",
    "millstream-payload",
    "millstream-metrics",
    "millstream-admin",
    "millstream-testkit",
    "millstream",
    "millstream-dashboard",
    "millstream-keda",
];

const FOLDER: &str = "docs/api";

/// Features that nothing else in the workspace turns on. Pages show every public item, as those of docs.rs do.
const FEATURES: &str = "millstream/claim-check,millstream/cloudevents,millstream/zstd,millstream/encryption";

/// Writes the pages of the workspace, without warnings, and compares the texts or, if asked, rewrites them.
pub(crate) fn run(accept: bool) -> Result<()> {
    let doc = target().join("doc");
    for name in CRATES {
        // Pages of items that are gone would stay.
        let _ = fs::remove_dir_all(doc.join(name.replace('-', "_")));
    }
    let args = ["doc", "--workspace", "--no-deps", "--keep-going", "--features", FEATURES];
    cargo(args).env("RUSTDOCFLAGS", "-D warnings -D missing_docs").run()?;
    compare(&doc, accept)
}

fn compare(doc: &Path, accept: bool) -> Result<()> {
    let folder = root().join(FOLDER);
    let (mut changes, mut above) = (String::new(), Vec::new());
    for name in CRATES {
        let now = listing(&doc.join(name.replace('-', "_")), name, &mut above)?;
        let path = folder.join(format!("{name}.txt"));
        if accept {
            fs::create_dir_all(&folder)?;
            fs::write(&path, now).with_context(|| path.display().to_string())?;
        } else {
            let kept = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            changes += &difference(name, &kept, &now);
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    print!("{changes}");
    let compiler = program("rustc", ["--version"]).output().unwrap_or_default();
    bail!(
        "the public API is not that of {FOLDER}: review the lines above, note the change in CHANGELOG.md, and accept it with \
         `cargo xtask api`. The pages of another compiler may differ in their form: this is {}",
        compiler.trim()
    );
}

/// Lines that are only in one of two texts.
fn difference(name: &str, kept: &str, now: &str) -> String {
    let (mut before, mut after) = (Items::of(kept), Items::of(now));
    let both: BTreeSet<String> = before.0.intersection(&after.0).cloned().collect();
    before.0.retain(|line| !both.contains(line));
    after.0.retain(|line| !both.contains(line));
    let lines = |sign: char, items: Items| {
        items.0.into_iter().map(|line| format!("{sign} {name}: {line}\n")).collect::<String>()
    };
    lines('-', before) + &lines('+', after)
}

/// The lines of a text, each with the item that it belongs to.
struct Items(BTreeSet<String>);

impl Items {
    fn of(text: &str) -> Self {
        let mut item = "";
        let mut lines = BTreeSet::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if !line.starts_with(' ') {
                item = line;
            }
            lines.insert(if line == item { line.to_owned() } else { format!("{item}: {}", line.trim()) });
        }
        Self(lines)
    }
}

/// The items of a crate, in the order of their paths. `known` has those of the crates before it, and gets these.
fn listing(pages: &Path, name: &str, known: &mut Vec<Item>) -> Result<String> {
    let read = |page: &Path| fs::read_to_string(page).with_context(|| page.display().to_string());
    let all = read(&pages.join("all.html"))?;
    let mut items = BTreeSet::new();
    for href in all.split("<a href=\"").skip(1).filter_map(|rest| rest.split_once('"')).map(|(href, _)| href)
    {
        let file = href.rsplit('/').next().unwrap_or(href);
        // `struct.Name.html`: the others lead to other pages. A crate that is not ours, which is exported as a whole, has its own.
        if !href.contains("..")
            && !href.contains("sqlx/")
            && file.matches('.').count() == 2
            && file.ends_with(".html")
        {
            items.insert(href.to_owned());
        }
    }
    ensure!(!items.is_empty(), "no item of {name}: does rustdoc write another form?");
    let items = items.iter().map(|href| Item::read(pages, name, href)).collect::<Result<Vec<_>>>()?;
    let mut text = String::new();
    for item in &items {
        // An item stands once: in the first crate that shows it, under its shortest path. A page says where an item comes from only
        // if those of that crate were there before it, so items are compared.
        let same = items.iter().filter(|other| other.is(item));
        let here = same.min_by_key(|other| (other.path.matches("::").count(), &other.path)).unwrap_or(item);
        let first = known.iter().find(|other| other.is(item)).unwrap_or(here);
        text += &format!("{} {}\n", item.kind, item.path);
        if first.path == item.path {
            item.lines.iter().for_each(|line| text += &format!("    {line}\n"));
        } else {
            text += &format!("    is {}\n", first.path);
        }
    }
    // The shortest path first.
    let mut items = items;
    items.sort_by_key(|item| item.path.matches("::").count());
    known.extend(items);
    // Names that come from other crates without a page here.
    for module in modules(pages, pages)? {
        let page = read(&pages.join(&module).join("index.html"))?;
        let path = [name.to_owned(), module.replace('/', "::")].join("::");
        for line in page.split("<code>pub use ").skip(1).filter_map(|rest| rest.split_once("</code>")) {
            text += &format!("use {}\n    pub use {}\n", path.trim_end_matches("::"), plain(line.0));
        }
    }
    Ok(text)
}

/// What the page of an item shows.
struct Item {
    kind: String,
    path: String,
    lines: Vec<String>,
    /// Names of its parts. Where an item comes from another crate, types are written in another way.
    outline: BTreeSet<String>,
}

impl Item {
    fn read(pages: &Path, crate_name: &str, href: &str) -> Result<Self> {
        let (path, _) = href.rsplit_once(".html").context("a page")?;
        let (folders, item) = path.rsplit_once('/').unwrap_or(("", path));
        let (kind, item) = item.split_once('.').context("a page has the kind of its item")?;
        let path = [crate_name].into_iter().chain(folders.split('/')).chain([item]);
        let path = path.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("::");
        let page = pages.join(href);
        let page = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let lines = lines_of(&page);
        ensure!(!lines.is_empty(), "{path} has no declaration: does rustdoc write another form?");
        Ok(Self { kind: kind.to_owned(), path, outline: outline(&lines), lines })
    }

    /// Whether both are the same item, under two paths or in two crates.
    fn is(&self, other: &Self) -> bool {
        self.kind == other.kind && self.name() == other.name() && self.outline == other.outline
    }

    fn name(&self) -> &str {
        self.path.rsplit("::").next().unwrap_or_default()
    }
}

/// What stands before the types of each line, without the traits that are implemented.
fn outline(lines: &[String]) -> BTreeSet<String> {
    let parts = lines.iter().filter(|line| !line.starts_with("impl"));
    parts.filter_map(|line| line.split(['(', ':', '=', '<']).next()).map(str::to_owned).collect()
}

/// The folders of a crate's pages, by their path from there, in order.
fn modules(pages: &Path, folder: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    if folder.join("index.html").exists() {
        let path = folder.strip_prefix(pages).unwrap_or(folder);
        found.insert(path.to_str().context("a path in UTF-8")?.to_owned());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(modules(pages, &path)?);
        }
    }
    Ok(found)
}

/// The declaration of an item, its methods and the traits that it implements.
fn lines_of(page: &str) -> Vec<String> {
    let between = |from: &str, to: &str| {
        let rest = page.split_once(from)?.1;
        Some(rest.split_once(to).map_or(rest, |(text, _)| text))
    };
    let declaration = between("<pre class=\"rust item-decl\"><code>", "</code></pre>").unwrap_or_default();
    let declaration = declaration.replace("</div>", "</div>\n");
    let mut lines: Vec<String> = without_summaries(&declaration)
        .lines()
        .map(plain)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .collect();
    // Those of the compiler and those for all types are left out, and so are the methods of a type to which this one dereferences.
    let end = ["id=\"synthetic-implementations\"", "id=\"blanket-implementations\"", "id=\"implementors\""];
    let end = end.iter().filter_map(|id| page.find(id)).min().unwrap_or(page.len());
    let page = &page[..end];
    for section in page.split("<h2 id=\"").skip(1) {
        let wanted = if section.starts_with("implementations\"") {
            &["<h3 class=\"code-header\">", "<h4 class=\"code-header\">"][..]
        } else if section.starts_with("trait-implementations\"") {
            &["<h3 class=\"code-header\">"][..]
        } else {
            continue;
        };
        // What the compiler adds to `PartialEq` is no trait that a user can name.
        lines.extend(
            headers(section, wanted).into_iter().filter(|line| !line.contains(" StructuralPartialEq ")),
        );
    }
    lines
}

/// The texts of headers that begin with one of these tags, in their order.
fn headers(section: &str, wanted: &[&str]) -> Vec<String> {
    let mut found: Vec<(usize, String)> = Vec::new();
    for tag in wanted {
        for (at, _) in section.match_indices(tag) {
            let text = &section[at + tag.len()..];
            let end =
                tag.replace("<h", "</h").split(' ').next().map(|end| format!("{end}>")).unwrap_or_default();
            found.push((at, plain(text.split(&end).next().unwrap_or_default())));
        }
    }
    found.sort();
    found.into_iter().map(|(_, text)| text).collect()
}

/// Without what a page shows in place of a long list: "Show 22 fields".
fn without_summaries(html: &str) -> String {
    let mut parts = html.split("<summary");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += part.split_once("</summary>").map_or(part, |(_, rest)| rest);
    }
    text
}

/// The text of HTML, on one line.
fn plain(html: &str) -> String {
    let mut parts = html.split('<');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += part.split_once('>').map_or("", |(_, rest)| rest);
    }
    let signs =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&#x27;", "'"), ("&nbsp;", " ")];
    for (name, sign) in signs.into_iter().chain([("ⓘ", ""), ("§", ""), ("&amp;", "&")]) {
        text = text.replace(name, sign);
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{difference, lines_of};

    #[test]
    fn a_page_gives_its_declaration_methods_and_traits() {
        let page = r##"<pre class="rust item-decl"><code><div class="code-attribute">#[non_exhaustive]</div>pub struct A&lt;T&gt; {<details class="toggle"><summary class="hideme"><span>Show 2 fields</span></summary>
    pub label: <a href="x">String</a>,
    <span class="comment">/* private fields */</span>
}</details></code></pre>
<h2 id="implementations" class="section-header">Implementations</h2><h3 class="code-header">impl&lt;T&gt; A&lt;T&gt;</h3>
<h4 class="code-header">pub fn <a href="#method.f" class="fn">f</a>(&amp;self)<div class="where">where
    T: Send,</div></h4>
<h2 id="deref-methods-B">Methods from B</h2><h4 class="code-header">pub fn g()</h4>
<h2 id="trait-implementations">T</h2><h3 class="code-header">impl&lt;T&gt; Clone for A&lt;T&gt;</h3><h4 class="code-header">fn clone(&amp;self)</h4>
<h2 id="synthetic-implementations">Auto</h2><h3 class="code-header">impl Send for A</h3>"##;
        let expected = [
            "#[non_exhaustive]",
            "pub struct A<T> {",
            "pub label: String,",
            "/* private fields */",
            "}",
            "impl<T> A<T>",
            "pub fn f(&self)where T: Send,",
            "impl<T> Clone for A<T>",
        ];
        assert_eq!(lines_of(page), expected);
    }

    #[test]
    fn a_difference_names_the_item_of_a_line() {
        let kept = "struct x::A\n    pub struct A;\n    pub fn f()\nfn x::b\n    pub fn b()\n";
        let now = "struct x::A\n    pub struct A;\n    pub fn f(u8)\nfn x::b\n    pub fn b()\n";
        assert_eq!(
            difference("x", kept, now),
            "- x: struct x::A: pub fn f()\n+ x: struct x::A: pub fn f(u8)\n"
        );
        assert_eq!(difference("x", kept, kept), "");
    }
}
