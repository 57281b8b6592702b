//! All interleavings of two who fill a buffer, of whom one closes it.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, RwLock};
use loom::thread;

const BYTES: usize = 4;

/// A buffer of a few bytes, under the lock whose shared side those take who fill it.
struct Buffer {
    lock: RwLock<()>,
    reserved: Reserved,
    bytes: [UnsafeCell<u8>; BYTES],
}

/// As [`Reserved::reserve`], but in two steps.
fn reserve_apart(reserved: &Reserved, limit: u64, end: impl Fn(u64) -> u64) -> Option<(u64, u64)> {
    let from = reserved.0.load(Ordering::Relaxed);
    let to = end(from & !SEALED);
    if from & SEALED != 0 || to > limit {
        return None;
    }
    reserved.0.store(to, Ordering::Relaxed);
    Some((from, to))
}

impl Buffer {
    fn new() -> Arc<Buffer> {
        let bytes = std::array::from_fn(|_| UnsafeCell::new(0));
        Arc::new(Buffer { lock: RwLock::new(()), reserved: Reserved(AtomicU64::new(0)), bytes })
    }

    /// Puts so many bytes of `value` into the buffer at a time, twice at most, and closes it if there was no room and nobody had found that before. How many were put there, and what was
    /// in it when it was closed.
    fn fill(
        &self,
        value: u8,
        length: u64,
        reserve: fn(&Reserved, u64, u64) -> Option<(u64, u64)>,
    ) -> (u64, Option<Vec<u8>>) {
        let shared = self.lock.read().unwrap();
        let mut put = 0;
        let mut is_sealer = false;
        for _ in 0..2 {
            let Some((from, to)) = reserve(&self.reserved, BYTES as u64, length) else {
                is_sealer = self.reserved.seal();
                break;
            };
            for byte in from..to {
                // SAFETY: F1; loom sees to it.
                self.bytes[byte as usize].with_mut(|byte| unsafe { *byte = value });
            }
            put += to - from;
        }
        drop(shared);
        (put, is_sealer.then(|| self.close()))
    }

    fn close(&self) -> Vec<u8> {
        let exclusive = self.lock.write().unwrap();
        let used = self.reserved.bytes() as usize;
        // SAFETY: F1; loom sees to it.
        let bytes = self.bytes[..used].iter().map(|byte| byte.with(|byte| unsafe { *byte })).collect();
        drop(exclusive);
        bytes
    }
}

fn fill_together(reserve: fn(&Reserved, u64, u64) -> Option<(u64, u64)>) {
    loom::model(move || {
        let buffer = Buffer::new();
        let other = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || buffer.fill(2, 2, reserve))
        };
        let (one, closed) = buffer.fill(1, 1, reserve);
        let (two, closed_by_other) = other.join().unwrap();
        // Who finds no room first closes it, and nobody else: if both fit nobody does.
        let closed = [closed, closed_by_other];
        assert!(closed.iter().flatten().count() <= 1);
        assert_eq!(closed.iter().flatten().count() == 1, buffer.reserved.is_sealed());
        let bytes = closed.into_iter().flatten().next().unwrap_or_else(|| buffer.close());
        let count = |value| bytes.iter().filter(|&&byte| byte == value).count() as u64;
        assert_eq!((count(1), count(2), bytes.len() as u64), (one, two, one + two));
    });
}

/// F1, F2: each byte has one writer, all that was written is there when the buffer is closed, and one closes it.
#[test]
fn what_two_fill_is_closed_by_one_and_whole() {
    fill_together(|reserved, limit, length| reserved.reserve(limit, |from| from + length));
}

#[test]
#[should_panic]
fn with_rooms_reserved_in_two_steps_it_is_not() {
    fill_together(|reserved, limit, length| reserve_apart(reserved, limit, |from| from + length));
}

/// F3: what is reserved by who has seen that another has its room lies behind that.
#[test]
fn a_room_lies_behind_those_that_were_seen() {
    loom::model(|| {
        let (reserved, count) = (Arc::new(Reserved(AtomicU64::new(0))), Arc::new(AtomicU64::new(0)));
        let reserve = |reserved: &Reserved| reserved.reserve(8, |from| from + 2).unwrap();
        let adoptee = {
            let (reserved, count) = (Arc::clone(&reserved), Arc::clone(&count));
            thread::spawn(move || {
                let room = reserve(&reserved);
                // As the state word says how many fragments a page has.
                count.fetch_add(1, Ordering::AcqRel);
                room
            })
        };
        let is_counted = count.load(Ordering::Acquire) > 0;
        let adopter = reserve(&reserved);
        let adoptee = adoptee.join().unwrap();
        assert!(!is_counted || adoptee.1 <= adopter.0);
        assert!(adoptee.1 <= adopter.0 || adopter.1 <= adoptee.0);
    });
}
