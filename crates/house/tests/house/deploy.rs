//! Rules on the files that people deploy with: `docs/deploy` and the workflows.

use std::collections::BTreeMap;

use house::tree::{files, read};
use house::yaml::{bare, faults};

use crate::none;

const DEPLOY: &str = "docs/deploy/";
const CHART: &str = "docs/deploy/helm/millstream/";
const PLAIN: &str = "docs/deploy/kubernetes.yml";
/// What is off by default and in the plain manifests.
const ON: [&str; 3] = ["worker.enabled", "scaledObject.enabled", "networkPolicy.enabled"];
const INSTRUCTIONS: [&str; 10] =
    ["ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "LABEL", "RUN", "USER", "WORKDIR"];

fn ours() -> impl Iterator<Item = (String, String)> {
    files().into_iter().filter(|(path, _)| path.starts_with(DEPLOY) || path.starts_with(".github/"))
}

/// The values of the chart by their path: `worker.port`.
fn values() -> BTreeMap<String, String> {
    let text = read(&format!("{CHART}values.yaml")).expect("the values");
    let (mut path, mut values) = (Vec::new(), BTreeMap::new());
    for line in text.lines().filter_map(bare).filter(|line| !line.trim().is_empty()) {
        path.truncate((line.len() - line.trim_start().len()) / 2);
        let (key, value) = line.trim().split_once(':').expect("a key");
        path.push(key);
        values.insert(path.join("."), value.trim().trim_matches('"').to_owned());
    }
    values.extend(ON.map(|name| (name.to_owned(), "true".to_owned())));
    values
}

/// Renders a template as Helm does, as far as ours go.
fn render(template: &str, values: &BTreeMap<String, String>) -> String {
    let (mut out, mut shown) = (String::new(), Vec::new());
    let value = |name: &str| match name.trim().trim_start_matches("toJson ").trim_start_matches(".Values.") {
        ".Release.Name" => "millstream",
        ".Release.Namespace" => "default",
        name => values.get(name).unwrap_or_else(|| panic!("{name} is not in values.yaml")),
    };
    for line in template.lines() {
        let words: Vec<_> = line.trim().split(' ').collect();
        match words[..] {
            ["{{-", "if", name, "}}"] => shown.push(value(name) == "true"),
            ["{{-", "if", "not", name, "}}"] => shown.push(value(name) != "true"),
            ["{{-", "range", name, "}}"] => shown.push(value(name) != "[]"),
            ["{{-", "end", "}}"] => drop(shown.pop().expect("an end has its beginning")),
            _ if shown.contains(&false) => {}
            _ => {
                let mut parts = line.split("{{ ");
                out += parts.next().unwrap_or_default();
                for (name, rest) in parts.map(|part| part.split_once(" }}").expect("it is closed")) {
                    out += &(value(name).to_owned() + rest);
                }
                out.push('\n');
            }
        }
    }
    out
}

#[test]
fn yaml_is_well_formed() {
    let yaml = ours().filter(|(path, _)| path.ends_with("ml") && !path.contains("/templates/"));
    let wrong: Vec<_> = yaml
        .flat_map(|(path, text)| faults(&text).into_iter().map(move |it| format!("{path}:{it}")))
        .collect();
    none(&wrong, "This is no YAML, or not as we write it:");
}

#[test]
fn the_plain_manifests_are_what_the_chart_renders_to() {
    let (values, plain) = (values(), read(PLAIN).expect("the manifests"));
    let templates = files().into_iter().filter(|(path, _)| path.starts_with(&format!("{CHART}templates/")));
    let rendered: Vec<_> = templates.map(|(_, text)| render(&text, &values)).collect();
    let plain: Vec<_> = plain.lines().skip_while(|line| line.starts_with('#')).collect();
    assert_eq!(rendered.join("---\n").lines().collect::<Vec<_>>(), plain, "{PLAIN} says how it is made");
}

#[test]
fn images_and_actions_are_pinned_and_of_this_version() {
    let manifest = read("Cargo.toml").expect("the manifest");
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("version = "))
        .expect("a version")
        .trim_matches('"');
    let mut wrong = Vec::new();
    for (path, text) in ours() {
        for line in text.lines().map(|line| line.trim_start_matches([' ', '-'])) {
            let is_wrong = if let Some(action) = line.strip_prefix("uses: ") {
                action.split(['@', ' ']).nth(1).is_none_or(|commit| commit.len() != 40)
            } else if let Some(image) = line.strip_prefix("image: ").or_else(|| line.strip_prefix("FROM ")) {
                let tag = image
                    .split(' ')
                    .next()
                    .and_then(|image| image.rsplit_once(':'))
                    .map_or("", |(_, tag)| tag);
                let is_numbered = tag.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit());
                let is_ours = image.contains("millstream-rs/millstream:") && tag != version;
                !image.contains("{{") && image != "scratch" && (!is_numbered || is_ours)
            } else {
                let names = ["tag: ", "version: ", "appVersion: ", "ARG VERSION="];
                let said = names
                    .iter()
                    .find_map(|name| line.strip_prefix(name))
                    .filter(|_| path.starts_with(DEPLOY));
                said.is_some_and(|said| said.trim_matches('"') != version)
            };
            wrong.extend(is_wrong.then(|| format!("{path}: {line}")));
        }
    }
    none(
        &wrong,
        "An image has a tag with a number, an action a commit, and what is ours the version of Cargo.toml:",
    );
}

#[test]
fn the_image_is_not_of_root_and_runs_the_command() {
    let text = read(&format!("{DEPLOY}Containerfile")).expect("a Containerfile").replace("\\\n", " ");
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let parts: Vec<_> = lines.iter().map(|line| line.split_once(' ').expect("an instruction")).collect();
    assert!(parts.iter().all(|(name, _)| INSTRUCTIONS.contains(name)), "{lines:?}");
    let last = |wanted| parts.iter().rev().find(|(name, _)| *name == wanted).map(|(_, rest)| *rest);
    assert_eq!((last("ENTRYPOINT"), last("FROM")), (Some("[\"millstream\"]"), Some("scratch")));
    let user = last("USER").expect("a user");
    assert!(user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)), "{user}");
}
