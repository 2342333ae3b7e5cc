//! Parses a crate: its modules, what each defines and imports, and which paths its code mentions.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{
    Attribute, Field, ImplItem, Item, ItemMacro, ItemMod, ItemUse, Local, Macro, Path, TraitItem, UseTree,
    Visibility,
};

/// Index of a module in [`Crate::modules`]. The root is 0.
pub(super) type Id = usize;

/// The modules of a crate without those under `#[cfg(test)]`.
#[derive(Debug, Default)]
pub(super) struct Crate {
    pub(super) modules: Vec<Module>,
}

/// A module, in a file of its own or inside the file of another one.
#[derive(Debug, Default)]
pub(super) struct Module {
    pub(super) parent: Option<Id>,
    pub(super) file: String,
    pub(super) children: BTreeMap<String, Id>,
    /// Names that the module defines.
    pub(super) items: BTreeSet<String>,
    /// Names that `use` declarations bring into scope, with their paths.
    pub(super) imports: Vec<(String, Vec<String>)>,
    /// Modules of which all names are brought into scope.
    pub(super) globs: Vec<Vec<String>>,
    /// Paths in code and in private `use` declarations. Re-exports are not among them.
    pub(super) mentions: Vec<Mention>,
}

/// A path in the code.
#[derive(Debug)]
pub(super) struct Mention {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
}

impl Crate {
    /// Parses the crate whose root is the file `root`. `files` are texts by path.
    ///
    /// # Panics
    ///
    /// If a file is not Rust, or the file of a module is missing.
    pub(super) fn parse(files: &BTreeMap<String, String>, root: &str) -> Self {
        let mut parsed = Self::default();
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        parsed.file(files, None, root, folder);
        parsed
    }

    /// Parses the file of a module. Its children's files are in `folder`.
    fn file(&mut self, files: &BTreeMap<String, String>, parent: Option<Id>, path: &str, folder: &str) -> Id {
        let text = files.get(path).unwrap_or_else(|| panic!("{path} is missing"));
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path} cannot be parsed: {error}"));
        self.module(files, parent, path, folder, &file.items)
    }

    fn module(
        &mut self,
        files: &BTreeMap<String, String>,
        parent: Option<Id>,
        path: &str,
        folder: &str,
        items: &[Item],
    ) -> Id {
        let id = self.modules.len();
        let mut reader = Reader { module: Module { parent, file: path.to_owned(), ..Module::default() } };
        for item in items {
            reader.define(item);
            reader.visit_item(item);
        }
        self.modules.push(reader.module);
        for item in items {
            let Item::Mod(module) = item else { continue };
            // A file at another path belongs to another folder, where it is read if it is a module there.
            if is_test(&module.attrs) || module.attrs.iter().any(|it| it.path().is_ident("path")) {
                continue;
            }
            let name = name_of(&module.ident);
            let below = format!("{folder}/{name}");
            let child = if let Some((_, items)) = &module.content {
                self.module(files, Some(id), path, &below, items)
            } else {
                let beside = format!("{below}.rs");
                let inside = format!("{below}/mod.rs");
                let file = if files.contains_key(&beside) { beside } else { inside };
                self.file(files, Some(id), &file, &below)
            };
            self.modules[id].children.insert(name, child);
        }
        id
    }
}

/// Collects what one module defines, imports and mentions.
struct Reader {
    module: Module,
}

impl Reader {
    fn define(&mut self, item: &Item) {
        let name = match item {
            Item::Const(it) => &it.ident,
            Item::Enum(it) => &it.ident,
            Item::Fn(it) => &it.sig.ident,
            Item::Macro(ItemMacro { ident: Some(name), .. }) => name,
            Item::Static(it) => &it.ident,
            Item::Struct(it) => &it.ident,
            Item::Trait(it) => &it.ident,
            Item::Type(it) => &it.ident,
            Item::Union(it) => &it.ident,
            _ => return,
        };
        self.module.items.insert(name_of(name));
    }

    fn mention(&mut self, path: Vec<String>, line: usize) {
        self.module.mentions.push(Mention { path, line });
    }

    /// Collects the names of a `use` tree that stands behind `path`.
    fn import(&mut self, tree: &UseTree, path: &[String], re_export: bool) {
        let with = |name: &syn::Ident| {
            // `a::{self}` names `a`.
            let own = (name != "self").then(|| name_of(name));
            path.iter().cloned().chain(own).collect::<Vec<_>>()
        };
        let (path, name, line) = match tree {
            UseTree::Path(it) => return self.import(&it.tree, &with_segment(path, &it.ident), re_export),
            UseTree::Group(it) => {
                return it.items.iter().for_each(|tree| self.import(tree, path, re_export));
            }
            UseTree::Glob(_) => return self.module.globs.push(path.to_vec()),
            UseTree::Name(it) => (with(&it.ident), None, it.ident.span().start().line),
            UseTree::Rename(it) => (with(&it.ident), Some(name_of(&it.rename)), it.ident.span().start().line),
        };
        let Some(name) = name.or_else(|| path.last().cloned()) else { return };
        if !re_export {
            self.mention(path.clone(), line);
        }
        self.module.imports.push((name, path));
    }

    /// Collects the paths among the tokens of a macro call, which syn leaves unparsed.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        let mut after_dot = false;
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let line = first.span().start().line;
                    let mut path = vec![name_of(&first)];
                    while is_colon(tokens.peek()) {
                        let mut ahead = tokens.clone();
                        ahead.next();
                        let Some(TokenTree::Ident(next)) = ahead.nth(1) else { break };
                        path.push(name_of(&next));
                        tokens = ahead;
                    }
                    let is_call = matches!(tokens.peek(), Some(TokenTree::Group(group))
                        if group.delimiter() == Delimiter::Parenthesis);
                    let is_type = path[0].starts_with(char::is_uppercase);
                    // A single small name is a variable, a field or a keyword, unless it is called.
                    if path.len() > 1 || (!after_dot && (is_call || is_type)) {
                        self.mention(path, line);
                    }
                }
                TokenTree::Punct(punct) => {
                    after_dot = punct.as_char() == '.';
                    continue;
                }
                TokenTree::Literal(_) => {}
            }
            after_dot = false;
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(it) => &it.attrs,
            ImplItem::Fn(it) => &it.attrs,
            ImplItem::Macro(it) => &it.attrs,
            ImplItem::Type(it) => &it.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Const(it) => &it.attrs,
            TraitItem::Fn(it) => &it.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        if !is_test(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if !is_test(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    /// Skips a module inside the file: it has a reader of its own.
    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none() {
            let names: Vec<_> = path.segments.iter().map(|segment| name_of(&segment.ident)).collect();
            self.mention(names, path.segments[0].ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }

    /// Skips visibilities: `pub(in crate::a)` uses nothing of `a`.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

fn with_segment(path: &[String], name: &syn::Ident) -> Vec<String> {
    path.iter().cloned().chain([name_of(name)]).collect()
}

/// Returns the name without `r#`.
fn name_of(name: &syn::Ident) -> String {
    let name = name.to_string();
    name.strip_prefix("r#").map_or(name.clone(), str::to_owned)
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':' && punct.spacing() == proc_macro2::Spacing::Joint)
}

/// Returns whether there is a `#[cfg(test)]`.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<Path>().is_ok_and(|it| it.is_ident("test"))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}
