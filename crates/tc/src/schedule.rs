//! The points at which anything else may run, as the tests see it.
//!
//! In the schedule tests one thread runs at a time, and hands over at these points by the will of a seed. Outside of
//! tests a point is nothing.

/// Anything else may run here.
#[cfg(not(all(test, not(loom))))]
#[inline(always)]
pub(crate) fn point() {}

#[cfg(all(test, not(loom)))]
pub(crate) use in_tests::*;

#[cfg(all(test, not(loom)))]
mod in_tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    type Hook = Arc<dyn Fn() + Send + Sync>;

    std::thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// What the calling thread does at its points.
    pub(crate) fn set_hook(hook: Option<Hook>) {
        HOOK.with(|slot| *slot.borrow_mut() = hook);
    }

    /// Anything else may run here.
    pub(crate) fn point() {
        let hook = HOOK.with(|slot| slot.borrow().clone());
        if let Some(hook) = hook {
            hook();
        }
    }
}
