//! Store of payloads in a directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};

use super::{PayloadReference, PayloadStore};

/// Name of the file that marks the directory.
const MARK: &str = "millstream-payloads";
/// Suffix of a file that is being written.
const UNFINISHED: &str = "part";

/// [`PayloadStore`] in a directory, for producers and consumers of one host, or of several that share a file system.
///
/// Each payload is a file of its own in one of 256 folders. It is written under another name, synchronised to the disk, and renamed, so
/// a file is complete or not there, also after a power failure. Rights are those of the directory and the umask.
///
/// A file `millstream-payloads` marks the directory. If it is not there, for example since a file system is not mounted, the store is not
/// available; otherwise all payloads would be missing.
///
/// Nothing is deleted by itself: call [`remove_older`](Self::remove_older) regularly, from one process.
#[derive(Clone, Debug)]
pub struct DirectoryStore {
    root: Arc<Path>,
}

impl DirectoryStore {
    /// Opens the directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`], [`ErrorKind::Unavailable`].
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        let mark = || {
            fs::create_dir_all(&root)?;
            OpenOptions::new().append(true).create(true).open(root.join(MARK))
        };
        mark().map_err(|error| failed(&error, "open the directory of payloads"))?;
        Ok(Self { root: root.into() })
    }

    /// Deletes files that were written longer ago than this, by the clock of the file system, and returns their number. Files of other names
    /// stay. See [`PayloadStore`] for the age that is needed.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`], [`ErrorKind::Unavailable`]. What was deleted until then is gone.
    pub async fn remove_older(&self, age: Duration) -> Result<u64> {
        let root = self.root.clone();
        blocking("remove old payloads", move || {
            let Some(before) = SystemTime::now().checked_sub(age) else { return Ok(0) };
            let mut removed = 0;
            for folder in fs::read_dir(root)? {
                let folder = folder?.path();
                if !is_folder(&folder) {
                    continue;
                }
                for file in fs::read_dir(folder)? {
                    let file = file?.path();
                    if is_payload(&file) && remove_if_older(&file, before)? {
                        removed += 1;
                    }
                }
            }
            Ok(removed)
        })
        .await
    }

    fn path(&self, reference: &PayloadReference) -> PathBuf {
        // A name has hexadecimal digits and nothing else.
        self.root.join(&reference.name()[..2]).join(reference.name())
    }
}

fn is_hex(name: &str, digits: usize) -> bool {
    name.len() == digits && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_folder(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| is_hex(name, 2)) && path.is_dir()
}

fn is_payload(path: &Path) -> bool {
    let has_suffix = path.extension().is_none_or(|suffix| suffix == UNFINISHED);
    has_suffix && path.file_stem().and_then(|name| name.to_str()).is_some_and(|name| is_hex(name, 32))
}

fn remove_if_older(file: &Path, before: SystemTime) -> io::Result<bool> {
    // Another process may have removed it.
    let gone =
        |error: io::Error| if error.kind() == io::ErrorKind::NotFound { Ok(false) } else { Err(error) };
    match fs::symlink_metadata(file).and_then(|about| about.modified()) {
        Ok(written) if written >= before => Ok(false),
        Ok(_) => fs::remove_file(file).map(|()| true).or_else(gone),
        Err(error) => gone(error),
    }
}

/// # Errors
/// The mark is not there.
fn check(root: &Path) -> io::Result<()> {
    match fs::symlink_metadata(root.join(MARK)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(io::Error::other(format!(
            "the directory has no file {MARK}: it is not mounted, or was deleted"
        ))),
        Err(error) => Err(error),
    }
}

fn write(root: &Path, path: &Path, payload: &[u8]) -> io::Result<()> {
    check(root)?;
    let unfinished = path.with_extension(UNFINISHED);
    let folder = path.parent().unwrap_or(path);
    if !folder.is_dir() {
        fs::create_dir_all(folder)?;
        // The entry of the folder is in its parent.
        sync_folder(folder.parent().unwrap_or(folder))?;
    }
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
        file.write_all(payload)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        sync_folder(folder)
    })();
    if written.is_err() {
        // What is left is removed by its age.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Other systems cannot open a folder as a file.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

fn read(root: &Path, path: &Path, length: u64) -> io::Result<Option<Bytes>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return check(root).map(|()| None),
        Err(error) => return Err(error),
    };
    // No more memory than the file has, whatever the reference says, and one byte more than that, so that a longer file is noticed.
    let room = file.metadata()?.len().min(length);
    let mut payload = Vec::with_capacity(usize::try_from(room).unwrap_or_default());
    file.take(length.saturating_add(1)).read_to_end(&mut payload)?;
    Ok(Some(payload.into()))
}

async fn blocking<R: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> io::Result<R> + Send + 'static,
) -> Result<R> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| failed(&error, operation)),
        Err(_) => Err(Error::new(ErrorKind::Unavailable, "the runtime was shut down").during(operation)),
    }
}

fn failed(error: &io::Error, operation: &str) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Backpressure,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, error.to_string()).during(operation)
}

#[async_trait]
impl PayloadStore for DirectoryStore {
    async fn put(&self, reference: &PayloadReference, payload: Bytes) -> Result<()> {
        let (root, path) = (self.root.clone(), self.path(reference));
        blocking("write a payload", move || write(&root, &path, &payload)).await
    }

    async fn get(&self, reference: &PayloadReference) -> Result<Option<Bytes>> {
        let (root, path, length) = (self.root.clone(), self.path(reference), reference.length());
        blocking("read a payload", move || read(&root, &path, length)).await
    }
}
