//! A small disk, to be filled up.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// A small disk of its own. It needs the right to mount one.
#[derive(Debug)]
pub struct Disk(TempDir);

impl Disk {
    /// Mounts a disk of this size, as `4m`.
    ///
    /// # Panics
    /// If this process may not mount one.
    #[must_use]
    pub fn new(size: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let size = format!("size={size}");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        let mount = mount.expect("there is a program `mount`");
        let error = String::from_utf8_lossy(&mount.stderr);
        assert!(mount.status.success(), "this test mounts a small disk, for which it must be root: {error}");
        Self(folder)
    }

    /// Returns where it is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn filler(&self) -> PathBuf {
        self.0.path().join("filler")
    }

    /// Leaves no room on it.
    ///
    /// # Panics
    /// If no file can be created.
    pub fn fill(&self) {
        let mut file = fs::File::create(self.filler()).expect("a file");
        for size in [64 << 10, 4 << 10, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Makes room again.
    ///
    /// # Panics
    /// If it was not filled.
    pub fn free(&self) {
        fs::remove_file(self.filler()).expect("removed");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}
