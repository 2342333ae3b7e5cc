//! A file that is written as a whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tempfile::{Builder, TempPath};

/// File that is being written. Dropped before it is [finished](Self::finish), it leaves what was there before.
#[derive(Debug)]
pub(super) struct WholeFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// The place of the new content until it is whole: beside the file that it replaces, or, if there is none, its own.
    /// `None` for what is no regular file.
    unfinished: Option<TempPath>,
}

impl WholeFile {
    /// Opens a file that does not exist, or with `force` one that does.
    pub(super) fn open(path: &Path, force: bool) -> Result<Self> {
        Self::opened(path, force).with_context(|| cannot(path))
    }

    fn opened(path: &Path, force: bool) -> Result<Self> {
        let (path, file, unfinished) = match fs::metadata(path) {
            Ok(_) if !force => bail!("it already exists: --force overwrites it"),
            Ok(old) if old.is_file() => {
                // Of a link, what it leads to is replaced.
                let path = fs::canonicalize(path)?;
                let beside = Builder::new().prefix(".export-").tempfile_in(path.parent().unwrap_or(&path))?;
                beside.as_file().set_permissions(old.permissions())?;
                let (file, beside) = beside.into_parts();
                (path, file, Some(beside))
            }
            // A device or a pipe has no content that could be kept.
            Ok(_) => (path.to_owned(), File::options().write(true).open(path)?, None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = File::create_new(path)?;
                (path.to_owned(), file, Some(TempPath::try_from_path(path)?))
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { path, file: BufWriter::new(file), unfinished })
    }

    pub(super) fn write(&mut self, text: &str) -> Result<()> {
        self.file.write_all(text.as_bytes()).with_context(|| cannot(&self.path))
    }

    /// Ends the file: from now on it is there.
    pub(super) fn finish(mut self) -> Result<()> {
        self.finished().with_context(|| cannot(&self.path))
    }

    fn finished(&mut self) -> io::Result<()> {
        self.file.flush()?;
        let Some(unfinished) = self.unfinished.take() else { return Ok(()) };
        self.file.get_ref().sync_all()?;
        if *unfinished == *self.path {
            unfinished.keep().map(drop).map_err(|failed| failed.error)
        } else {
            unfinished.persist(&self.path).map_err(|failed| failed.error)
        }
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finished_leaves_the_old_file_and_nothing_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = || fs::read_dir(folder.path()).expect("files").count();
        let path = folder.path().join("letters.jsonl");
        let open = |force| WholeFile::open(&path, force).expect("it opens");
        let mut new = open(false);
        new.write("half").expect("written");
        drop(new);
        assert_eq!(files(), 0, "of a new one nothing stays");
        let mut new = open(false);
        new.write("old").expect("written");
        new.finish().expect("whole");
        let refused = WholeFile::open(&path, false).expect_err("it exists");
        assert!(format!("{refused:#}").ends_with("it already exists: --force overwrites it"), "{refused:#}");
        let mut permissions = fs::metadata(&path).expect("a file").permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions.clone()).expect("set");
        for (finish, content) in [(false, "old"), (true, "new")] {
            let mut again = open(true);
            again.write("new").expect("written");
            if finish {
                again.finish().expect("whole");
            } else {
                drop(again);
            }
            assert_eq!((fs::read_to_string(&path).expect("a file").as_str(), files()), (content, 1));
            assert_eq!(fs::metadata(&path).expect("a file").permissions(), permissions);
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_written_as_it_is_and_a_link_stays_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "old").expect("a file");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        let mut file = WholeFile::open(&link, true).expect("it opens");
        file.write("new").expect("written");
        file.finish().expect("whole");
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!(fs::read_to_string(&target).expect("a file"), "new");
        let mut device = WholeFile::open(Path::new("/dev/null"), true).expect("it opens");
        device.write("new").expect("written");
        device.finish().expect("written");
        assert!(!fs::metadata("/dev/null").expect("it").is_file(), "still a device");
    }
}
