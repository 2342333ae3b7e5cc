//! Finds the module that defines what a path names, through imports and re-exports.

use std::collections::BTreeSet;

use super::source::{Crate, Id};

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A module.
    Module(Id),
    /// An item, by the module that defines it.
    Item(Id),
}

/// Names that are being resolved: ends the search where imports name each other.
type Seen = BTreeSet<(Id, String)>;

impl Crate {
    /// Returns what `path` names in module `from`, or `None` if that is not of this crate.
    pub(super) fn resolve(&self, from: Id, path: &[String]) -> Option<Target> {
        self.path(from, path, &mut Seen::new())
    }

    fn path(&self, from: Id, path: &[String], seen: &mut Seen) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.modules[from].parent?),
            // A single name is a variable rather than a module.
            name if rest.is_empty() && self.modules[from].children.contains_key(name) => return None,
            name => self.name(from, name, seen)?,
        };
        self.walk(start, rest, seen)
    }

    fn walk(&self, start: Target, rest: &[String], seen: &mut Seen) -> Option<Target> {
        let mut target = start;
        for name in rest {
            let Target::Module(module) = target else { return Some(target) };
            target = match name.as_str() {
                "self" => target,
                "super" => Target::Module(self.modules[module].parent?),
                // A name without a visible definition is defined by a macro of that module.
                name => self.name(module, name, seen).unwrap_or(Target::Item(module)),
            };
        }
        Some(target)
    }

    /// Returns what a name stands for in the scope of `module`.
    fn name(&self, module: Id, name: &str, seen: &mut Seen) -> Option<Target> {
        let scope = &self.modules[module];
        if let Some(child) = scope.children.get(name) {
            return Some(Target::Module(*child));
        }
        if scope.items.contains(name) {
            return Some(Target::Item(module));
        }
        if !seen.insert((module, name.to_owned())) {
            return None;
        }
        let mut named = scope.imports.iter().filter(|(import, _)| import == name);
        if let Some(target) = named.find_map(|(_, path)| self.import(module, path, seen)) {
            return Some(target);
        }
        scope.globs.iter().find_map(|glob| {
            let Some(Target::Module(from)) = self.import(module, glob, seen) else { return None };
            self.name(from, name, seen)
        })
    }

    /// Resolves the path of a `use`, where a single name may be a module.
    fn import(&self, module: Id, path: &[String], seen: &mut Seen) -> Option<Target> {
        match path {
            [name] if self.modules[module].children.contains_key(name) => {
                Some(Target::Module(self.modules[module].children[name]))
            }
            path => self.path(module, path, seen),
        }
    }
}
