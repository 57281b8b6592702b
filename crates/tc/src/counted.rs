//! Atomics that count what is stored through them: the tests' proof that a path only reads.
//!
//! Each access is a [step](crate::schedule) of the schedule tests, too. Every store, swap and read-modify-write counts for the calling thread, whether or not it changes the word: each takes
//! the cache line from the others. So does locking a mutex.

use crate::schedule::step;
use std::cell::{Cell, RefCell};
use std::sync::atomic;
pub(crate) use std::sync::atomic::Ordering;

std::thread_local! {
    static STORES: Cell<u64> = const { Cell::new(0) };
    /// What the calling thread has asked for ahead, while somebody wants to know.
    static ASKED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
    /// Where the calling thread has stored, while somebody wants to know.
    static STORED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

/// The calling thread asks for memory at an address, or for a place in the log.
pub(crate) fn note_prefetch(address: usize) {
    ASKED.with_borrow_mut(|asked| asked.iter_mut().for_each(|asked| asked.push(address)));
}

/// What `work` asks for ahead.
pub(crate) fn asked(work: impl FnOnce()) -> Vec<usize> {
    ASKED.set(Some(Vec::new()));
    work();
    ASKED.take().unwrap_or_default()
}

/// Stores of the calling thread so far.
pub(crate) fn stores() -> u64 {
    STORES.with(Cell::get)
}

/// The calling thread stores something at an address that others may read.
#[inline]
pub(crate) fn note_store(address: usize) {
    step();
    STORES.with(|stores| stores.set(stores.get() + 1));
    STORED.with_borrow_mut(|stored| stored.iter_mut().for_each(|stored| stored.push(address)));
}

/// The address of each store of `work`.
pub(crate) fn stored<R>(work: impl FnOnce() -> R) -> (R, Vec<usize>) {
    STORED.set(Some(Vec::new()));
    let result = work();
    (result, STORED.take().unwrap_or_default())
}

macro_rules! counted {
    ($($name:ident $(<$parameter:ident>)?: $value:ty { $($operation:ident),* })*) => {$(
        #[repr(transparent)]
        pub(crate) struct $name$(<$parameter>)?(atomic::$name$(<$parameter>)?);

        #[allow(dead_code)]
        impl$(<$parameter>)? $name$(<$parameter>)? {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            #[inline]
            pub(crate) fn load(&self, ordering: Ordering) -> $value {
                step();
                self.0.load(ordering)
            }

            #[inline]
            pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                note_store(std::ptr::from_ref(self).addr());
                self.0.store(value, ordering);
            }

            #[inline]
            pub(crate) fn swap(&self, value: $value, ordering: Ordering) -> $value {
                note_store(std::ptr::from_ref(self).addr());
                self.0.swap(value, ordering)
            }

            #[inline]
            pub(crate) fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                note_store(std::ptr::from_ref(self).addr());
                self.0.compare_exchange(from, to, success, failure)
            }

            #[inline]
            pub(crate) fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                note_store(std::ptr::from_ref(self).addr());
                self.0.compare_exchange_weak(from, to, success, failure)
            }

            $(
                #[inline]
                pub(crate) fn $operation(&self, value: $value, ordering: Ordering) -> $value {
                    note_store(std::ptr::from_ref(self).addr());
                    self.0.$operation(value, ordering)
                }
            )*
        }
    )*};
}

counted! {
    AtomicPtr<T>: *mut T {}
    AtomicU16: u16 { fetch_or, fetch_and }
    AtomicU32: u32 { fetch_add }
    AtomicU64: u64 { fetch_add, fetch_sub, fetch_max, fetch_or }
    AtomicUsize: usize { fetch_add, fetch_sub }
}
