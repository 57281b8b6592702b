//! [`restore`]: an archive in a file brought back into a directory, and [`place`]: where such a file is to lie.

use crate::error::device;
use crate::extract::refuse_taken;
use crate::{ArchiveError, Summary, extract};
use deuteron_device::{Directory, OsDirectory};
use std::path::Path;

/// The directory and the name of the file `path`, where nothing may be: also what a [`Directory`] does not list, as other directories and links.
///
/// # Errors
/// [`ArchiveError::Exists`]; [`ArchiveError::NotAFileName`]; [`ArchiveError::NotFound`] if there is no such directory; [`ArchiveError::Device`].
///
/// ```
/// # let scratch = tempfile::tempdir()?;
/// let (shelf, name) = deuteron_archive::place(&scratch.path().join("monday"))?;
/// assert_eq!(name, "monday");
/// # let _ = shelf;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn place(path: &Path) -> Result<(OsDirectory, String), ArchiveError> {
    let place = split(path)?;
    match path.symlink_metadata() {
        Ok(_) => Err(ArchiveError::Exists { path: path.display().to_string() }),
        Err(_) => Ok(place),
    }
}

fn split(path: &Path) -> Result<(OsDirectory, String), ArchiveError> {
    let name = path.file_name().ok_or("not the name of a file");
    let name = name.and_then(|name| name.to_str().ok_or("not UTF-8"));
    let name =
        name.map_err(|reason| ArchiveError::NotAFileName { path: path.display().to_string(), reason })?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        return Err(ArchiveError::NotFound { path: parent.display().to_string() });
    }
    let directory = OsDirectory::open_existing(parent).map_err(device("open the directory of the backup"))?;
    Ok((directory, name.to_owned()))
}

/// Brings the files of the archive in the file `archive` back into the directory `target`, which is created, or must be empty.
/// Every checksum is verified.
///
/// # Errors
/// [`ArchiveError::NotFound`] if there is no such file; [`ArchiveError::Exists`] also if the target is no directory, and the rest as [`restore_in`].
///
/// ```
/// # use deuteron_archive::{ArchiveWriter, place, restore};
/// # let scratch = tempfile::tempdir()?;
/// let file = scratch.path().join("monday");
/// let (shelf, name) = place(&file)?;
/// ArchiveWriter::create(&shelf, &name)?.finish()?;
/// assert_eq!(restore(&file, &scratch.path().join("again"))?.files, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn restore(archive: &Path, target: &Path) -> Result<Summary, ArchiveError> {
    let from = existing(archive)?;
    if target.symlink_metadata().is_ok() && !target.is_dir() {
        return Err(ArchiveError::Exists { path: target.display().to_string() });
    }
    let target = OsDirectory::open_or_create(target).map_err(device("create the directory"))?;
    restore_in(&from.0, &from.1, &target)
}

/// [`restore`] into a directory of the caller's making.
///
/// # Errors
/// As [`restore`].
///
/// ```
/// # use deuteron_archive::{ArchiveWriter, place, restore_into};
/// # let scratch = tempfile::tempdir()?;
/// let file = scratch.path().join("monday");
/// let (shelf, name) = place(&file)?;
/// ArchiveWriter::create(&shelf, &name)?.finish()?;
/// assert_eq!(restore_into(&file, &deuteron_device::MemoryDirectory::new())?.files, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn restore_into(archive: &Path, target: &dyn Directory) -> Result<Summary, ArchiveError> {
    let (shelf, name) = existing(archive)?;
    restore_in(&shelf, &name, target)
}

/// The directory and the name of a file that there is.
fn existing(archive: &Path) -> Result<(OsDirectory, String), ArchiveError> {
    match archive.is_file() {
        true => split(archive),
        false => Err(ArchiveError::NotFound { path: archive.display().to_string() }),
    }
}

/// [`extract`] under the lock of the target, which somebody may be about to open.
///
/// # Errors
/// [`ArchiveError::InUse`], and the rest as [`extract`].
///
/// ```
/// # use deuteron_archive::{ArchiveWriter, restore_in};
/// # use deuteron_device::MemoryDirectory;
/// let (shelf, target) = (MemoryDirectory::new(), MemoryDirectory::new());
/// ArchiveWriter::create(&shelf, "monday")?.finish()?;
/// assert_eq!(restore_in(&shelf, "monday", &target)?.files, 0);
/// # Ok::<(), deuteron_archive::ArchiveError>(())
/// ```
pub fn restore_in(
    shelf: &dyn Directory,
    name: &str,
    target: &dyn Directory,
) -> Result<Summary, ArchiveError> {
    // Before the lock, which would leave its file in a directory that is somebody else's.
    refuse_taken(target)?;
    let _lock = target.lock().map_err(|error| match error.is_locked() {
        true => ArchiveError::InUse { path: target.name() },
        false => device("lock the directory")(error),
    })?;
    extract(shelf, name, target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ArchiveWriter;

    #[test]
    fn what_is_refused_as_a_target_is_left_as_it_was() {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = |name: &str| scratch.path().join(name);
        let (shelf, name) = place(&at("monday")).expect("is free");
        ArchiveWriter::create(&shelf, &name).and_then(ArchiveWriter::finish).expect("archives");
        std::fs::create_dir(at("taken")).expect("creates");
        std::fs::write(at("taken/letter"), "dear").expect("writes");
        assert!(matches!(restore(&at("monday"), &at("taken")), Err(ArchiveError::Exists { .. })));
        let left: Vec<_> = std::fs::read_dir(at("taken")).expect("lists").collect();
        assert_eq!(left.len(), 1, "{left:?}");
        std::os::unix::fs::symlink(at("nowhere"), at("link")).expect("links");
        for target in ["monday", "link"] {
            let refused = restore(&at("monday"), &at(target));
            assert!(
                matches!(&refused, Err(ArchiveError::Exists { path }) if path.ends_with(target)),
                "{refused:?}"
            );
        }
        assert!(!at("nowhere").exists());
    }
}
