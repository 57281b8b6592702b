//! The guard: as long as it lives, nothing retired since it was made is freed.

use crate::Epochs;
use crate::limbo::Reclaim;
use crate::slots::{IDLE, Slot};
use crate::sync::{Ordering, fence};
use crate::thread;
use std::marker::PhantomData;
use std::sync::PoisonError;

/// A pinned thread. Made by [`Epochs::pin`].
///
/// Guards nest at the price of a counter; the outermost one decides the epoch. A guard belongs to the thread that
/// made it:
///
/// ```compile_fail
/// let epochs = deuteron_epoch::Epochs::new();
/// let guard = epochs.pin();
/// std::thread::scope(|scope| { scope.spawn(move || drop(guard)); });
/// ```
///
/// Do not hold one over I/O, a wait or a callback: no garbage of any thread is freed meanwhile. A guard that is
/// leaked (`mem::forget`) stays sound and stops reclamation for ever.
#[must_use = "the thread is pinned only as long as the guard lives"]
pub struct Guard<'e> {
    epochs: &'e Epochs,
    slot: &'e Slot,
    /// Neither Send nor Sync: `slot` belongs to this thread.
    not_send: PhantomData<*mut ()>,
}

impl<'e> Guard<'e> {
    #[inline]
    pub(crate) fn new(epochs: &'e Epochs) -> Guard<'e> {
        let slot = epochs.slots().get(thread::index());
        let nesting = slot.nesting.get();
        slot.nesting.set(nesting + 1);
        if nesting == 0 {
            thread::enter();
            slot.pin(epochs);
        }
        Guard { epochs, slot, not_send: PhantomData }
    }

    /// The instance that this guard pins.
    pub fn epochs(&self) -> &'e Epochs {
        self.epochs
    }

    /// Lets go of everything seen so far and pins the current epoch, if this is the thread's only guard of the
    /// instance; true if it did. Pointers read before must be read again, which `&mut` helps to enforce.
    ///
    /// For scans and other long walks, at the places where they can start again.
    ///
    /// ```
    /// let epochs = deuteron_epoch::Epochs::new();
    /// let mut guard = epochs.pin();
    /// epochs.advance();
    /// assert_eq!(epochs.oldest_pin_lag(), 1);
    /// assert!(guard.repin());
    /// assert_eq!(epochs.oldest_pin_lag(), 0);
    /// ```
    pub fn repin(&mut self) -> bool {
        let only = self.slot.nesting.get() == 1;
        if only {
            // The store is a release (see `Slot::pin`): it ends the old pin and begins the new one.
            self.slot.pin(self.epochs);
        }
        only
    }

    /// Has `free(pointer, bytes)` called once no guard is left that may have seen `pointer`.
    ///
    /// ```
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// unsafe fn free(pointer: *mut u8, bytes: usize) {
    ///     // SAFETY: retired below with the length of a boxed slice.
    ///     drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer, bytes)) });
    /// }
    /// let slice = Box::into_raw(vec![0u8; 64].into_boxed_slice());
    /// // SAFETY: never shared, retired once.
    /// unsafe { epochs.pin().retire(slice.cast(), 64, free) };
    /// assert_eq!(epochs.garbage_bytes(), 64);
    /// ```
    ///
    /// # Safety
    /// `pointer` is unlinked: no thread that pins from now on can reach it. It is retired and freed only once, and
    /// `free(pointer, bytes)` is sound from any thread, at any time up to the end of the [`Epochs`].
    pub unsafe fn retire(&self, pointer: *mut u8, bytes: usize, free: unsafe fn(*mut u8, usize)) {
        self.push(bytes, Reclaim::Memory { pointer, bytes, free });
    }

    /// Drops the box behind `pointer` once no guard is left that may have seen it.
    ///
    /// # Safety
    /// As [`Guard::retire`]; `pointer` came from [`Box::into_raw`], and whatever `T` borrows outlives the
    /// [`Epochs`].
    pub unsafe fn retire_box<T: Send>(&self, pointer: *mut T) {
        unsafe fn free<T>(pointer: *mut u8, _bytes: usize) {
            // SAFETY: `retire_box` got it from `Box::into_raw` and retires it once.
            drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
        }
        // SAFETY: our own contract, and `T: Send` lets any thread drop it.
        unsafe { self.retire(pointer.cast(), size_of::<T>(), free::<T>) };
    }

    /// Runs `action` once every guard that exists now is gone; on which thread is not said. `bytes` is what it
    /// will free, for the accounts.
    ///
    /// The action may pin, retire and defer; it should not wait or panic. Dropping the [`Epochs`] runs it too.
    ///
    /// ```
    /// let epochs = deuteron_epoch::Epochs::new();
    /// let guard = epochs.pin();
    /// guard.defer(0, Box::new(|| println!("nobody looks at it any more")));
    /// assert_eq!(epochs.collect(), 0);
    /// drop(guard);
    /// assert_eq!(epochs.collect(), 1);
    /// ```
    pub fn defer(&self, bytes: usize, action: Box<dyn FnOnce() + Send>) {
        self.push(bytes, Reclaim::Action(action));
    }

    fn push(&self, bytes: usize, reclaim: Reclaim) {
        // The fence is F_r of the proof in `epochs`: the caller's unlinking comes before the reading of the epoch.
        fence(Ordering::SeqCst);
        let epoch = self.epochs.load_epoch();
        let mut limbo = self.slot.limbo.lock().unwrap_or_else(PoisonError::into_inner);
        if limbo.push(epoch, bytes, reclaim, self.epochs.threshold()) {
            self.slot.collect_due.set(true);
        }
        self.slot.garbage_bytes.store(limbo.bytes(), Ordering::Relaxed);
    }
}

impl Slot {
    /// Publishes that the owner is pinned in the current epoch.
    #[inline]
    fn pin(&self, epochs: &Epochs) {
        // Release, though nothing was written: a collector that reads this value instead of the IDLE before it
        // must still see that the *previous* guard's reads are over.
        self.epoch.store(epochs.load_epoch(), Ordering::Release);
        // F_p of the proof in `epochs`. Without it the processor may do the guard's first loads before the
        // store above is visible, and a collector would take the thread for idle.
        if epochs.fences_pins() {
            fence(Ordering::SeqCst);
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        let nesting = self.slot.nesting.get() - 1;
        self.slot.nesting.set(nesting);
        if nesting == 0 {
            let collect_due = self.slot.collect_due.get();
            // Pairs with the acquiring loads of a collector's scan: our reads come before its frees.
            self.slot.epoch.store(IDLE, Ordering::Release);
            if collect_due {
                // Only now, so that our own pin does not hold back what is to be freed.
                self.epochs.collect_slot(self.slot);
            }
            // Last: the slot may be another thread's after it (T1).
            thread::leave();
        }
    }
}
