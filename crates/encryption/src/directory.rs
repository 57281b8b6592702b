//! [`EncryptedDirectory`]: a directory whose files are encrypted in another.

use crate::file::{EncryptedFile, Span};
use crate::header::{self, HEADER_BYTES};
use crate::unit::{Sealer, UNIT_BYTES};
use crate::{EncryptionError, Keys};
use deuteron_device::{BLOCK_BYTES, DeviceError, Directory, File, OpenMode, Operation, ReadRequest, Reads};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};
use std::{mem, slice};

/// A directory over another whose files hold nothing but encrypted, authenticated blocks. See the [crate] documentation.
///
/// Files below are opened for buffered I/O, as units are no blocks.
pub struct EncryptedDirectory {
    inner: Arc<dyn Directory>,
    keys: Keys,
    damaged: Arc<AtomicU64>,
}

/// What [`EncryptedDirectory::rotate`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Files that it has encrypted anew.
    pub files: u64,
    /// Those of them in which blocks were not authentic, and how many: a torn tail, or damage. They are encrypted as
    /// what they read as ([`DAMAGED`](crate::DAMAGED)), so that only who has checksums can tell from now on.
    pub damaged_blocks: Vec<(String, u64)>,
}

/// What a file that is being encrypted anew is called.
const UNFINISHED: &str = ".rekey";
/// What a file is called whose contents nobody needs.
const SPARE: &str = ".spare";
/// Bytes that are encrypted anew at once.
const COPY_BYTES: usize = 1 << 20;

impl EncryptedDirectory {
    /// The files of `inner`. A single one that is not encrypted, or whose header is damaged or cannot be read, is told by whoever
    /// opens it, so that the others can be read. Spares and what an encryption has left unfinished are not asked.
    ///
    /// # Errors
    /// [`EncryptionError::WrongKey`] with a file whose header is sound and none of the keys its own; if there is no file that one of the keys fits,
    /// [`EncryptionError::NotEncrypted`] or [`EncryptionError::Device`] with the first that was asked in vain. Nothing is changed.
    ///
    /// ```
    /// use deuteron_device::{Directory, MemoryDirectory};
    /// use deuteron_encryption::{EncryptedDirectory, Key, Keys};
    /// use std::sync::Arc;
    /// let keys = Keys::new(Key::random()?);
    /// let directory = EncryptedDirectory::new(Arc::new(MemoryDirectory::new()), keys)?;
    /// assert!(directory.list()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(inner: Arc<dyn Directory>, keys: Keys) -> Result<EncryptedDirectory, EncryptionError> {
        let directory = EncryptedDirectory { inner, keys, damaged: Arc::default() };
        let (mut fits, mut in_vain) = (false, None);
        for name in directory.inner.list()? {
            if name.ends_with(UNFINISHED) || name.ends_with(SPARE) {
                continue;
            }
            match directory.key_of(&name) {
                Ok(key) => fits |= key.is_some(),
                Err(error @ EncryptionError::WrongKey { .. }) => return Err(error),
                Err(error) => in_vain = in_vain.or(Some(error)),
            }
        }
        match in_vain {
            Some(error) if !fits => Err(error),
            _ => Ok(directory),
        }
    }

    /// Which of the keys is that of a file; `None` if nothing has been written to it.
    fn key_of(&self, name: &str) -> Result<Option<usize>, EncryptionError> {
        let file = self.inner.open(name, OpenMode::Read, false)?;
        let header = read_header(&*file)?;
        header.map(|header| Ok(header::open(&header, &self.keys, name)?.1)).transpose()
    }

    /// How many blocks have been read so far that were not authentic: torn, damaged, or forged.
    ///
    /// ```
    /// # use deuteron_encryption::{EncryptedDirectory, Key, Keys};
    /// # let disk = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// let directory = EncryptedDirectory::new(disk, Keys::new(Key::random()?))?;
    /// assert_eq!(directory.damaged_blocks(), 0);
    /// # Ok::<(), deuteron_encryption::EncryptionError>(())
    /// ```
    pub fn damaged_blocks(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Encrypts anew, with the first of the keys, every file that has another. Each is written whole under another name
    /// and renamed, so a crash leaves it as it was or as it is to be. Nobody may have the directory open meanwhile.
    ///
    /// # Errors
    /// [`EncryptionError::Device`], with `is_locked` of the cause if somebody has; [`EncryptionError::NotEncrypted`] with a file that has no sound
    /// header. It may be repeated.
    ///
    /// ```
    /// use deuteron_device::{Directory, File, MemoryDirectory, OpenMode};
    /// use deuteron_encryption::{EncryptedDirectory, Key, Keys};
    /// use std::sync::Arc;
    /// let (disk, old, new) = (Arc::new(MemoryDirectory::new()), Key::random()?, Key::random()?);
    /// let directory = EncryptedDirectory::new(disk.clone(), Keys::new(old.clone()))?;
    /// directory.open("letter", OpenMode::CreateNew, false)?.write_at(b"dear", 0)?;
    ///
    /// let directory = EncryptedDirectory::new(disk.clone(), Keys::new(new.clone()).and_former(old))?;
    /// assert_eq!(directory.rotate()?.files, 1);
    /// assert!(EncryptedDirectory::new(disk, Keys::new(new)).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rotate(&self) -> Result<Rotation, EncryptionError> {
        let _lock = self.inner.lock()?;
        let mut rotation = Rotation::default();
        for name in self.inner.list()? {
            if name.ends_with(UNFINISHED) {
                self.inner.remove(&name)?;
                continue;
            }
            if self.key_of(&name)?.is_some_and(|key| key > 0) {
                let damaged_before = self.damaged_blocks();
                self.encrypt_anew(&name)?;
                rotation.files += 1;
                let damaged = self.damaged_blocks() - damaged_before;
                if damaged > 0 {
                    rotation.damaged_blocks.push((name, damaged));
                }
            }
        }
        self.inner.sync()?;
        Ok(rotation)
    }

    fn encrypt_anew(&self, name: &str) -> Result<(), EncryptionError> {
        let unfinished = format!("{name}{UNFINISHED}");
        let from = self.open(name, OpenMode::Read, false)?;
        let to = self.open(&unfinished, OpenMode::CreateNew, false)?;
        let length = from.length()?;
        to.allocate(length)?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut at = 0;
        while at < length {
            let count = (length - at).min(COPY_BYTES as u64) as usize;
            from.read_at(&mut buffer[..count], at)?;
            // What was never written stays so.
            if buffer[..count].iter().any(|&byte| byte != 0) {
                to.write_at(&buffer[..count], at)?;
            }
            at += count as u64;
        }
        to.sync()?;
        self.inner.rename(&unfinished, name)?;
        Ok(())
    }

    fn file(&self, name: &str, mode: OpenMode, direct: bool) -> Result<EncryptedFile, DeviceError> {
        let inner = self.inner.open(name, mode, false)?;
        let error = |source: EncryptionError| DeviceError {
            operation: Operation::Open,
            file: name.to_owned(),
            offset: 0,
            source: source.into(),
        };
        let header = if mode == OpenMode::CreateNew { None } else { read_header(&*inner)? };
        let sealer: Sealer = match header {
            Some(header) => header::open(&header, &self.keys, name).map_err(error)?.0,
            None if mode != OpenMode::CreateNew && has_data(&*inner)? => {
                return Err(error(EncryptionError::NotEncrypted { file: name.to_owned() }));
            }
            None => {
                let (header, sealer) = header::create(&self.keys).map_err(error)?;
                // Also of a file whose creation a crash has cut off.
                if mode != OpenMode::Read {
                    let mut unit = vec![0; UNIT_BYTES];
                    unit[..HEADER_BYTES].copy_from_slice(&header);
                    inner.write_durable_at(&unit, 0)?;
                }
                sealer
            }
        };
        Ok(EncryptedFile {
            inner,
            name: name.to_owned(),
            writable: mode != OpenMode::Read,
            direct,
            sealer,
            is_fresh: AtomicBool::new(true),
            changes: Mutex::new(()),
            damaged: Arc::clone(&self.damaged),
        })
    }
}

/// The header of a file; `None` if it has not been written, and hence nothing else.
fn read_header(file: &dyn File) -> Result<Option<[u8; HEADER_BYTES]>, DeviceError> {
    let mut header = [0; HEADER_BYTES];
    let length = file.length()?.min(HEADER_BYTES as u64) as usize;
    file.read_at(&mut header[..length], 0)?;
    Ok(header.iter().any(|&byte| byte != 0).then_some(header))
}

/// Whether there is anything in a file but zeros. A header is durable before what comes behind it, so a file without one that has something has lost it.
fn has_data(file: &dyn File) -> Result<bool, DeviceError> {
    let (length, mut bytes) = (file.length()?, vec![0; COPY_BYTES]);
    for offset in (0..length).step_by(COPY_BYTES) {
        let part = &mut bytes[..(length - offset).min(COPY_BYTES as u64) as usize];
        file.read_at(part, offset)?;
        if part.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads of the files below.
struct Below<'b, 'r> {
    reads: &'b mut dyn Reads<'r>,
    requests: Vec<ReadRequest<'r>>,
    /// Of each read below: which of the requests it is for, and what it needs of which file.
    spans: Vec<(usize, &'r EncryptedFile, Span)>,
    rooms: slice::IterMut<'b, Vec<u8>>,
}

impl<'b, 'r: 'b> Reads<'b> for Below<'b, 'r> {
    fn next(&mut self, reads: &mut Vec<ReadRequest<'b>>) -> bool {
        let wanted = self.spans.iter().zip(self.rooms.by_ref());
        reads
            .extend(wanted.map(|((_, file, span), room)| ReadRequest::new(&*file.inner, span.start(), room)));
        false
    }

    fn done(&mut self, at: usize, below: &mut ReadRequest<'b>) {
        let (index, file, ref span) = self.spans[at];
        let read = &mut self.requests[index];
        let outcome = mem::replace(&mut below.outcome, Ok(()));
        read.outcome = match outcome {
            Ok(()) => file.take(span, below.buffer, read.buffer),
            Err(error) => Err(file.of_inner(error, read.offset)),
        };
        self.reads.done(index, read);
    }
}

impl Directory for EncryptedDirectory {
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError> {
        Ok(Arc::new(self.file(name, mode, direct)?))
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        self.inner.list()
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.inner.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.inner.rename(from, to)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        self.inner.lock()
    }

    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        self.inner.lock_to_read()
    }

    /// All are asked for before the first is begun: for what each needs of the file below there must be room first.
    fn read_each<'r>(&self, reads: &mut dyn Reads<'r>) {
        let (mut requests, mut more) = (Vec::new(), true);
        while more {
            let mut portion = Vec::new();
            more = reads.next(&mut portion);
            requests.append(&mut portion);
        }
        let mut spans = Vec::with_capacity(requests.len());
        let mut rooms: Vec<Vec<u8>> = Vec::with_capacity(requests.len());
        for (index, read) in requests.iter_mut().enumerate() {
            let file: &dyn Any = read.file;
            let span = match file.downcast_ref::<EncryptedFile>() {
                Some(file) => file.span(read.buffer, read.offset).map(|span| span.map(|span| (file, span))),
                None => read.file.read_at(read.buffer, read.offset).map(|()| None),
            };
            match span {
                Ok(Some((file, span))) => {
                    rooms.push(vec![0; span.units * UNIT_BYTES]);
                    spans.push((index, file, span));
                }
                other => {
                    read.outcome = other.map(drop);
                    reads.done(index, read);
                }
            }
        }
        self.inner.read_each(&mut Below { reads, requests, spans, rooms: rooms.iter_mut() });
    }

    fn reads_at_once(&self) -> usize {
        self.inner.reads_at_once()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn system_time(&self) -> SystemTime {
        self.inner.system_time()
    }

    fn identifier(&self) -> u64 {
        self.inner.identifier()
    }
}

// A block's bytes are what its unit begins with.
const _: () = assert!(UNIT_BYTES > BLOCK_BYTES && HEADER_BYTES < 512);
