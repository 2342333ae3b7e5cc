//! The graph of imports between the files and subfolders of each folder, and the circles in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::resolve::Target;
use super::source::{Crate, Id};

/// One file or subfolder of a folder uses another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrow {
    /// Folder in which both are.
    pub(super) folder: String,
    /// Name in the folder; the name of a subfolder ends with a slash.
    pub(super) from: String,
    pub(super) to: String,
}

/// First place in the code that makes an arrow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    file: String,
    line: usize,
    path: String,
    /// File that defines what the path names.
    defined_in: String,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} of {}", self.file, self.line, self.path, self.defined_in)
    }
}

/// All arrows of a crate, each with its first place.
pub(super) type Arrows = BTreeMap<Arrow, Site>;

/// Arrows that lead back to where the first one began.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Circle(Vec<(Arrow, Site)>);

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.0[0].0.folder)?;
        for (arrow, _) in &self.0 {
            write!(f, "{} -> ", arrow.from)?;
        }
        write!(f, "{}", self.0[0].0.from)?;
        self.0.iter().try_for_each(|(_, site)| write!(f, "\n    {site}"))
    }
}

impl Crate {
    /// Returns the arrows between the files and subfolders of each folder that has subfolders. A folder without
    /// subfolders is one subject, in which files may use each other.
    pub(super) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (from, module) in self.modules.iter().enumerate() {
            for mention in &module.mentions {
                let Some(Target::Item(to)) = self.resolve(from, &mention.path) else { continue };
                let Some(arrow) = self.arrow(from, to) else { continue };
                let site = Site {
                    file: module.file.clone(),
                    line: mention.line,
                    path: mention.path.join("::"),
                    defined_in: self.modules[to].file.clone(),
                };
                let first = arrows.entry(arrow).or_insert_with(|| site.clone());
                if site < *first {
                    *first = site;
                }
            }
        }
        arrows
    }

    /// Returns the arrow from one module to another, in the innermost folder that contains both.
    fn arrow(&self, from: Id, to: Id) -> Option<Arrow> {
        let (from, to) = (self.with_ancestors(from), self.with_ancestors(to));
        let shared = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
        let face = *from.get(shared.checked_sub(1)?)?;
        let (from, to) = (from.get(shared).copied(), to.get(shared).copied());
        let inside: Vec<_> = self.files_below(face).collect();
        let has_subfolders = inside.iter().any(|child| self.is_folder(*child));
        if from == to || !has_subfolders {
            return None;
        }
        let name = |module: Option<Id>| self.name_in_folder(module.unwrap_or(face), module.is_some());
        Some(Arrow { folder: self.folder(face), from: name(from), to: name(to) })
    }

    /// Returns the module and those that contain it, from the root on. Modules inside a file are part of that file.
    fn with_ancestors(&self, module: Id) -> Vec<Id> {
        let mut chain = Vec::new();
        let mut next = Some(module);
        while let Some(module) = next {
            next = self.modules[module].parent;
            if next.is_none_or(|parent| self.modules[parent].file != self.modules[module].file) {
                chain.push(module);
            }
        }
        chain.reverse();
        chain
    }

    fn files_below(&self, module: Id) -> impl Iterator<Item = Id> {
        let file = &self.modules[module].file;
        self.modules[module]
            .children
            .values()
            .copied()
            .filter(move |child| &self.modules[*child].file != file)
    }

    fn is_folder(&self, module: Id) -> bool {
        self.files_below(module).next().is_some()
    }

    /// Returns the folder of a module that has one.
    fn folder(&self, module: Id) -> String {
        let file = &self.modules[module].file;
        let (parent, name) = file.rsplit_once('/').unwrap_or(("", file));
        match name {
            "mod.rs" | "lib.rs" | "main.rs" => parent.to_owned(),
            name => format!("{parent}/{}", name.trim_end_matches(".rs")),
        }
    }

    fn name_in_folder(&self, module: Id, is_child: bool) -> String {
        let file = &self.modules[module].file;
        let is_folder = is_child && (self.is_folder(module) || file.ends_with("/mod.rs"));
        let place = if is_folder { self.folder(module) } else { file.clone() };
        let name = place.rsplit('/').next().unwrap_or(&place);
        if is_folder { format!("{name}/") } else { name.to_owned() }
    }
}

/// Returns one shortest circle of each set of files and subfolders that depend on each other.
pub(super) fn circles(arrows: &Arrows) -> Vec<Circle> {
    let mut circles: Vec<Circle> = Vec::new();
    let mut shown = BTreeSet::new();
    let mut all: Vec<_> = arrows.keys().filter_map(|arrow| circle(arrows, arrow)).collect();
    all.sort_by_key(|circle| circle.0.len());
    for circle in all {
        // A circle that shares a part with one that is shown is mended with it, or shown in the next run.
        let parts: Vec<_> =
            circle.0.iter().map(|(arrow, _)| (arrow.folder.clone(), arrow.from.clone())).collect();
        if !parts.iter().any(|part| shown.contains(part)) {
            circles.push(circle);
        }
        shown.extend(parts);
    }
    circles
}

/// Returns a shortest circle through an arrow.
pub(super) fn circle(arrows: &Arrows, first: &Arrow) -> Option<Circle> {
    let mut reached_by: BTreeMap<&str, &Arrow> = BTreeMap::new();
    let mut queue = VecDeque::from([first.to.as_str()]);
    while let Some(place) = queue.pop_front() {
        if place == first.from {
            break;
        }
        for arrow in arrows.keys().filter(|arrow| arrow.folder == first.folder && arrow.from == place) {
            if arrow.to != first.to && !reached_by.contains_key(arrow.to.as_str()) {
                reached_by.insert(&arrow.to, arrow);
                queue.push_back(&arrow.to);
            }
        }
    }
    let mut back = Vec::new();
    let mut place = first.from.as_str();
    while place != first.to {
        let arrow = *reached_by.get(place)?;
        back.push(arrow);
        place = &arrow.from;
    }
    let chain = [first].into_iter().chain(back.into_iter().rev());
    Some(Circle(chain.map(|arrow| (arrow.clone(), arrows[arrow].clone())).collect()))
}
