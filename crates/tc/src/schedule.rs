//! The points at which anything else may run, as the tests see it.
//!
//! In the schedule tests one thread runs at a time, and hands over at these points by the will of a seed; with some seeds at each access
//! to an atomic, too, which is a step. Outside of tests a point is nothing.

/// Anything else may run here.
#[cfg(not(all(test, not(loom))))]
#[inline(always)]
pub(crate) fn point() {}

/// Place in the log is reserved until what is returned is dropped, and whoever writes the log waits for it.
#[cfg(not(all(test, not(loom))))]
#[inline(always)]
pub(crate) fn reserving() -> Reserving {
    Reserving
}

/// A place that is reserved.
#[cfg(not(all(test, not(loom))))]
pub(crate) struct Reserving;

#[cfg(not(all(test, not(loom))))]
impl Reserving {
    #[inline(always)]
    pub(crate) fn end(self) {}
}

#[cfg(all(test, not(loom)))]
pub(crate) use in_tests::*;

#[cfg(all(test, not(loom)))]
mod in_tests {
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    type Hook = Arc<dyn Fn() + Send + Sync>;

    std::thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
        static STEPS: Cell<bool> = const { Cell::new(false) };
        static RESERVATIONS: RefCell<Option<Arc<AtomicUsize>>> = const { RefCell::new(None) };
    }

    /// What the calling thread does at its points.
    pub(crate) fn set_hook(hook: Option<Hook>) {
        HOOK.with(|slot| *slot.borrow_mut() = hook);
    }

    /// Has the calling thread do it at each step, too, and count there what it has [reserved](reserving).
    pub(crate) fn set_steps(reservations: Option<Arc<AtomicUsize>>) {
        STEPS.set(reservations.is_some());
        RESERVATIONS.set(reservations);
    }

    /// A place that is reserved.
    pub(crate) struct Reserving(Option<Arc<AtomicUsize>>);

    impl Reserving {
        pub(crate) fn end(self) {}
    }

    impl Drop for Reserving {
        fn drop(&mut self) {
            if let Some(count) = &self.0 {
                count.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Place in the log is reserved until what is returned is dropped, and whoever writes the log waits for it.
    pub(crate) fn reserving() -> Reserving {
        let count = RESERVATIONS.with_borrow(Clone::clone);
        if let Some(count) = &count {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Reserving(count)
    }

    /// Anything else may run here.
    pub(crate) fn point() {
        let hook = HOOK.with(|slot| slot.borrow().clone());
        if let Some(hook) = hook {
            hook();
        }
    }

    /// An atomic is about to be accessed.
    #[inline]
    pub(crate) fn step() {
        if STEPS.get() {
            point();
        }
    }
}
