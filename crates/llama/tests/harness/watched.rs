//! A directory in memory that notes what is asked of it.

use deuteron_device::{DeviceError, Directory, File, MemoryDirectory, OpenMode, ReadRequest, Reads};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

pub struct Watched {
    base: MemoryDirectory,
    /// Of each opening the file, as long as it is open.
    opened: Mutex<Vec<Weak<dyn File>>>,
    /// Reads that were asked for with others.
    pub reads: AtomicU64,
    /// Comes before such reads.
    before_reads: Box<dyn Fn() + Send + Sync>,
}

impl Watched {
    pub fn new(base: MemoryDirectory, before_reads: impl Fn() + Send + Sync + 'static) -> Arc<Watched> {
        let (opened, reads) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Watched { base, opened, reads, before_reads: Box::new(before_reads) })
    }

    /// How many files were opened so far, and how many of them are open.
    pub fn opened(&self) -> (usize, usize) {
        let opened = self.opened.lock().unwrap();
        (opened.len(), opened.iter().filter(|file| file.strong_count() > 0).count())
    }
}

impl Directory for Watched {
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError> {
        let file = self.base.open(name, mode, direct)?;
        self.opened.lock().unwrap().push(Arc::downgrade(&file));
        Ok(file)
    }
    fn list(&self) -> Result<Vec<String>, DeviceError> {
        self.base.list()
    }
    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.base.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.base.rename(from, to)
    }
    fn sync(&self) -> Result<(), DeviceError> {
        self.base.sync()
    }
    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        self.base.lock()
    }
    fn name(&self) -> String {
        self.base.name()
    }
    fn read_each<'r>(&self, reads: &mut dyn Reads<'r>) {
        (self.before_reads)();
        self.base.read_each(&mut Counted { reads, count: &self.reads });
    }
}

/// Reads that are counted.
struct Counted<'c, 'r> {
    reads: &'c mut dyn Reads<'r>,
    count: &'c AtomicU64,
}

impl<'r> Reads<'r> for Counted<'_, 'r> {
    fn next(&mut self, reads: &mut Vec<ReadRequest<'r>>) -> bool {
        let more = self.reads.next(reads);
        self.count.fetch_add(reads.len() as u64, Ordering::SeqCst);
        more
    }

    fn done(&mut self, index: usize, read: &mut ReadRequest<'r>) {
        self.reads.done(index, read);
    }
}
