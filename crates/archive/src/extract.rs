//! [`extract`]: brings back the files of an archive.

use crate::block::{Defect, FORMAT_VERSION, Header, Kind};
use crate::error::device;
use crate::{ArchiveError, Summary};
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, Directory, File, OpenMode};
use std::sync::Arc;

/// Brings the files of the archive `name` in `shelf` back into `target`, which must be empty but for a file `lock`, and makes them
/// durable. Every checksum is verified. The last file of the archive appears last: before, it is called `NAME.new`.
///
/// # Errors
/// [`ArchiveError::Exists`] if the target is not empty; [`ArchiveError::Corrupt`] with the place in the archive,
/// [`ArchiveError::Version`], [`ArchiveError::Device`]: what had been extracted is removed again.
///
/// ```
/// # use deuteron_archive::{ArchiveWriter, extract};
/// # use deuteron_device::MemoryDirectory;
/// let (shelf, target) = (MemoryDirectory::new(), MemoryDirectory::new());
/// ArchiveWriter::create(&shelf, "monday")?.finish()?;
/// assert_eq!(extract(&shelf, "monday", &target)?.files, 0);
/// # Ok::<(), deuteron_archive::ArchiveError>(())
/// ```
pub fn extract(shelf: &dyn Directory, name: &str, target: &dyn Directory) -> Result<Summary, ArchiveError> {
    refuse_taken(target)?;
    let mut extraction = Extraction { target, open: None, created: Vec::new() };
    let extracted = Reader::open(shelf, name).and_then(|reader| extraction.run(reader));
    if extracted.is_err() {
        for name in &extraction.created {
            // The error is what counts; a file that stays is refused by the next attempt.
            drop(target.remove(name));
        }
    }
    extracted
}

/// An error if there is anything in `target` but its lock.
pub(crate) fn refuse_taken(target: &dyn Directory) -> Result<(), ArchiveError> {
    let names = target.list().map_err(device("list the target"))?;
    match names.iter().find(|taken| *taken != "lock") {
        Some(taken) => Err(ArchiveError::Exists { path: format!("{}/{taken}", target.name()) }),
        None => Ok(()),
    }
}

/// The archive, block by block.
struct Reader {
    name: String,
    file: Arc<dyn File>,
    length: u64,
    at: u64,
    number: u64,
    chain: Option<u32>,
    header: AlignedBuffer,
    data: AlignedBuffer,
}

impl Reader {
    fn open(shelf: &dyn Directory, name: &str) -> Result<Reader, ArchiveError> {
        let file = shelf.open(name, OpenMode::Read, true).map_err(device("open the archive"))?;
        let length = file.length().map_err(device("ask the length of the archive"))?;
        Ok(Reader {
            name: name.to_owned(),
            file,
            length,
            at: 0,
            number: 0,
            chain: None,
            header: AlignedBuffer::zeroed(BLOCK_BYTES),
            data: AlignedBuffer::zeroed(crate::block::DATA_BYTES_MAX),
        })
    }

    fn corrupt(&self, within: u64, expected: impl Into<String>, found: impl Into<String>) -> ArchiveError {
        let (expected, found) = (expected.into(), found.into());
        ArchiveError::Corrupt { file: self.name.clone(), offset: self.at + within, expected, found }
    }

    /// The next block; its data are in `data`.
    fn next(&mut self) -> Result<Header, ArchiveError> {
        let block = BLOCK_BYTES as u64;
        if self.at + block > self.length {
            return Err(self.corrupt(0, "a block", format!("the end of the file at byte {}", self.length)));
        }
        self.file.read_at(&mut self.header, self.at).map_err(device("read the archive"))?;
        let (header, crc) = Header::decode(&self.header).map_err(|defect| match defect {
            Defect::Version(found) => {
                ArchiveError::Version { file: self.name.clone(), found, supported: FORMAT_VERSION }
            }
            Defect::Corrupt { offset, expected, found } => self.corrupt(offset, expected, found),
        })?;
        if header.number != self.number {
            return Err(self.corrupt(16, format!("block {}", self.number), header.number.to_string()));
        }
        if let Some(chain) = self.chain.filter(|&chain| chain != header.chain) {
            return Err(self.corrupt(
                24,
                format!("successor of {chain:#010x}"),
                format!("{:#010x}", header.chain),
            ));
        }
        let padded = header.data_bytes.next_multiple_of(BLOCK_BYTES);
        if self.at + block + padded as u64 > self.length {
            let found = format!("the end of the file at byte {}", self.length);
            return Err(self.corrupt(block, format!("{padded} bytes of data"), found));
        }
        self.file.read_at(&mut self.data[..padded], self.at + block).map_err(device("read the archive"))?;
        let computed = crc32c::crc32c(&self.data[..header.data_bytes]);
        if computed != header.data_crc {
            let expected = format!("data of {} with checksum {:#010x}", header.name, header.data_crc);
            return Err(self.corrupt(block, expected, format!("{computed:#010x}")));
        }
        self.at += block + padded as u64;
        self.number += 1;
        self.chain = Some(crc);
        Ok(header)
    }
}

/// Whether a file may be called so: one component of a path, and neither what a directory's lock is called nor a way out of it.
fn is_name(name: &str) -> bool {
    !["", ".", "..", "lock"].contains(&name) && !name.contains(['/', '\0'])
}

/// The files as they come into being.
struct Extraction<'d> {
    target: &'d dyn Directory,
    open: Option<Open>,
    created: Vec<String>,
}

/// The file that is being written, under the name `NAME.new`.
struct Open {
    name: String,
    file: Arc<dyn File>,
    length: u64,
    written: u64,
}

fn hidden(name: &str) -> String {
    format!("{name}.new")
}

impl Extraction<'_> {
    fn run(&mut self, mut reader: Reader) -> Result<Summary, ArchiveError> {
        let mut summary = Summary::default();
        loop {
            let at = reader.at;
            let header = reader.next()?;
            let misplaced = |expected: String, found: String| ArchiveError::Corrupt {
                file: reader.name.clone(),
                offset: at,
                expected,
                found,
            };
            match header.kind {
                Kind::Data => {
                    if header.offset == 0 {
                        if !is_name(&header.name) || self.created.contains(&header.name) {
                            return Err(misplaced("a new file name".into(), header.name));
                        }
                        self.settle()?;
                        self.begin(&header)?;
                        summary.files += 1;
                    }
                    let Some(open) = self.open.as_mut().filter(|open| {
                        (&open.name, open.written, open.length)
                            == (&header.name, header.offset, header.length)
                    }) else {
                        return Err(misplaced("the file in order".into(), header.name));
                    };
                    let data = &reader.data[..header.data_bytes];
                    open.file.write_at(data, header.offset).map_err(device("write a file"))?;
                    open.written += header.data_bytes as u64;
                    summary.bytes += header.data_bytes as u64;
                }
                Kind::End => {
                    if (header.offset, header.length) != (summary.files, summary.bytes) {
                        let expected = format!("{} files, {} bytes", header.offset, header.length);
                        return Err(misplaced(expected, format!("{} and {}", summary.files, summary.bytes)));
                    }
                    summary.archive_bytes = reader.at;
                    // All others are durable before the last one gets its name.
                    self.target.sync().map_err(device("sync the target"))?;
                    self.settle()?;
                    self.target.sync().map_err(device("sync the target"))?;
                    return Ok(summary);
                }
            }
        }
    }

    fn begin(&mut self, header: &Header) -> Result<(), ArchiveError> {
        let hidden = hidden(&header.name);
        let creating = || device(format!("create {}", header.name));
        let file = self.target.open(&hidden, OpenMode::CreateNew, true).map_err(creating())?;
        self.created.push(hidden);
        file.allocate(header.length).map_err(creating())?;
        let (name, length) = (header.name.clone(), header.length);
        self.open = Some(Open { name, file, length, written: 0 });
        Ok(())
    }

    /// Makes the file that was written durable and gives it its name.
    fn settle(&mut self) -> Result<(), ArchiveError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        open.file.sync().map_err(device(format!("sync {}", open.name)))?;
        self.target.rename(&hidden(&open.name), &open.name).map_err(device(format!("name {}", open.name)))?;
        self.created.pop();
        self.created.push(open.name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_device::{MemoryDirectory, OsDirectory};

    /// An archive with right checksums that holds a file of this name and length.
    fn forged(name: &str, length: u64) -> MemoryDirectory {
        let shelf = MemoryDirectory::new();
        let file = shelf.open("forged", OpenMode::CreateNew, false).expect("creates");
        let mut block = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
        let data_crc = crc32c::crc32c(&block[BLOCK_BYTES..]);
        let data = Header {
            kind: Kind::Data,
            number: 0,
            chain: 7,
            data_crc,
            offset: 0,
            length,
            data_bytes: BLOCK_BYTES,
            name: name.to_owned(),
        };
        let chain = data.encode(&mut block);
        file.write_at(&block, 0).expect("writes");
        let (bytes, name) = (BLOCK_BYTES as u64, String::new());
        let end = Header {
            kind: Kind::End,
            number: 1,
            chain,
            data_crc: 0,
            offset: 1,
            length: bytes,
            data_bytes: 0,
            name,
        };
        end.encode(&mut block);
        file.write_at(&block[..BLOCK_BYTES], 2 * bytes).expect("writes");
        shelf
    }

    #[test]
    fn no_name_in_an_archive_leads_out_of_the_target() {
        let scratch = tempfile::tempdir().expect("a directory");
        let target = OsDirectory::open_or_create(scratch.path().join("target")).expect("creates");
        std::fs::write(scratch.path().join("outside"), "as it was").expect("writes");
        for name in ["", ".", "..", "../outside", "/etc/passwd", "a/b", "lock", "a\0b"] {
            match extract(&forged(name, 4096), "forged", &target) {
                Err(ArchiveError::Corrupt { expected, .. }) => assert_eq!(expected, "a new file name"),
                other => panic!("{name:?}: {other:?}"),
            }
        }
        assert!(target.list().expect("lists").is_empty());
        assert_eq!(std::fs::read(scratch.path().join("outside")).expect("reads"), b"as it was");
        // A link that waits where a file is to come is not followed.
        let link = scratch.path().join("target/good.new");
        std::os::unix::fs::symlink(scratch.path().join("outside"), &link).expect("links");
        assert!(matches!(
            extract(&forged("good", 4096), "forged", &target),
            Err(ArchiveError::Device { .. })
        ));
        assert_eq!(std::fs::read(scratch.path().join("outside")).expect("reads"), b"as it was");
        std::fs::remove_file(link).expect("removes");
        assert_eq!(extract(&forged("good", 4096), "forged", &target).expect("extracts").files, 1);
    }

    #[test]
    fn a_length_that_no_disk_has_is_an_error_and_leaves_nothing() {
        let scratch = tempfile::tempdir().expect("a directory");
        let target = OsDirectory::open_or_create(scratch.path()).expect("opens");
        for length in [u64::MAX, 1 << 62] {
            let refused = extract(&forged("huge", length), "forged", &target);
            assert!(matches!(refused, Err(ArchiveError::Device { .. })), "{refused:?}");
            assert!(target.list().expect("lists").is_empty());
        }
    }
}
