//! Atomics that count what is stored through them: the tests' proof of how many stores to shared memory an append is.
//!
//! Every store, swap and read-modify-write counts for the calling thread, whether or not it changes the word: each takes the cache line
//! from the others.

use std::cell::RefCell;
use std::sync::atomic;
pub(crate) use std::sync::atomic::Ordering;

std::thread_local! {
    /// Where the calling thread has stored, while somebody wants to know.
    static STORED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

fn note_store(address: usize) {
    STORED.with_borrow_mut(|stored| stored.iter_mut().for_each(|stored| stored.push(address)));
}

/// The address of each store of `work`.
pub(crate) fn stored<R>(work: impl FnOnce() -> R) -> (R, Vec<usize>) {
    STORED.set(Some(Vec::new()));
    let result = work();
    (result, STORED.take().unwrap_or_default())
}

macro_rules! counted {
    ($($name:ident: $value:ty { $($operation:ident),* })*) => {$(
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code)]
        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            #[inline]
            pub(crate) fn load(&self, ordering: Ordering) -> $value {
                self.0.load(ordering)
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

            #[inline]
            pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                note_store(std::ptr::from_ref(self).addr());
                self.0.store(value, ordering);
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
    AtomicU8: u8 {}
    AtomicU32: u32 { swap }
    AtomicU64: u64 { fetch_add, fetch_sub, fetch_max, fetch_or }
}
