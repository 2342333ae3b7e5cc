//! Rule on imports: they make no circle between the folders of a library.

mod circles;
mod resolve;
mod source;

mod cases;

use std::collections::BTreeSet;

use crate::members::{is_published, members};
use crate::none;
use house::tree::{from_root, shipped_files};

use circles::{Arrow, Arrows, circle, circles};
use source::Crate;

/// A circle that is allowed for now, broken at one of its arrows.
struct Exception {
    folder: &'static str,
    from: &'static str,
    to: &'static str,
    reason: &'static str,
}

const CONSUMER: &str = "crates/millstream-runtime/src/consumer";

/// This list only shrinks: an exception that is not needed any more fails too.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        folder: CONSUMER,
        from: "context.rs",
        to: "partition/",
        reason: "the context creates the limits and the sets of entries in flight that partitions use",
    },
    Exception {
        folder: CONSUMER,
        from: "status.rs",
        to: "partition/",
        reason: "the status counts entries in flight, and partitions answer its seeks",
    },
    Exception {
        folder: CONSUMER,
        from: "group/",
        to: "partition/",
        reason: "ownership starts the workers of partitions, which read the leases of the group",
    },
    Exception {
        folder: "crates/millstream-runtime/src/consumer/partition",
        from: "poison.rs",
        to: "dispatch/",
        reason: "the file of poison candidates adds the step of the dispatcher that screens them",
    },
    Exception {
        folder: "crates/millstream-runtime/src/producer",
        from: "batcher.rs",
        to: "sender.rs",
        reason: "a batcher starts the task that reads its commands",
    },
    Exception {
        folder: "crates/millstream-runtime/src/producer",
        from: "delayed.rs",
        to: "mod.rs",
        reason: "delayed sends are methods of the producer",
    },
    Exception {
        folder: "crates/millstream-runtime/src/producer",
        from: "record.rs",
        to: "mod.rs",
        reason: "its sends are methods of the producer",
    },
];

/// Parses every library that is published. Every shipped file of its folder must be one of its modules.
fn libraries() -> Vec<Crate> {
    let files = shipped_files().collect();
    let mut libraries = Vec::new();
    let mut unread = Vec::new();
    for package in members().iter().filter(|package| is_published(package)) {
        let Some(library) = package.targets.iter().find(|target| target.is_lib()) else { continue };
        let root = from_root(&library.src_path);
        let parsed = Crate::parse(&files, &root);
        let folder = root.trim_end_matches("lib.rs");
        let read: BTreeSet<_> = parsed.modules.iter().map(|module| &module.file).collect();
        unread.extend(files.keys().filter(|file| file.starts_with(folder) && !read.contains(file)).cloned());
        libraries.push(parsed);
    }
    none(&unread, "These files are no modules of their library, or this test did not find them:");
    assert!(libraries.len() > 8, "only {} libraries are found", libraries.len());
    libraries
}

/// Returns the exceptions that break no circle of these arrows.
fn unneeded(arrows: &Arrows, exceptions: &[Exception]) -> Vec<String> {
    let broken: Vec<_> = exceptions.iter().map(arrow).collect();
    let without = |kept: &Arrow| -> Arrows {
        let all = arrows.iter().filter(|(arrow, _)| *arrow == kept || !broken.contains(arrow));
        all.map(|(arrow, site)| (arrow.clone(), site.clone())).collect()
    };
    let idle = broken.iter().filter(|arrow| {
        let arrows = without(arrow);
        !arrows.contains_key(arrow) || circle(&arrows, arrow).is_none()
    });
    idle.map(|Arrow { folder, from, to }| format!("{folder}: {from} -> {to}")).collect()
}

fn arrow(exception: &Exception) -> Arrow {
    let Exception { folder, from, to, .. } = *exception;
    Arrow { folder: folder.to_owned(), from: from.to_owned(), to: to.to_owned() }
}

#[test]
fn imports_make_no_circle_between_folders() {
    let mut arrows: Arrows = libraries().iter().flat_map(Crate::arrows).collect();
    assert!(arrows.len() > 100, "only {} arrows are found", arrows.len());
    let idle = unneeded(&arrows, EXCEPTIONS);
    none(&idle, "These exceptions break no circle any more. Remove them from `EXCEPTIONS`:");
    assert!(EXCEPTIONS.iter().all(|exception| !exception.reason.is_empty()), "an exception has a reason");
    arrows.retain(|each, _| !EXCEPTIONS.iter().any(|exception| arrow(exception) == *each));
    let found: Vec<_> = circles(&arrows).iter().map(ToString::to_string).collect();
    none(
        &found,
        "Move what closes the circle to the lower of the two, or to a file below both, and keep public paths by \
         re-export. docs/architecture.md has the rule:",
    );
}
