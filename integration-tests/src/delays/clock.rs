//! A clock that is wrong: a library that is preloaded into a server or a worker and shifts the time of day that they
//! read. The monotonic clock is unaffected, as when an administrator sets a clock.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::equipment::preload::Library;

/// The shift in seconds is stored in a file that the library maps, so that it can change while the process runs.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
  static volatile long *at;
  if (!at) {
    int file = open(getenv("SHIFT_FILE"), O_RDONLY);
    void *map = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) _exit(97);
    at = map;
  }
  return *at;
}

int clock_gettime(clockid_t id, struct timespec *time) {
  int result = syscall(SYS_clock_gettime, id, time);
  if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) time->tv_sec += shift();
  return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"#;

/// A clock that can be set.
#[derive(Debug)]
pub struct Clock {
    library: Library,
    file: fs::File,
}

impl Clock {
    /// Creates a clock without a shift.
    ///
    /// # Panics
    /// As [`Library::new`].
    #[must_use]
    pub fn new() -> Self {
        let library = Library::new(SOURCE);
        let shift = library.path("shift");
        fs::write(&shift, 0_i64.to_ne_bytes()).expect("written");
        let file = fs::OpenOptions::new().write(true).open(shift).expect("opened");
        Self { library, file }
    }

    /// Returns the environment variables of a process that is to use this clock.
    #[must_use]
    pub fn env(&self) -> [(&'static str, PathBuf); 2] {
        [self.library.env(), ("SHIFT_FILE", self.library.path("shift"))]
    }

    /// Sets the clock this many seconds ahead of the true time, or behind it if negative.
    ///
    /// # Panics
    /// If it cannot be set.
    pub fn shift(&self, seconds: i64) {
        self.file.write_all_at(&seconds.to_ne_bytes(), 0).expect("set");
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
