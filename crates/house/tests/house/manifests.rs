//! Rules on manifests: who depends on whom, and where versions stand.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Package};

use crate::members::{is_published, members};
use crate::none;
use crate::sources::CLIENT;
use house::tree::{from_root, read, rust_files};

const CORE: &str = "millstream-core";

/// The crates of ours that a crate may depend on; `None` if there is no rule for it yet.
fn allowed(name: &str, ours: &BTreeSet<String>) -> Option<BTreeSet<String>> {
    let these = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
    let all_but =
        |names: &[&str]| Some(ours.iter().filter(|one| !names.contains(&one.as_str())).cloned().collect());
    match name {
        // Those of the examples are dev-dependencies.
        CORE | "millstream-lua" | "house" | "xtask" | "examples" | "examples-backend"
        | "examples-metrics" | "examples-sql" | "examples-web" => these(&[]),
        "millstream-redis" => these(&[CORE, "millstream-lua", "millstream-packing"]),
        "millstream-delay" | "millstream-runtime" | "millstream-lock" | "millstream-sql" => {
            these(&[CORE, "millstream-engine"])
        }
        "millstream-payload" => these(&[CORE, "millstream-runtime"]),
        "millstream-keda" => these(&[CORE, "millstream-metrics"]),
        "millstream-memory" | "millstream-engine" | "millstream-packing" | "millstream-testkit"
        | "millstream-metrics" | "mutants" => these(&[CORE]),
        "millstream-admin" => these(&[CORE, "millstream-packing"]),
        "millstream" => all_but(&["millstream-testkit", "mutants"]),
        "millstream-bench" | "millstream-dashboard" => these(&["millstream"]),
        "millstream-cli" | "integration-tests" => all_but(&[]),
        _ => None,
    }
}

fn names(members: &[Package]) -> BTreeSet<String> {
    members.iter().map(|package| package.name.to_string()).collect()
}

#[test]
fn crates_depend_only_on_those_below_them() {
    let members = members();
    let ours = names(&members);
    let mut offenders = Vec::new();
    for package in &members {
        let Some(allowed) = allowed(&package.name, &ours) else {
            offenders.push(format!("{}: there is no rule for this crate", package.name));
            continue;
        };
        let used = package.dependencies.iter().filter(|it| it.kind != DependencyKind::Development);
        for name in used.map(|it| &it.name).filter(|name| ours.contains(*name)) {
            if !allowed.contains(name) {
                offenders.push(format!("{} -> {name}", package.name));
            }
        }
    }
    none(
        &offenders,
        "These arrows are not in docs/architecture.md. Move what is shared into millstream-core as a trait or a \
         plain value, and let the facade compose; a new crate needs its line in `allowed`:",
    );
}

#[test]
fn dev_dependencies_make_no_circle() {
    let members = members();
    let published: Vec<_> = members.into_iter().filter(is_published).collect();
    // Others have no version, and a package does not name them.
    let ours = names(&published);
    let mut waiting: BTreeMap<String, BTreeSet<String>> = published
        .iter()
        .map(|package| {
            let used = package.dependencies.iter().map(|it| it.name.clone());
            (package.name.to_string(), used.filter(|name| ours.contains(name)).collect())
        })
        .collect();
    // Take away whatever waits for nobody, until nothing changes.
    while let Some(ready) = waiting.iter().find(|(_, uses)| uses.is_empty()).map(|(name, _)| name.clone()) {
        waiting.remove(&ready);
        for uses in waiting.values_mut() {
            uses.remove(&ready);
        }
    }
    let offenders: Vec<_> = waiting.iter().map(|(name, uses)| format!("{name} -> {uses:?}")).collect();
    none(
        &offenders,
        "`cargo package` needs an order in which the crates can be published, and dev-dependencies count. Move the \
         test that needs the circle to integration-tests:",
    );
}

#[test]
fn only_the_redis_crate_depends_on_a_client() {
    let mut offenders = Vec::new();
    for package in members() {
        let folder = format!("{}/", from_root(package.manifest_path.parent().expect("a folder")));
        let may = folder == "integration-tests/" || CLIENT.iter().any(|path| path.starts_with(&folder));
        let clients =
            package.dependencies.iter().filter(|it| ["redis", "deadpool-redis"].contains(&&*it.name));
        offenders.extend(clients.filter(|_| !may).map(|it| format!("{} -> {}", package.name, it.name)));
    }
    none(
        &offenders,
        "A new version of the client must be a change of one crate. Ask for what is missing through a role of \
         millstream-core:",
    );
}

#[test]
fn versions_stand_in_the_root_manifest() {
    let mut offenders = Vec::new();
    for package in members() {
        let path = from_root(&package.manifest_path);
        let mut section = String::new();
        for (number, line) in read(&path).expect("a manifest").lines().enumerate() {
            let line = line.split(" #").next().unwrap_or_default().trim();
            if line.starts_with('[') {
                line.clone_into(&mut section);
            } else if section.contains("dependencies") && !line.is_empty() && !line.starts_with('#') {
                let bare = line.split_once('=').is_some_and(|(_, value)| value.trim().starts_with('"'));
                if bare || line.replace(' ', "").contains("version=") {
                    offenders.push(format!("{path}:{}: {line}", number + 1));
                }
            }
        }
    }
    none(
        &offenders,
        "A version in two places becomes two versions. Put it into [workspace.dependencies] of the root manifest \
         and write `name.workspace = true`:",
    );
}

#[test]
fn every_crate_says_what_a_registry_asks() {
    let mut offenders = Vec::new();
    for package in members() {
        let path = from_root(&package.manifest_path);
        let text = read(&path).expect("a manifest");
        let mut wanted =
            vec!["edition.workspace = true", "license.workspace = true", "rust-version.workspace = true"];
        wanted.push("[lints]\nworkspace = true");
        if is_published(&package) {
            wanted.extend([
                "version.workspace = true",
                "repository.workspace = true",
                "readme = \"README.md\"",
            ]);
            if package.description.as_ref().is_none_or(String::is_empty) {
                offenders.push(format!("{path}: no description"));
            }
        }
        let missing = wanted.into_iter().filter(|line| !text.contains(line));
        offenders.extend(missing.map(|line| format!("{path}: no `{}`", line.replace('\n', " "))));
    }
    none(&offenders, "Inherit from the root manifest, and describe the crate in one sentence:");
}

#[test]
fn every_package_has_its_licences_and_the_features_of_its_pages() {
    let mut offenders = Vec::new();
    for package in members().iter().filter(|package| is_published(package)) {
        let dir = from_root(package.manifest_path.parent().expect("a folder"));
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            if read(&format!("{dir}/{licence}")).is_none_or(|text| Some(text) != read(licence)) {
                offenders.push(format!("{dir}/{licence} is not that of the root: ln -s"));
            }
        }
        if package.metadata["docs"]["rs"]["all-features"] != true {
            offenders
                .push(format!("{dir}/Cargo.toml: no [package.metadata.docs.rs] with `all-features = true`"));
        }
    }
    none(
        &offenders,
        "A package has only what is in its folder, and docs.rs shows the default features unless told:",
    );
}

#[test]
fn the_readme_of_a_crate_is_its_documentation() {
    let mut offenders = Vec::new();
    for package in members().iter().filter(|package| is_published(package)) {
        let dir = from_root(package.manifest_path.parent().expect("a folder"));
        if read(&format!("{dir}/README.md")).is_none_or(|text| text.lines().count() < 5) {
            offenders.push(format!("{dir}/README.md: missing, or too short to help"));
        }
        let target = package.targets.iter().find(|it| it.is_lib()).or_else(|| package.targets.first());
        let source = from_root(&target.expect("a crate has a target").src_path);
        let include =
            format!("#![doc = include_str!(\"{}README.md\")]", "../".repeat(source.matches("/src/").count()));
        if !read(&source).is_some_and(|text| text.contains(&include)) {
            offenders.push(format!("{source}: no `{include}`"));
        }
    }
    none(&offenders, "So that the README's examples are compiled, and there is one text and not two:");
}

#[test]
fn the_lock_file_holds_crates_of_one_source_and_no_openssl() {
    let lock = read("Cargo.lock").expect("Cargo.lock is tracked");
    let bad = |line: &&str| {
        let foreign =
            line.starts_with("source = ") && !line.contains("github.com/rust-lang/crates.io-index\"");
        let banned =
            ["\"openssl\"", "\"openssl-sys\"", "\"native-tls\""].iter().any(|name| line.ends_with(name));
        foreign || (banned && line.starts_with("name = "))
    };
    let offenders: Vec<_> = lock.lines().filter(bad).map(str::to_owned).collect();
    none(&offenders, "deny.toml says the same. TLS is rustls; a dependency comes from the public registry:");
}

/// Programs of tests that a package may have beside that of its unit tests: those of `integration-tests` are the suite, which
/// has no harness, these rules, and what needs servers and what does not.
fn programs(name: &str) -> usize {
    if name == "integration-tests" { 4 } else { 1 }
}

#[test]
fn a_package_has_one_program_of_tests() {
    let mut offenders = Vec::new();
    for package in members() {
        let tests: Vec<_> = package.targets.iter().filter(|it| it.is_test()).map(|it| &it.name).collect();
        if tests.len() > programs(&package.name) {
            offenders.push(format!("{}: {tests:?}", package.name));
        }
    }
    none(
        &offenders,
        "Each program of tests is compiled and linked with everything that it uses: minutes and gigabytes in all. \
         Make the files modules of one program, or of `src/tests` if the library has unit tests:",
    );
}

#[test]
fn what_has_no_unit_tests_is_no_program_of_tests() {
    let sources: Vec<(String, String)> = rust_files().collect();
    let mut offenders = Vec::new();
    for package in members() {
        for target in package.targets.iter().filter(|it| it.test && (it.is_lib() || it.is_bin())) {
            let folder = format!("{}/", from_root(target.src_path.parent().expect("a folder")));
            let mut of_target = sources.iter().filter(|(path, _)| path.starts_with(&folder));
            if !of_target.any(|(_, text)| text.contains("#[test]") || text.contains("#[tokio::test")) {
                offenders.push(format!("{}: {}", package.name, target.name));
            }
        }
    }
    none(
        &offenders,
        "It would be compiled and linked once more for nothing: set `test = false` in the manifest:",
    );
}
