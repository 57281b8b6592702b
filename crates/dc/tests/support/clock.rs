//! [`Clock`]: numbers for writes by several threads, and how far all of them have been applied.

use std::sync::atomic::{AtomicU64, Ordering};

/// Gives out the numbers of the writes, and knows up to which all have been applied.
pub struct Clock {
    next: AtomicU64,
    /// A number not above the lowest that each writer is at work on; `u64::MAX` between its batches.
    busy: Vec<AtomicU64>,
}

impl Clock {
    pub fn new(next: u64, writers: u64) -> Clock {
        Clock { next: AtomicU64::new(next), busy: (0..writers).map(|_| AtomicU64::new(u64::MAX)).collect() }
    }

    /// `count` numbers for a writer, until it calls [`Clock::done`]; the first of them.
    pub fn take(&self, writer: u64, count: u64) -> u64 {
        // A lower bound first: who asks for the oldest between the two must not pass by.
        self.busy[writer as usize].store(self.next(), Ordering::SeqCst);
        self.next.fetch_add(count, Ordering::SeqCst)
    }

    pub fn done(&self, writer: u64) {
        self.busy[writer as usize].store(u64::MAX, Ordering::SeqCst);
    }

    /// The next number that will be given out.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// Everything below has been applied.
    pub fn oldest(&self) -> u64 {
        let next = self.next();
        self.busy.iter().map(|busy| busy.load(Ordering::SeqCst)).fold(next, u64::min)
    }
}
