//! Libraries in C that are preloaded into a process, and change what it is told by the system.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// A library, and a folder for what it needs. Both are gone with it.
#[derive(Debug)]
pub struct Library(TempDir);

impl Library {
    /// Builds a library.
    ///
    /// # Panics
    /// If there is no C compiler `cc`, which Rust also uses as linker, or if it does not accept the source.
    #[must_use]
    pub fn new(source: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("library.c");
        fs::write(&file, source).expect("written");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&folder.path().join("library.so"), &file])
            .output()
            .expect("cc starts");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self(folder)
    }

    /// Returns the environment variable of the process that is to have it, as name and value.
    #[must_use]
    pub fn env(&self) -> (&'static str, PathBuf) {
        ("LD_PRELOAD", self.path("library.so"))
    }

    /// Returns the path of a file in its folder.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }
}
