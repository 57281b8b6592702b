//! [`ArchiveWriter`]: copies files into an archive.

use crate::block::{DATA_BYTES_MAX, Header, Kind, NAME_BYTES_MAX};
use crate::error::device;
use crate::{ArchiveError, Summary};
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, Directory, File, OpenMode};
use std::sync::Arc;

/// A file of which the beginning is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// Its name.
    pub name: String,
    /// So many bytes, a multiple of [`BLOCK_BYTES`]. Nobody may change them while they are copied.
    pub bytes: u64,
    /// The length of the file when it is extracted; what lies behind the beginning is zeros then.
    pub length: u64,
}

/// An archive being written. Dropped before it is finished, it is removed.
pub struct ArchiveWriter<'d> {
    directory: &'d dyn Directory,
    name: String,
    file: Arc<dyn File>,
    /// Header and data of one block.
    buffer: AlignedBuffer,
    at: u64,
    number: u64,
    chain: u32,
    summary: Summary,
    finished: bool,
}

fn unfinished(name: &str) -> String {
    format!("{name}.part")
}

impl<'d> ArchiveWriter<'d> {
    /// Begins the archive `name` in `directory`.
    ///
    /// # Errors
    /// [`ArchiveError::Exists`] if there is a file of that name, or of an archive that was not finished; [`ArchiveError::NotAFileName`] if it is `lock`;
    /// [`ArchiveError::Device`].
    ///
    /// ```
    /// # use deuteron_archive::ArchiveWriter;
    /// let shelf = deuteron_device::MemoryDirectory::new();
    /// ArchiveWriter::create(&shelf, "monday")?.finish()?;
    /// assert!(ArchiveWriter::create(&shelf, "monday").is_err());
    /// # Ok::<(), deuteron_archive::ArchiveError>(())
    /// ```
    pub fn create(directory: &'d dyn Directory, name: &str) -> Result<ArchiveWriter<'d>, ArchiveError> {
        if name == "lock" {
            // Now, and not when all has been copied.
            let (path, reason) =
                (format!("{}/{name}", directory.name()), "what the lock of a directory is called");
            return Err(ArchiveError::NotAFileName { path, reason });
        }
        let names = directory.list().map_err(device("list the directory of the archive"))?;
        if let Some(taken) = names.iter().find(|taken| *taken == name || **taken == unfinished(name)) {
            return Err(ArchiveError::Exists { path: format!("{}/{taken}", directory.name()) });
        }
        let file = directory
            .open(&unfinished(name), OpenMode::CreateNew, true)
            .map_err(device("create the archive"))?;
        Ok(ArchiveWriter {
            directory,
            name: name.to_owned(),
            file,
            buffer: AlignedBuffer::zeroed(BLOCK_BYTES + DATA_BYTES_MAX),
            at: 0,
            number: 0,
            // So that blocks of two archives are not taken for those of one.
            chain: directory.identifier() as u32,
            summary: Summary::default(),
            finished: false,
        })
    }

    /// Copies the beginning of a file of `source`.
    ///
    /// # Errors
    /// [`ArchiveError::Device`]: the archive cannot be finished.
    ///
    /// # Panics
    /// If the bytes are not a multiple of [`BLOCK_BYTES`] or more than the length, or the name has over 1024 bytes.
    ///
    /// ```
    /// # use deuteron_archive::{ArchiveWriter, Beginning};
    /// # use deuteron_device::{Directory, MemoryDirectory, OpenMode};
    /// let (source, shelf) = (MemoryDirectory::new(), MemoryDirectory::new());
    /// source.open("log", OpenMode::CreateNew, false)?.allocate(4096)?;
    /// let mut archive = ArchiveWriter::create(&shelf, "monday")?;
    /// archive.copy(&source, &Beginning { name: "log".into(), bytes: 4096, length: 4096 })?;
    /// archive.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn copy(&mut self, source: &dyn Directory, beginning: &Beginning) -> Result<(), ArchiveError> {
        let Beginning { name, bytes, length } = beginning;
        assert!(bytes.is_multiple_of(BLOCK_BYTES as u64) && bytes <= length && name.len() <= NAME_BYTES_MAX);
        let reading = || device(format!("read {name}"));
        let file = source.open(name, OpenMode::Read, true).map_err(reading())?;
        self.summary.files += 1;
        let mut offset = 0;
        loop {
            let count = (bytes - offset).min(DATA_BYTES_MAX as u64) as usize;
            file.read_at(&mut self.buffer[BLOCK_BYTES..BLOCK_BYTES + count], offset).map_err(reading())?;
            self.write(Kind::Data, name, offset, *length, count)?;
            offset += count as u64;
            // A file of which nothing is copied has a block, too.
            if offset == *bytes {
                self.summary.bytes += bytes;
                return Ok(());
            }
        }
    }

    /// Adds a file of these bytes.
    ///
    /// # Errors
    /// [`ArchiveError::Device`]: the archive cannot be finished.
    ///
    /// # Panics
    /// If the bytes are not a multiple of [`BLOCK_BYTES`] or more than a block of the archive holds, or the name has over 1024 bytes.
    ///
    /// ```
    /// # use deuteron_archive::{ArchiveWriter, restore_in};
    /// # use deuteron_device::{Directory, MemoryDirectory};
    /// let (shelf, target) = (MemoryDirectory::new(), MemoryDirectory::new());
    /// let mut archive = ArchiveWriter::create(&shelf, "monday")?;
    /// archive.add("label", &[b'x'; 4096])?;
    /// archive.finish()?;
    /// restore_in(&shelf, "monday", &target)?;
    /// assert_eq!(target.list()?, ["label"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), ArchiveError> {
        assert!(bytes.len().is_multiple_of(BLOCK_BYTES) && bytes.len() <= DATA_BYTES_MAX);
        assert!(name.len() <= NAME_BYTES_MAX);
        self.buffer[BLOCK_BYTES..BLOCK_BYTES + bytes.len()].copy_from_slice(bytes);
        self.summary.files += 1;
        self.summary.bytes += bytes.len() as u64;
        self.write(Kind::Data, name, 0, bytes.len() as u64, bytes.len())
    }

    /// Writes the block whose data are in the buffer.
    fn write(
        &mut self,
        kind: Kind,
        name: &str,
        offset: u64,
        length: u64,
        data_bytes: usize,
    ) -> Result<(), ArchiveError> {
        let end = BLOCK_BYTES + data_bytes;
        let data_crc = crc32c::crc32c(&self.buffer[BLOCK_BYTES..end]);
        let (number, chain, name) = (self.number, self.chain, name.to_owned());
        let header = Header { kind, number, chain, data_crc, offset, length, data_bytes, name };
        self.chain = header.encode(&mut self.buffer);
        self.file.write_at(&self.buffer[..end], self.at).map_err(device("write the archive"))?;
        self.number += 1;
        self.at += end as u64;
        Ok(())
    }

    /// Whether this is the directory that it is written into, by whatever path: unless that one had an unfinished archive of the name before.
    ///
    /// # Errors
    /// [`ArchiveError::Device`].
    ///
    /// ```
    /// # use deuteron_archive::ArchiveWriter;
    /// # use deuteron_device::MemoryDirectory;
    /// let (shelf, other) = (MemoryDirectory::new(), MemoryDirectory::new());
    /// let archive = ArchiveWriter::create(&shelf, "monday")?;
    /// assert!(archive.is_in(&shelf)? && !archive.is_in(&other)?);
    /// # Ok::<(), deuteron_archive::ArchiveError>(())
    /// ```
    pub fn is_in(&self, directory: &dyn Directory) -> Result<bool, ArchiveError> {
        let names = directory.list().map_err(device("list a directory"))?;
        Ok(names.contains(&unfinished(&self.name)))
    }

    /// Completes the archive, durably, under its name.
    ///
    /// # Errors
    /// [`ArchiveError::Device`]: there is no archive.
    ///
    /// ```
    /// # use deuteron_archive::ArchiveWriter;
    /// # use deuteron_device::{Directory, MemoryDirectory};
    /// let shelf = MemoryDirectory::new();
    /// ArchiveWriter::create(&shelf, "monday")?.finish()?;
    /// assert_eq!(shelf.list()?, ["monday"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn finish(mut self) -> Result<Summary, ArchiveError> {
        self.write(Kind::End, "", self.summary.files, self.summary.bytes, 0)?;
        self.file.sync().map_err(device("sync the archive"))?;
        let (directory, name) = (self.directory, &self.name);
        directory.rename(&unfinished(name), name).map_err(device("name the archive"))?;
        // From here on there is nothing of the unfinished one to be removed.
        self.finished = true;
        if let Err(error) = directory.sync() {
            // Whether its name would outlast a crash nobody knows: it is no archive, and in the way of none.
            drop(directory.remove(name));
            return Err(device("sync the directory of the archive")(error));
        }
        Ok(Summary { archive_bytes: self.at, ..self.summary })
    }
}

impl Drop for ArchiveWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // What it occupies may be what is missing elsewhere. If it cannot be removed, its name tells what it is.
            drop(self.directory.remove(&unfinished(&self.name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_device::{FaultKind, FaultPlan, Operation, SimulatedDisk};

    #[test]
    fn an_archive_is_not_called_as_a_lock_is() {
        let shelf = SimulatedDisk::new(1).directory();
        let refused = ArchiveWriter::create(&shelf, "lock").map(drop);
        assert!(matches!(refused, Err(ArchiveError::NotAFileName { .. })));
        assert_eq!(shelf.list().expect("lists"), [""; 0]);
    }

    #[test]
    fn an_archive_that_could_not_be_finished_is_none_and_can_be_written_again() {
        for operation in [Operation::Write, Operation::Sync, Operation::Rename, Operation::SyncDirectory] {
            let disk = SimulatedDisk::new(1);
            let shelf = disk.directory();
            let archive = ArchiveWriter::create(&shelf, "monday").expect("creates");
            disk.set_faults(FaultPlan::new().fail_from(operation, 0, FaultKind::Refuse));
            assert!(matches!(archive.finish(), Err(ArchiveError::Device { .. })));
            disk.set_faults(FaultPlan::new());
            assert_eq!(shelf.list().expect("lists"), [""; 0], "{operation:?}");
            ArchiveWriter::create(&shelf, "monday").and_then(ArchiveWriter::finish).expect("archives");
        }
    }
}
