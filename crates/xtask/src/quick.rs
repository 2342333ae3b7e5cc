//! The fast path for somebody who has changed a line: tests that need no server, of the crates that were changed.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::needs::{NEEDS, tests_of};
use crate::run::{cargo, program, root};
use crate::test::nextest_config;

/// Crates none of whose tests needs a server. Of the others only the unit tests are run here.
const WITHOUT_SERVER: [&str; 14] = [
    "millstream-admin",
    "millstream-core",
    "millstream-delay",
    "millstream-keda",
    "millstream-lock",
    "millstream-engine",
    "millstream-lua",
    "millstream-memory",
    "millstream-metrics",
    "millstream-packing",
    "millstream-payload",
    "millstream-runtime",
    "mutants",
    "xtask",
];

/// Tests that are built with the units of the other crates, and need a server.
const WITH_SERVER: &str = "test(/^(tests|proxy::tests)::/)";

/// A member of the workspace.
pub(crate) struct Member {
    pub(crate) name: String,
    /// Its folder, from the root.
    folder: String,
}

/// Runs the tests of what is changed in the working tree, and of the named crate.
pub(crate) fn run(named: Option<&str>) -> Result<()> {
    ensure!(
        cargo(["nextest", "--version"]).works(),
        "cargo-nextest runs the tests: cargo install --locked cargo-nextest"
    );
    let members = members()?;
    let mut chosen: BTreeSet<&str> =
        changed_files()?.iter().filter_map(|file| member_of(file, &members)).collect();
    if let Some(named) = named {
        chosen.insert(find(named, &members)?);
    }
    let (alone, others): (Vec<&str>, Vec<&str>) =
        chosen.iter().copied().partition(|name| WITHOUT_SERVER.contains(name));

    let mut failed = Vec::new();
    let mut step = |what: &str, args: &[&str]| {
        if let Err(error) = cargo(args.iter().copied()).run() {
            eprintln!("error: {error:#}");
            failed.push(what.to_owned());
        }
    };
    step("format", &["fmt", "--all", "--check"]);
    let config = nextest_config();
    let start =
        ["nextest", "run", "--no-tests=pass", "--tool-config-file", &config, "--status-level", "fail"];
    if !alone.is_empty() {
        step("tests", &[&start[..], &packages(&alone), &["--tests"]].concat());
    }
    let targets = unit_targets(&others, &members);
    if !targets.is_empty() {
        // What needs a browser or a right is named by its row.
        let rows: Vec<_> = NEEDS.iter().filter(|need| need.can_be_left_out()).collect();
        let filterset = format!("not ({WITH_SERVER} + {})", tests_of(&rows));
        step("unit tests", &[&start[..], &packages(&others), &targets, &["-E", &filterset]].concat());
    }
    println!("\n{}", summary(&alone, &others));
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// What was run, and what was not.
fn summary(alone: &[&str], others: &[&str]) -> String {
    if alone.is_empty() && others.is_empty() {
        return "run: the format. No crate is changed: `cargo xtask quick core` tests one that you name"
            .to_owned();
    }
    let mut text = "run: the format".to_owned();
    for (what, names) in [("all tests of", alone), ("unit tests of", others)] {
        if !names.is_empty() {
            text += &format!("; {what} {}", names.join(", "));
        }
    }
    text += "\nnot run: crates that depend on these, doctests";
    if !others.is_empty() {
        text += &format!(", tests on servers of {}", others.join(", "));
    }
    text + "\nbefore a change is merged: cargo xtask check, cargo xtask test"
}

fn packages<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().flat_map(|name| ["-p", name]).collect()
}

/// The options for the kinds of units that these have: cargo refuses a kind that none of them has.
fn unit_targets(names: &[&str], members: &[Member]) -> Vec<&'static str> {
    let folders = members.iter().filter(|member| names.contains(&member.name.as_str()));
    let folders: Vec<_> = folders.map(|member| root().join(&member.folder)).collect();
    let any =
        |files: &[&str]| folders.iter().any(|folder| files.iter().any(|file| folder.join(file).exists()));
    let kinds = [("--lib", any(&["src/lib.rs", "lib.rs"])), ("--bins", any(&["src/main.rs", "src/bin"]))];
    kinds.iter().filter(|(_, there)| *there).map(|(option, _)| *option).collect()
}

/// Files that differ from the last commit, and new ones.
fn changed_files() -> Result<Vec<String>> {
    let changed = program("git", ["diff", "--name-only", "HEAD"]).output();
    let new = program("git", ["ls-files", "--others", "--exclude-standard"]).output();
    let both = [changed, new].map(|output| output.context("git does not say what is changed"));
    let [changed, new] = both;
    Ok(changed?.lines().chain(new?.lines()).map(str::to_owned).collect())
}

/// All members of the workspace, as the root manifest lists them.
pub(crate) fn members() -> Result<Vec<Member>> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let folders = member_folders(&manifest);
    ensure!(!folders.is_empty(), "the root manifest has no members");
    let mut members = Vec::new();
    for folder in folders {
        let file = root().join(folder).join("Cargo.toml");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name =
            text.lines().find_map(|line| line.strip_prefix("name = ")).context("a crate has a name")?;
        members.push(Member { name: name.trim().trim_matches('"').to_owned(), folder: folder.to_owned() });
    }
    Ok(members)
}

/// The folders in `members = […]`.
fn member_folders(manifest: &str) -> Vec<&str> {
    let list = manifest.split_once("\nmembers = [").and_then(|(_, rest)| rest.split_once(']'));
    let lines = list.map_or("", |(list, _)| list).lines();
    let lines = lines.filter(|line| !line.trim().starts_with('#'));
    lines.flat_map(|line| line.split('"').skip(1).step_by(2)).collect()
}

/// The member that a file belongs to.
fn member_of<'a>(file: &str, members: &'a [Member]) -> Option<&'a str> {
    // A workspace of its own.
    if file.starts_with("integration-tests/fuzz/") {
        return None;
    }
    let of = |member: &&Member| file.strip_prefix(&member.folder).is_some_and(|rest| rest.starts_with('/'));
    members.iter().find(of).map(|member| member.name.as_str())
}

/// The member of that name, of which `millstream-` may be left out.
fn find<'a>(named: &str, members: &'a [Member]) -> Result<&'a str> {
    for name in [named.to_owned(), format!("millstream-{named}")] {
        if let Some(member) = members.iter().find(|member| member.name == name) {
            return Ok(&member.name);
        }
    }
    let names: Vec<_> = members.iter().map(|member| member.name.as_str()).collect();
    bail!("there is no crate {named}; there are {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{Member, WITHOUT_SERVER, find, member_folders, member_of, members, summary};

    fn some() -> Vec<Member> {
        let pairs = [
            ("millstream", "crates/millstream"),
            ("millstream-core", "crates/millstream-core"),
            ("millstream-lua", "lua"),
            ("integration-tests", "integration-tests"),
        ];
        pairs.map(|(name, folder)| Member { name: name.to_owned(), folder: folder.to_owned() }).into()
    }

    #[test]
    fn a_file_belongs_to_the_member_whose_folder_it_is_in() {
        let check = |file, expected| assert_eq!(member_of(file, &some()), expected, "{file}");
        check("crates/millstream/src/lib.rs", Some("millstream"));
        check("crates/millstream-core/src/lib.rs", Some("millstream-core"));
        check("lua/lease/acquire.lua", Some("millstream-lua"));
        check("integration-tests/src/lib.rs", Some("integration-tests"));
        check("integration-tests/fuzz/src/lib.rs", None);
        check("docs/testing.md", None);
    }

    #[test]
    fn a_crate_is_named_with_or_without_its_prefix() {
        assert_eq!(find("core", &some()).unwrap(), "millstream-core");
        assert_eq!(find("millstream-core", &some()).unwrap(), "millstream-core");
        assert_eq!(find("millstream", &some()).unwrap(), "millstream");
        let said = find("nothing", &some()).unwrap_err().to_string();
        assert!(said.contains("millstream-core, millstream-lua"), "{said}");
    }

    #[test]
    fn members_are_read_from_the_manifest() {
        let manifest = "[workspace]\nmembers = [\n  \"a\", \"b/c\",\n  # \"d\",\n]\nexclude = [\"e\"]\n";
        assert_eq!(member_folders(manifest), ["a", "b/c"]);
    }

    #[test]
    fn crates_without_servers_are_members() {
        let members = members().unwrap();
        for name in WITHOUT_SERVER {
            assert!(members.iter().any(|member| member.name == name), "{name}");
        }
    }

    #[test]
    fn the_end_says_what_was_not_run() {
        let text = summary(&["millstream-core"], &["millstream-redis"]);
        assert!(text.contains("all tests of millstream-core; unit tests of millstream-redis"), "{text}");
        assert!(text.contains("not run: crates that depend on these"), "{text}");
        assert!(text.contains("tests on servers of millstream-redis"), "{text}");
        assert!(summary(&[], &[]).contains("No crate is changed"));
    }
}
