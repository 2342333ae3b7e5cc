//! Loss of power: what a server wrote to its append-only file and did not sync is gone.
//!
//! A process that is killed loses nothing that it wrote, as the system still has it. So a library that is preloaded into the
//! server records how long a file was when it was synced, and the loss of power cuts the file to that length. A real disk
//! may have written more of it, or other bytes, which the server cuts off when it loads the file.

use std::fs;
use std::path::{Path, PathBuf};

use super::preload::Library;

/// Behind each sync, the length that the file had before it is in a file beside it.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int synced(int file, long call) {
  struct stat before;
  int known = !fstat(file, &before) && S_ISREG(before.st_mode);
  int result = syscall(call, file);
  char link[64], path[4096], record[4200], part[4200];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (result || !known || length <= 0) return result;
  path[length] = 0;
  snprintf(record, sizeof record, "%s.synced", path);
  snprintf(part, sizeof part, "%s.part", path);
  int out = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (out < 0) _exit(97);
  dprintf(out, "%lld", (long long)before.st_size);
  close(out);
  rename(part, record);
  return result;
}

int fsync(int file) { return synced(file, SYS_fsync); }
int fdatasync(int file) { return synced(file, SYS_fdatasync); }
"#;

/// The power of a server.
#[derive(Debug)]
pub struct Power(Library);

impl Power {
    /// Builds the library.
    ///
    /// # Panics
    /// As [`Library::new`].
    #[must_use]
    pub fn new() -> Self {
        Self(Library::new(SOURCE))
    }

    /// Returns the environment variable of the server's process, as name and value.
    #[must_use]
    pub fn env(&self) -> (&'static str, PathBuf) {
        self.0.env()
    }

    /// Removes what was not synced from the append-only file of a server with this folder, which has been killed. Returns the
    /// number of bytes.
    ///
    /// # Panics
    /// If there is no such file.
    #[must_use]
    pub fn lose(&self, server: &Path) -> u64 {
        let folder = fs::read_dir(server.join("appendonlydir")).expect("an append-only file");
        let files = folder.map(|entry| entry.expect("readable").path());
        // The others are complete, and synced, before the server uses them.
        let growing =
            files.filter(|path| path.extension().is_some_and(|end| end == "aof") && is_increment(path));
        let mut lost = 0;
        for path in growing {
            let record = PathBuf::from(format!("{}.synced", path.display()));
            let synced: u64 = fs::read_to_string(record).map_or(0, |text| text.parse().expect("a number"));
            let file = fs::OpenOptions::new().write(true).open(&path).expect("opened");
            lost += file.metadata().expect("known").len() - synced;
            file.set_len(synced).expect("cut");
        }
        lost
    }
}

impl Default for Power {
    fn default() -> Self {
        Self::new()
    }
}

fn is_increment(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(".incr."))
}
