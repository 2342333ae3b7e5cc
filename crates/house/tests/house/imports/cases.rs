//! Cases of the analyser: small crates with the circles that it finds in them.

use super::circles::{Arrow, Arrows, circles};
use super::source::Crate;
use super::{Exception, unneeded};

/// Crate of these files, in the folder `src`.
fn parse(files: &[(&str, &str)]) -> Crate {
    let files = files.iter().map(|(path, text)| (format!("src/{path}"), (*text).to_owned()));
    Crate::parse(&files.collect(), "src/lib.rs")
}

/// Two folders, with one file in each: `first` is `a/one.rs`, `second` is `b/two.rs`.
fn two_folders(first: &str, second: &str) -> Crate {
    parse(&[
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a/mod.rs", "pub(crate) mod one;\n"),
        ("a/one.rs", first),
        ("b/mod.rs", "pub(crate) mod two;\n"),
        ("b/two.rs", second),
    ])
}

fn found(parsed: &Crate) -> Vec<String> {
    circles(&parsed.arrows()).iter().map(ToString::to_string).collect()
}

/// The arrows as `from -> to`, with the line of the first place.
fn arrows(parsed: &Crate) -> Vec<String> {
    let arrows = parsed.arrows();
    let text = arrows.iter().map(|(Arrow { from, to, .. }, site)| format!("{from} -> {to} at {site}"));
    text.collect()
}

/// Whether `one.rs` with this text uses `b/two.rs`, which defines `Two`, `two` and `TWO`.
fn uses(first: &str) -> bool {
    let parsed =
        two_folders(first, "pub(crate) struct Two;\npub(crate) fn two() {}\npub(crate) const TWO: u8 = 2;\n");
    match &parsed.arrows().into_keys().collect::<Vec<_>>()[..] {
        [] => false,
        [Arrow { folder, from, to }] => {
            assert_eq!((&**folder, &**from, &**to), ("src", "a/", "b/"));
            true
        }
        more => panic!("{more:?}"),
    }
}

#[test]
fn a_circle_between_folders_is_shown_with_its_files_and_lines() {
    let parsed = two_folders(
        "use crate::b::two::Two;\n\npub(crate) struct One(Two);\n",
        "//! Second.\n\npub(crate) struct Two;\n\nfn back(_: crate::a::one::One) {}\n",
    );
    assert_eq!(
        found(&parsed),
        ["src: a/ -> b/ -> a/\
          \n    src/a/one.rs:1: crate::b::two::Two of src/b/two.rs\
          \n    src/b/two.rs:5: crate::a::one::One of src/a/one.rs"]
    );
}

#[test]
fn a_longer_circle_is_one_chain() {
    let parsed = parse(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
        ("a/mod.rs", "mod x;\n"),
        ("a/x.rs", "use crate::b::f;\n"),
        ("b.rs", "use crate::c::f as g;\npub(crate) fn f() {}\n"),
        ("c.rs", "use crate::a::h;\nuse crate::d::f as e;\npub(crate) fn f() {}\n"),
        ("d.rs", "pub(crate) fn f() {}\n"),
    ]);
    let found = found(&parsed);
    let lines: Vec<_> = found.iter().flat_map(|circle| circle.lines()).collect();
    assert_eq!(
        lines,
        [
            "src: a/ -> b.rs -> c.rs -> a/",
            "    src/a/x.rs:1: crate::b::f of src/b.rs",
            "    src/b.rs:1: crate::c::f of src/c.rs",
            "    src/c.rs:1: crate::a::h of src/a/mod.rs",
        ]
    );
}

#[test]
fn imports_in_one_direction_are_no_circle() {
    let parsed = parse(&[
        ("lib.rs", "mod low;\nmod middle;\nmod high;\npub use high::run::run;\n"),
        ("low.rs", "pub(crate) struct Low;\n"),
        ("middle/mod.rs", "pub(crate) mod m;\n"),
        ("middle/m.rs", "use crate::low::Low;\npub(crate) struct M(Low);\n"),
        ("high/mod.rs", "pub(crate) mod run;\n"),
        ("high/run.rs", "use crate::{low::Low, middle::m::M};\npub fn run(_: Low, _: M) {}\n"),
    ]);
    assert_eq!(arrows(&parsed).len(), 3);
    assert_eq!(found(&parsed), [""; 0]);
}

#[test]
fn every_way_to_name_an_item_is_an_import() {
    for text in [
        "use crate::b::two::Two;",
        "use super::super::b::two::Two;",
        "use super::{super::{b::{two::{Two as Other}}}};",
        "use crate::b::{self, two::{self as other, two}};",
        "use crate::b; fn f() { b::two::two() }",
        "use crate::b as other; fn f(_: other::two::Two) {}",
        "use crate::b::two::*; fn f() { two() }",
        "fn f() { use crate::b::two::two; two() }",
        "fn f() { super::super::b::two::two() }",
        "fn f() -> Option<Vec<crate::b::two::Two>> { None }",
        "fn f(n: u8) { match n { crate::b::two::TWO => {} _ => {} } }",
        "struct S<const N: usize>([u8; N]); impl From<crate::b::two::Two> for S<1> {}",
        "fn f() { println!(\"{}\", crate::b::two::TWO) }",
        "fn f() { assert!(matches!(1, n if n == super::super::b::two::TWO)) }",
        "macro_rules! m { () => { $crate::b::two::two() } }",
        "mod inner { fn f() { super::super::super::b::two::two() } }",
        "#[cfg(not(test))] use crate::b::two::Two;",
        "#[cfg(any(test, feature = \"x\"))] use crate::b::two::Two;",
    ] {
        assert!(uses(text), "{text}");
    }
}

#[test]
fn what_names_nothing_of_the_other_folder_is_no_import() {
    for text in [
        "",
        "use std::fmt; use two::Two; use ::b::two::Two;",
        "// use crate::b::two::Two;\n/// [`crate::b::two::Two`]\nstruct S;",
        "const TEXT: &str = \"crate::b::two::Two\";",
        "pub(in crate::a) fn f() {}",
        "struct Two; fn f(_: Two) {}",
        "use crate::a; fn f() { let b = 1; let two = b; println!(\"{b} {two}\", b = b) }",
        "#[cfg(test)] mod tests { use crate::b::two::Two; }",
        "#[cfg(test)] use crate::b::two::Two;",
        "#[cfg(test)] impl crate::b::two::Two { fn f() {} }",
        "struct S; impl S { #[cfg(test)] fn f(_: crate::b::two::Two) {} }",
        "struct S { #[cfg(test)] two: crate::b::two::Two }",
        "fn f() { #[cfg(test)] let two = crate::b::two::TWO; }",
    ] {
        assert!(!uses(text), "{text}");
    }
}

#[test]
fn a_re_export_is_no_import_and_hides_none() {
    let parsed = parse(&[
        ("lib.rs", "mod a;\nmod b;\npub use a::One;\npub use b::*;\n"),
        ("a/mod.rs", "mod one;\npub use one::One;\npub(crate) use crate::b::Two as Other;\n"),
        ("a/one.rs", "pub struct One;\n"),
        ("b/mod.rs", "mod two;\npub use two::Two;\n"),
        ("b/two.rs", "use crate::One;\npub struct Two(One);\n"),
    ]);
    assert_eq!(arrows(&parsed), ["b/ -> a/ at src/b/two.rs:1: crate::One of src/a/one.rs"]);
    let through_the_root =
        two_folders("use crate::Two;\npub struct One(Two);\n", "use crate::One;\npub struct Two(One);\n");
    assert_eq!(found(&through_the_root), [""; 0], "nothing is re-exported there");
    let hidden = parse(&[
        ("lib.rs", "mod a;\nmod b;\npub use a::One;\npub use b::*;\n"),
        ("a/mod.rs", "mod one;\npub use one::One;\n"),
        ("a/one.rs", "use crate::Two;\npub struct One(Two);\n"),
        ("b/mod.rs", "mod two;\npub use two::Two;\n"),
        ("b/two.rs", "use crate::One;\npub struct Two(One);\n"),
    ]);
    assert_eq!(found(&hidden).len(), 1);
}

#[test]
fn a_re_exported_name_that_the_file_uses_itself_is_an_import() {
    let parsed = parse(&[
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a/mod.rs", "pub(crate) use crate::b::two::Two;\npub(crate) struct One(Two);\n"),
        ("b/mod.rs", "pub(crate) mod two;\n"),
        ("b/two.rs", "pub(crate) struct Two;\n"),
    ]);
    assert_eq!(arrows(&parsed), ["a/ -> b/ at src/a/mod.rs:2: Two of src/b/two.rs"]);
}

#[test]
fn files_of_a_folder_without_subfolders_may_use_each_other() {
    let parsed = parse(&[
        ("lib.rs", "mod a;\n"),
        ("a.rs", "mod x;\nmod y;\npub(crate) struct A(x::X);\n"),
        ("a/x.rs", "use super::{A, y::Y};\npub(crate) struct X(Y, A);\n"),
        ("a/y.rs", "use super::x::X;\npub(crate) struct Y(X);\n"),
    ]);
    assert_eq!(arrows(&parsed), [""; 0]);
}

#[test]
fn files_beside_a_subfolder_may_not() {
    let files = [
        ("lib.rs", "mod a;\nmod x;\nmod y;\n"),
        ("a/mod.rs", "mod below;\n"),
        ("a/below.rs", ""),
        ("x.rs", "use crate::y::Y;\npub(crate) struct X(Y);\n"),
        ("y.rs", "use crate::x::X;\npub(crate) struct Y(X);\n"),
    ];
    let found = found(&parse(&files));
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("src: x.rs -> y.rs -> x.rs\n"), "{found:?}");
}

#[test]
fn the_file_of_a_folder_is_one_of_its_files() {
    for face in ["a/mod.rs", "a.rs"] {
        let parsed = parse(&[
            ("lib.rs", "mod a;\n"),
            (face, "mod b;\n\npub(crate) struct A;\nfn f() { b::c::run() }\n"),
            ("a/b/mod.rs", "pub(crate) mod c;\n"),
            ("a/b/c.rs", "use super::super::A;\npub(crate) fn run() {}\nfn f(_: A) {}\n"),
        ]);
        let found = found(&parsed);
        assert_eq!(found.len(), 1);
        let down = format!("src/{face}:4: b::c::run of src/a/b/c.rs");
        let up = format!("src/a/b/c.rs:1: super::super::A of src/{face}");
        assert!(found[0].starts_with("src/a: "), "{found:?}");
        assert!(found[0].contains(&down) && found[0].contains(&up), "{found:?}");
    }
}

#[test]
fn imports_that_circle_only_between_folders_are_found() {
    // No file is in a circle: `a/one.rs` uses `b/two.rs`, and `b/three.rs` uses `a/four.rs`.
    let parsed = parse(&[
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a/mod.rs", "mod one;\npub(crate) mod four;\n"),
        ("a/one.rs", "use crate::b::two::Two;\n"),
        ("a/four.rs", "pub(crate) struct Four;\n"),
        ("b/mod.rs", "pub(crate) mod two;\nmod three;\n"),
        ("b/two.rs", "pub(crate) struct Two;\n"),
        ("b/three.rs", "use crate::a::four::Four;\n"),
    ]);
    assert_eq!(found(&parsed).len(), 1);
}

#[test]
fn a_name_that_a_macro_defines_counts_for_the_module_in_which_it_is_looked_up() {
    let parsed = two_folders("use crate::b::two::Made;\n", "macro_rules! make { () => {} }\nmake!(Made);\n");
    assert_eq!(arrows(&parsed), ["a/ -> b/ at src/a/one.rs:1: crate::b::two::Made of src/b/two.rs"]);
}

#[test]
fn an_exception_is_needed_as_long_as_it_breaks_a_circle() {
    let exception = |from, to| Exception { folder: "src", from, to, reason: "a case" };
    let back = "use crate::a::one::One;\npub(crate) struct Two;\n";
    let parsed = two_folders("use crate::b::two::Two;\npub(crate) struct One(Two);\n", back);
    let arrows: Arrows = parsed.arrows();
    assert_eq!(unneeded(&arrows, &[exception("b/", "a/")]), [""; 0]);
    assert_eq!(unneeded(&arrows, &[exception("a/", "c/")]), ["src: a/ -> c/"], "no such import");
    let both = [exception("a/", "b/"), exception("b/", "a/")];
    assert_eq!(unneeded(&arrows, &both).len(), 2, "one of them is enough");
    let mended = two_folders("pub(crate) struct One;\n", back).arrows();
    assert_eq!(unneeded(&mended, &[exception("b/", "a/")]), ["src: b/ -> a/"], "no circle");
}
